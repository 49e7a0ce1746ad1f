"""Which rollouts a page speaks of: two selections, as they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.view import SplitView

if TYPE_CHECKING:
    from rollout_traces.analysis import Selection
    from rollout_traces.analysis.relations import Relations

BEFORE = 70
"""Steps before A and B that Explain looks at: those that tell how far steps differ, and B's ten."""
MOST_OF_A_PART = 150_000
"""Rollouts above which the whole table is read."""
Steps = tuple[int | None, int | None]


@dataclass(frozen=True)
class AskedSides:
    """A, and what B has different of it; B is the ten steps before A where nothing of `against_...` is given.

    Attributes:
        step: A's step.
        steps: A's steps, such as `10:20`, in place of one.
        where: A's filter.
        against_run: B's run.
        against_split: B's split.
        against_steps: B's steps.
        against_where: B's filter; A's where it is None.
        against_rest: B is the rollouts of the same place that A's filter leaves out.
    """

    step: int | None = None
    steps: str = ""
    where: str = ""
    against_run: str = ""
    against_split: str = ""
    against_steps: str = ""
    against_where: str | None = None
    against_rest: bool = False


@dataclass(frozen=True)
class Sides:
    """Two sets of rollouts.

    Attributes:
        a: the one in question.
        b: what it is compared with; None for the ten steps before it.
        where: A's filter in the query language.
        key: what was asked for, to remember the answer by.
    """

    a: Selection
    b: Selection | None
    where: str
    key: tuple[Any, ...]


def sides(view: SplitView, asked: AskedSides) -> Sides:
    """The selections that are asked for.

    Raises:
        StoreError: a step is no number, or the rest is asked for without a filter.
        QueryError: a filter cannot be understood.
    """
    steps = step_range(asked.steps) if asked.steps else (asked.step, asked.step)
    a = _selection(view, view.run, view.split, steps, asked.where)
    b = None
    if asked.against_rest:
        b = _rest(a, asked.where)
    elif asked.against_run or asked.against_split or asked.against_steps or asked.against_where is not None:
        b = _selection(
            view,
            asked.against_run or view.run,
            asked.against_split or view.split,
            step_range(asked.against_steps) if asked.against_steps else steps,
            asked.where if asked.against_where is None else asked.against_where,
        )
    return Sides(a, b, asked.where, (a.run, view.split, asked))


def relations_of(view: SplitView, asked: Sides) -> Relations:
    """Where to read what is said of A and B: the steps around them alone, where these are few.

    Explain looks at A, at B, and some steps before them for how far steps differ anyway.
    """
    store = view.store
    both = [asked.a, *([asked.b] if asked.b is not None else [])]
    ends = [end for side in both for end in side.steps]
    if None in ends:
        return store.table()
    low, high = (pick(end for end in ends if end is not None) for pick in (min, max))
    before = [info.step for info in store.steps(str(asked.a.run), str(asked.a.split)) if info.step < low]
    part = store.part_of_table(
        list(dict.fromkeys(str(side.run) for side in both)),
        list(dict.fromkeys(str(side.split) for side in both)),
        (min([low, *before[-BEFORE:]]), high),
    )
    return part if part.n_rows <= MOST_OF_A_PART else store.table()


def step_range(text: str) -> Steps:
    """`12`, `10:20`, `10:` or `:20` as first and last step, both included.

    Raises:
        StoreError: it is none of these.
    """
    first, colon, last = text.strip().partition(":")
    try:
        low = int(first) if first else None
        return low, (int(last) if last else None) if colon else low
    except ValueError:
        raise StoreError(f"steps: seen {text[:40]!r}, expected 12, 10:20, 10: or :20.") from None


def _selection(view: SplitView, run: str, split: str, steps: Steps, where: str) -> Selection:
    from rollout_traces.analysis import Selection

    sql, params = view.store.sql_condition(where) if where else ("", ())
    plain = Selection(view.store.run(run).name, split, steps)
    return replace(plain, where=sql, params=params, label=f"{plain.name}, {where}") if where else plain


def _rest(a: Selection, where: str) -> Selection:
    if not where:
        raise StoreError(
            "against the rest: A has no filter, so nothing is left out. Give one, or other steps."
        )
    plain = replace(a, where="", params=(), label="")
    return replace(a, where=f"not coalesce(({a.where}), false)", label=f"{plain.name}, not ({where})")
