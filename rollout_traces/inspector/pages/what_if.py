"""The effect that clipping, masking and staleness rules would have had on a step, from the histogram of its loss tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import Card, Range, axis_range, sample_card
from rollout_traces.inspector.workspace import InParts, SplitView
from rollout_traces.ledger.loss_histogram import DIMENSIONS, joined, unpack
from rollout_traces.settings.run_settings import Range as DeclaredRange
from rollout_traces.store.step_metrics import loss_histograms_in

DECLARED = ("clip_low", "clip_high", "importance_cap", "importance_band")
NO_HISTOGRAM = (
    "The step has no histogram of its loss tokens: new or prox logprobs beside the engine's were not logged. "
    "A kept rollout can still be looked at."
)


@dataclass(frozen=True)
class Cells:
    """A histogram of the loss tokens: one value of each list a cell.

    Attributes:
        edges: of the bins of `new` and `prox`, nats.
        sources: names of the sources, by number.
        n: how many cells there are in all.
    """

    edges: list[float]
    sources: list[str]
    n: int
    new: list[int]
    prox: list[int]
    sign: list[int]
    staleness: list[int]
    source: list[int]
    turn: list[int]
    tokens: list[float]
    weight: list[float]


@dataclass(frozen=True)
class WhatIfAnswer(InParts):
    """A step's loss tokens in cells, the run's own bounds, the rollouts that were kept.

    Attributes:
        why: why there are no cells.
    """

    step: int
    cells: Cells | None
    why: str
    declared: dict[str, float | DeclaredRange | None]
    range: Range
    samples: list[Card]


def what_if(view: SplitView, step: int) -> WhatIfAnswer:
    """A step's loss tokens in cells, from which clipping rules are tried."""
    info = next((each for each in view.steps() if each.step == step), None)
    if info is None:
        raise StoreError(f"step {step} of {view.split} is not there. Pick one with the step pager.")
    cells, why = _cells(loss_histograms_in(view.store, view.run, view.split, info))
    settings = view.settings
    groups = view.groups(step).groups
    return WhatIfAnswer(
        step=step,
        cells=cells,
        why=why,
        declared={name: getattr(settings, name) for name in DECLARED},
        range=axis_range(view, "reward"),
        samples=[sample_card(row) for group in groups for row in group.traces],
    )


def _cells(stored: Sequence[str]) -> tuple[Cells | None, str]:
    if not stored:
        return None, NO_HISTOGRAM
    try:
        found = joined([unpack(each) for each in stored])
    except StoreError as error:
        return None, f"The step's histogram of its loss tokens cannot be read: {error}"
    return Cells(
        edges=list(found.edges),
        sources=list(found.sources),
        n=len(found.tokens),
        tokens=found.tokens.tolist(),
        weight=found.weight.tolist(),
        **{name: found.cells[name].tolist() for name in DIMENSIONS},
    ), ""
