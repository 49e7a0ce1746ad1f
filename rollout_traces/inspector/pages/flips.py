"""Flips: which prompts two evaluations, or two runs, solved differently; every prompt at every evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.explain import answered_all, without_queries
from rollout_traces.inspector.workspace import Request, Workspace

if TYPE_CHECKING:
    from rollout_traces.analysis import Flips
    from rollout_traces.store import Store

MOST_PROMPTS = 400
"""Prompts of the list; all are counted."""


def flip_list(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Two evaluations matched on their prompts, lost ones first.

    `first` and `second` are steps; the first and the last evaluation where they are not given. With `other`, A is
    the run and B is the other one. The list begins behind the first `after` prompts.

    Raises:
        StoreError: there is no evaluation, or no shared prompt.
    """
    found, place = _matched(workspace, request)
    after = max(request.number("after") or 0, 0)
    shown = found.prompts[after : after + MOST_PROMPTS]
    return {
        **without_queries(asdict(found)),
        "prompts": [{**asdict(each), "difference": each.difference} for each in shown],
        "n_prompts": len(found.prompts),
        **place,
    }


def flip_figures(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The scores and counts of `flip_list`, computed again by the query that the page shows."""
    found, _ = _matched(workspace, request)
    return answered_all(workspace.store(request.project).table(), [found.query])


def _matched(workspace: Workspace, request: Request) -> tuple[Flips, dict[str, Any]]:
    """Two evaluations matched on their prompts, and which they are."""
    from rollout_traces.analysis import Selection, flips

    store = workspace.store(request.project)
    run = store.run(request.run).name
    other = store.run(request.text("other")).name if request.text("other") else run
    here, there = evaluated(store, run, request.split), evaluated(store, other, request.split)
    first, second = request.number("first"), request.number("second")
    if other == run:
        first = here[0] if first is None else first
        second = there[-1] if second is None else second
        if first == second:
            raise StoreError(
                f"{request.split} has one evaluation chosen on both sides, step {first}. Choose two, or another run."
            )
    else:
        both = sorted(set(here) & set(there))
        first = (both or here)[-1] if first is None else first
        second = (both or there)[-1] if second is None else second
    a = Selection(run, request.split, (first, first))
    b = Selection(other, request.split, (second, second))
    table = store.table()
    found = workspace.remembered(
        ("flips", run, other, request.split, first, second), request.project, lambda: flips(table, a, b)
    )
    return found, {
        "run": run,
        "other": other,
        "first": first,
        "second": second,
        "steps": here,
        "steps_other": there,
    }


def grid(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Prompt by evaluation, of one run or of two.

    Raises:
        StoreError: there is no evaluation, no prompt keys, or no known outcome.
    """
    from rollout_traces.analysis.flip_grid import flip_grid

    store = workspace.store(request.project)
    names = [request.run, *([request.text("other")] if request.text("other") else [])]
    runs = [store.run(name).name for name in names]
    for run in runs:
        evaluated(store, run, request.split)
    table = store.table()
    found = workspace.remembered(
        ("grid", *runs, request.split), request.project, lambda: flip_grid(table, runs, request.split)
    )
    return asdict(found)


def evaluated(store: Store, run: str, split: str) -> Sequence[int]:
    """The steps at which a split was logged.

    Raises:
        StoreError: there is none.
    """
    steps = [info.step for info in store.steps(run, split)] if split in store.splits(run) else []
    if not steps:
        raise StoreError(
            f"run {run} has no {split or 'evaluation'}; it has {', '.join(store.splits(run)) or 'no rollouts'}. "
            "Log evaluations with split='eval-rollout' and prompt keys."
        )
    return steps


PAGE = Page(name="flips", title="Flips", key="F", functions=(flip_list, flip_figures, grid))
