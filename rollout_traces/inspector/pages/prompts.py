"""Prompts: how often each was tried and solved, and one prompt over steps, splits and runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, get_args

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.figures import axis_range
from rollout_traces.inspector.pages.selecting import sides
from rollout_traces.inspector.workspace import Request, Workspace

PROMPTS_AT_ONCE = 100
MOST_VISITS = 2_000
MOST_DOTS = 64
"""Rewards of a visit that are drawn."""


def prompt_list(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Prompts of a run and split, sorted, a part at a time.

    Raises:
        StoreError: no prompt keys were logged, or there is no such order.
    """
    from rollout_traces.analysis import list_prompts
    from rollout_traces.analysis.prompts import Order

    order = request.text("order") or "solved"
    if order not in get_args(Order):
        raise StoreError(f"order: seen {order[:40]!r}, expected one of {', '.join(get_args(Order))}.")
    asked = sides(workspace, Request({**request.values, "against": None}))
    offset = max(request.number("offset") or 0, 0)
    table = workspace.store(request.project).table()
    found = workspace.remembered(
        ("prompts", *asked.key, order, offset),
        request.project,
        lambda: list_prompts(table, asked.a, order=order, limit=PROMPTS_AT_ONCE, offset=offset),  # type: ignore[arg-type]
    )
    return {**asdict(found), "order": order, "offset": offset, "orders": list(get_args(Order))}


def prompt(workspace: Workspace, request: Request) -> dict[str, Any]:
    """One prompt: a series for each run and split, with what each visit holds.

    Raises:
        StoreError: no rollout has its key.
    """
    from rollout_traces.analysis import prompt_over_time

    key = request.text("prompt")
    store = workspace.store(request.project)
    table = store.table()
    visits = prompt_over_time(table, key)
    kept = sorted(visits, key=lambda visit: visit.step)[-MOST_VISITS:]
    preview = table.sql("select any_value(prompt) as prompt from rollouts where prompt_key = ?", [key])
    places: dict[tuple[str, str], list[Any]] = {}
    for visit in kept:
        places.setdefault((visit.run, visit.split), []).append(visit)
    return {
        "prompt_key": key,
        "prompt": preview.to_pydict()["prompt"][0],
        "n_visits": len(visits),
        "shown": len(kept),
        "tried": sum(visit.tried for visit in visits),
        "solved": None
        if all(visit.solved is None for visit in visits)
        else sum(visit.solved or 0 for visit in visits),
        "range": axis_range(workspace, request, "reward"),
        "places": [
            {"run": run, "split": split, "visits": [_visit(visit) for visit in sorted(found, key=_step)]}
            for (run, split), found in sorted(places.items(), key=lambda pair: pair[0])
        ],
    }


def _step(visit: Any) -> int:
    return int(visit.step)


def _visit(visit: Any) -> dict[str, Any]:
    rewards = visit.rewards
    stride = max(1, -(-len(rewards) // MOST_DOTS))
    return {**asdict(visit), "rewards": list(rewards[::stride]), "ids": list(visit.ids)}


PAGE = Page(name="prompts", title="Prompts", key="P", functions=(prompt_list, prompt))
