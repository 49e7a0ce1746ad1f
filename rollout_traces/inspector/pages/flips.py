"""Flips: which prompts two evaluations, or two runs, solved differently; every prompt at every evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollout_traces.analysis import Flips, Selection, flips
from rollout_traces.analysis.flip_grid import FlipGrid, flip_grid
from rollout_traces.inspector.pages.figures import QueriesAnswer, answered_all
from rollout_traces.inspector.workspace import EvaluationView, FromRuns, InParts
from rollout_traces.store.step_metrics import matched_steps, steps_of

MOST_PROMPTS = 400
"""Prompts of the list; all are counted."""


@dataclass(frozen=True)
class AskedEvaluations:
    """Two evaluations.

    Attributes:
        first: A's step; the first evaluation, or the last one that two runs share, where it is not given.
        second: B's step; the last one where it is not given.
        other: B's run; A's where it is empty.
    """

    first: int | None = None
    second: int | None = None
    other: str = ""


@dataclass(frozen=True)
class TwoEvaluations:
    """The evaluations that are matched, and the steps of those that there are, of both runs."""

    run: str
    other: str
    first: int
    second: int
    steps: list[int]
    steps_other: list[int]


@dataclass(frozen=True, kw_only=True, repr=False)
class FlipListAnswer(Flips, TwoEvaluations, FromRuns, InParts):
    """Two evaluations matched on their prompts, lost ones first, some prompts at a time.

    Attributes:
        n_prompts: how many there are.
    """

    n_prompts: int


@dataclass(frozen=True)
class GridAnswer(FlipGrid, InParts):
    """Prompt by evaluation, some prompts at a time."""


def flip_list(view: EvaluationView, asked: AskedEvaluations, after: int = 0) -> FlipListAnswer:
    """Two evaluations matched on their prompts, lost ones first, 400 prompts at a time.

    Raises:
        StoreError: there is no evaluation, or no shared prompt.
    """
    found, place = _matched(view, asked)
    after = max(after, 0)
    shown = found.prompts[after : after + MOST_PROMPTS]
    behind = after + len(shown)
    return FlipListAnswer(
        **vars(place),
        **vars(replace(found, prompts=shown)),
        n_prompts=len(found.prompts),
        next=behind if shown and behind < len(found.prompts) else None,
    )


def flip_figures(view: EvaluationView, asked: AskedEvaluations) -> QueriesAnswer:
    """The scores and counts of two matched evaluations, computed again."""
    return answered_all(view.store.table(), [_matched(view, asked)[0].query])


def grid(view: EvaluationView, other: str = "") -> GridAnswer:
    """Prompt by evaluation, of one run or of two.

    Raises:
        StoreError: there is no evaluation, no prompt keys, or no known outcome.
    """
    runs = [view.store.run(name).name for name in (view.run, other) if name]
    for run in runs:
        steps_of(view.store, run, view.split)
    key = ("grid", *runs, view.split)
    found = view.remembered(key, lambda: flip_grid(view.store.table(), runs, view.split))
    return GridAnswer(**vars(found))


def _matched(view: EvaluationView, asked: AskedEvaluations) -> tuple[Flips, TwoEvaluations]:
    run = view.info.name
    other = view.store.run(asked.other).name if asked.other else run
    first, second, *steps = matched_steps(view.store, run, other, view.split, asked.first, asked.second)
    a, b = (Selection(name, view.split, (at, at)) for name, at in ((run, first), (other, second)))
    key = ("flips", run, other, view.split, first, second)
    found = view.remembered(key, lambda: flips(view.store.table(), a, b))
    return found, TwoEvaluations(run, other, first, second, *steps)
