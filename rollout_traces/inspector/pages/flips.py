"""Flips: which prompts two evaluations, or two runs, solved differently; every prompt at every evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rollout_traces.analysis import Flips, Selection, flips
from rollout_traces.analysis.evaluations import Flip, solved_sql
from rollout_traces.analysis.flip_grid import Cell, FlipGrid, flip_grid
from rollout_traces.analysis.relations import describe
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
        cells: of each of them A's and B's, with kept rollouts.
    """

    n_prompts: int
    cells: list[tuple[Cell, Cell]]


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
    shown, cells = _with_kept(view, place, shown)
    return FlipListAnswer(
        **vars(place),
        **vars(replace(found, prompts=shown)),
        n_prompts=len(found.prompts),
        cells=cells,
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
    place = TwoEvaluations(run, other, first, second, *steps)
    key = ("flips", run, other, view.split, first, second)
    found = view.remembered(key, lambda: flips(view.store.table(), *_sides(view, place)))
    return found, place


def _sides(view: EvaluationView, place: TwoEvaluations) -> tuple[Selection, Selection]:
    places = ((place.run, place.first), (place.other, place.second))
    a, b = (Selection(run, view.split, (step, step)) for run, step in places)
    return a, b


def _with_kept(
    view: EvaluationView, place: TwoEvaluations, shown: tuple[Flip, ...]
) -> tuple[tuple[Flip, ...], list[tuple[Cell, Cell]]]:
    """The prompts with their texts, also those that did not flip, and of each a kept rollout of both outcomes."""
    table = view.store.table()
    known = describe(table)
    sides = _sides(view, place)
    solved, _ = solved_sql(table, known, *sides, None)
    keys = [each.prompt_key for each in shown]
    rows: list[dict[str, dict[str, Any]]] = []
    for side in sides:
        scope, params = side.condition(known)
        found = table.sql(
            "select key, any_value(prompt) as prompt, min(case when s = 1 then id end) as solved, "
            f"min(case when s = 0 then id end) as failed from (select prompt_key as key, {solved} as s, "
            f"cast({known.expression('id')} as varchar) as id, {known.expression('prompt')} as prompt "
            f"from rollouts where {scope} and list_contains(?, prompt_key)) group by key",
            [*params, keys],
        )
        rows.append({row["key"]: row for row in found.to_pylist()})
    a, b = ([side[key] for key in keys] for side in rows)
    texts = [one["prompt"] or other["prompt"] for one, other in zip(a, b, strict=True)]
    cells = [
        (
            Cell(each.solved_a, each.trials_a, one["solved"], one["failed"]),
            Cell(each.solved_b, each.trials_b, other["solved"], other["failed"]),
        )
        for each, one, other in zip(shown, a, b, strict=True)
    ]
    return tuple(replace(each, prompt=text) for each, text in zip(shown, texts, strict=True)), cells
