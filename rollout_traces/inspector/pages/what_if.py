"""What clipping, masking and staleness rules would have done to a step, from the histogram of its loss tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.compare import population
from rollout_traces.inspector.pages.figures import axis_range
from rollout_traces.inspector.pages.images import image
from rollout_traces.inspector.pages.rollouts import rollout, sample_card
from rollout_traces.inspector.payload import packed
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.ledger.loss_histogram import DIMENSIONS, unpack
from rollout_traces.settings.run_settings import CONFIG_KEY
from rollout_traces.store import Store
from rollout_traces.trace.conversion import read_details

DECLARED = ("clip_low", "clip_high", "importance_cap", "importance_band")
NO_HISTOGRAM = (
    "The step has no histogram of its loss tokens: new or prox logprobs beside the engine's were not logged. "
    "A kept rollout can still be looked at."
)


def what_if(workspace: Workspace, request: Request) -> dict[str, Any]:
    """A step's loss tokens in cells, what the run declares, and the rollouts that were kept of it.

    Returns:
        `cells` (None where the step has none, `why` then says so): `edges` of the bins, nats; `sources`; packed
        arrays `new`, `prox`, `sign`, `staleness`, `source`, `turn`, `tokens` and `weight`, one value a cell.
        `declared`: the run's own bounds; `samples`: the kept rollouts.
    """
    store = workspace.store(request.project)
    info = next((each for each in store.steps(request.run, request.split) if each.step == request.step), None)
    if info is None:
        raise StoreError(
            f"step {request.step} of {request.split} is not there. Pick one with the step pager."
        )
    cells, why = (None, NO_HISTOGRAM) if info.digest_id is None else _cells(store, info.digest_id)
    groups = store.groups(request.run, request.split, request.step).groups
    settings = store.config(request.run).get(CONFIG_KEY)
    settings = settings if isinstance(settings, Mapping) else {}
    return {
        "step": request.step,
        "cells": cells,
        "why": why,
        "declared": {name: _number_or_range(settings.get(name)) for name in DECLARED},
        "range": axis_range(workspace, request, "reward"),
        "samples": [sample_card(row) for group in groups for row in group.traces],
    }


def _number_or_range(value: Any) -> float | dict[str, float] | None:
    """A bound as the run's config holds it; None for anything else."""
    if isinstance(value, Mapping) and {"min", "max"} <= set(value):
        low, high = _number_or_range(value["min"]), _number_or_range(value["max"])
        return {"min": low, "max": high} if isinstance(low, float) and isinstance(high, float) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _cells(store: Store, summary_id: str) -> tuple[dict[str, Any] | None, str]:
    stored = read_details(store.record(summary_id)).get("loss_histogram")
    if not isinstance(stored, str):
        return None, NO_HISTOGRAM
    try:
        found = unpack(stored)
    except StoreError as error:
        return None, f"The step's histogram of its loss tokens cannot be read: {error}"
    return {
        "edges": list(found.edges),
        "sources": list(found.sources),
        "n": len(found.tokens),
        **{name: packed(found.cells[name].astype(np.int32)) for name in DIMENSIONS},
        "tokens": packed(found.tokens.astype(np.float64)),
        "weight": packed(found.weight),
    }, ""


PAGE = Page(name="what_if", title="What if", key="W", functions=(what_if, rollout, image, population))
