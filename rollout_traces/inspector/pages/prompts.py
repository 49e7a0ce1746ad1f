"""Prompts: how often each was tried and solved, and one prompt over steps, splits and runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from rollout_traces.analysis import list_prompts, prompt_over_time
from rollout_traces.analysis.prompts import ORDERS, Order, PromptList, PromptVisit
from rollout_traces.inspector.pages.explain import AskedSides, sides
from rollout_traces.inspector.pages.figures import PAGE_ROWS, Range, axis_range
from rollout_traces.inspector.workspace import SplitView

MOST_VISITS = 2_000
MOST_DOTS = 64
"""Rewards of a visit that are drawn."""


@dataclass(frozen=True, kw_only=True)
class PromptsAnswer(PromptList):
    """Prompts of a run and split in an order, some at a time.

    Attributes:
        offset: how many stand before these.
        next: give it as `after` for the prompts behind; None at the end.
    """

    order: str
    offset: int
    orders: tuple[str, ...]
    next: int | None


@dataclass(frozen=True)
class VisitsOfRun:
    """A prompt in one run and split."""

    run: str
    split: str
    visits: list[PromptVisit]


@dataclass(frozen=True)
class PromptAnswer:
    """One prompt over steps, splits and runs; the last `shown` of `n_visits` visits; `tried` of its rollouts are known to have solved it or not."""

    prompt_key: str
    prompt: str | None
    n_visits: int
    shown: int
    rollouts: int
    tried: int
    solved: int | None
    range: Range
    places: list[VisitsOfRun]


def prompt_list(
    view: SplitView, order: str = "solved", steps: str = "", where: str = "", after: int = 0
) -> PromptsAnswer:
    """Prompts of a run and split with how often they were tried and solved, a hundred at a time.

    Raises:
        StoreError: no prompt keys were logged, or there is no such order.
    """
    asked = sides(view, AskedSides(None, steps, where))
    chosen, after = cast(Order, order or "solved"), max(after, 0)
    found = view.remembered(
        ("prompts", *asked.key, chosen, after),
        lambda: list_prompts(view.store.table(), asked.a, order=chosen, limit=PAGE_ROWS, offset=after),
    )
    behind = after + len(found.prompts)
    return PromptsAnswer(
        **vars(found),
        order=chosen,
        offset=after,
        orders=tuple(ORDERS),
        next=behind if found.prompts and behind < found.total else None,
    )


def prompt(view: SplitView, prompt: str) -> PromptAnswer:
    """One prompt over steps, splits and runs, by its key.

    Raises:
        StoreError: no rollout has its key.
    """
    table = view.store.table()
    visits = sorted(prompt_over_time(table, prompt), key=lambda visit: visit.step)
    preview = table.sql("select any_value(prompt) as prompt from rollouts where prompt_key = ?", [prompt])
    places: dict[tuple[str, str], list[PromptVisit]] = {}
    for visit in visits[-MOST_VISITS:]:
        places.setdefault((visit.run, visit.split), []).append(_thinned(visit))
    solved = [visit.solved for visit in visits if visit.solved is not None]
    return PromptAnswer(
        prompt,
        preview.to_pydict()["prompt"][0],
        n_visits=len(visits),
        shown=min(len(visits), MOST_VISITS),
        rollouts=sum(visit.rollouts for visit in visits),
        tried=sum(visit.tried for visit in visits),
        solved=sum(solved) if solved else None,
        range=axis_range(view, "reward"),
        places=[VisitsOfRun(*place, found) for place, found in sorted(places.items())],
    )


def _thinned(visit: PromptVisit) -> PromptVisit:
    return replace(visit, rewards=visit.rewards[:: max(1, -(-len(visit.rewards) // MOST_DOTS))])
