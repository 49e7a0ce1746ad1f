"""Which rollouts a page speaks of: two selections, read from a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.workspace import Request, Workspace

if TYPE_CHECKING:
    from rollout_traces.analysis import Selection
    from rollout_traces.analysis.relations import Relations

BEFORE = 70
"""Steps before A and B that Explain looks at: those that tell how far steps differ, and B's ten."""
MOST_OF_A_PART = 150_000
"""Rollouts above which the whole table is read."""


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


def sides(workspace: Workspace, request: Request) -> Sides:
    """Reads A from `run`, `split`, `steps` (or `step`) and `where`, and B from `against`.

    `against` holds what B has different of A (`run`, `split`, `steps`, `where`), or `rest` for the rollouts of the
    same place that A's filter leaves out.

    Raises:
        StoreError: a step is no number, or `rest` without a filter.
        QueryError: a filter cannot be understood.
    """
    where = request.text("where")
    steps = _steps(request)
    a = _selection(workspace, request, request.run, request.split, steps, where)
    given = request.values.get("against")
    other = Request.read(given if isinstance(given, Mapping) else {})
    key = (a.run, request.split, steps, where, tuple(sorted((k, str(v)) for k, v in other.values.items())))
    if not other.values:
        return Sides(a, None, where, key)
    if other.values.get("rest"):
        return Sides(a, _rest(a, where), where, key)
    b_steps = _steps(other)
    b = _selection(
        workspace,
        request,
        other.text("run") or request.run,
        other.text("split") or request.split,
        b_steps if b_steps != (None, None) else steps,
        other.text("where") if "where" in other.values else where,
    )
    return Sides(a, b, where, key)


def relations_of(workspace: Workspace, project: str, asked: Sides) -> Relations:
    """Where to read what is said of A and B: the steps around them alone, where these are few.

    Explain looks at A, at B, and some steps before them for how far steps differ anyway.
    """
    store = workspace.store(project)
    both = [asked.a, *([asked.b] if asked.b is not None else [])]
    firsts = [side.steps[0] for side in both]
    lasts = [side.steps[1] for side in both]
    if None in firsts or None in lasts or any(side.run is None or side.split is None for side in both):
        return store.table()
    low, high = (
        min(step for step in firsts if step is not None),
        max(step for step in lasts if step is not None),
    )
    before = [info.step for info in store.steps(str(asked.a.run), str(asked.a.split)) if info.step < low]
    part = store.part_of_table(
        list(dict.fromkeys(str(side.run) for side in both)),
        list(dict.fromkeys(str(side.split) for side in both)),
        (min([low, *before[-BEFORE:]]), high),
    )
    return part if part.n_rows <= MOST_OF_A_PART else store.table()


def step_range(text: str) -> tuple[int | None, int | None]:
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


def _steps(request: Request) -> tuple[int | None, int | None]:
    text = request.text("steps")
    if text:
        return step_range(text)
    step = request.number("step")
    return (step, step)


def _selection(
    workspace: Workspace,
    request: Request,
    run: str,
    split: str,
    steps: tuple[int | None, int | None],
    where: str,
) -> Selection:
    from rollout_traces.analysis import Selection

    store = workspace.store(request.project)
    name = store.run(run).name
    sql, params = store.sql_condition(where) if where else ("", ())
    plain = Selection(name, split, steps)
    return replace(plain, where=sql, params=params, label=f"{plain.name}, {where}") if where else plain


def _rest(a: Selection, where: str) -> Selection:
    if not where:
        raise StoreError(
            "against the rest: A has no filter, so nothing is left out. Give one, or other steps."
        )
    plain = replace(a, where="", params=(), label="")
    return replace(a, where=f"not coalesce(({a.where}), false)", label=f"{plain.name}, not ({where})")
