"""A measure of Health taken apart: one line for each of the most frequent values of a column."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.flags import needs_text
from rollout_traces.inspector.pages.measures import FLAGGED, MEASURES
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.store.step_metrics import ledger_metrics

BY = ("source", "engine", "version_max", "stop_reason", "prompt_key")
"""Columns of the ledger by which a measure is taken apart."""
MOST_VALUES = 6


def breakdown(workspace: Workspace, request: Request) -> dict[str, Any]:
    """A measure over the steps for the most frequent values of a column, from the ledger of all rollouts.

    Returns:
        `steps`, and `series`: value and one number a step (None where it is unknown), the most frequent first.

    Raises:
        StoreError: there is no such measure, or the column is none of `BY`.
    """
    name, by = request.text("name"), request.text("by")
    measure = next((each for each in MEASURES if each.key == name), None)
    if measure is None or by not in BY:
        raise StoreError(f"breakdown: no measure {name!r} by {by!r}. Columns: {', '.join(BY)}.")
    store = workspace.store(request.project)
    ledger = store.ledger_rows(request.run, request.split)
    settings = RunSettings.from_config(store.config(request.run))
    steps = sorted({int(step) for step in ledger.get("step").tolist()})

    def compute(part: Ledger) -> float:
        if name == FLAGGED:
            return flagged_share(part)
        found = ledger_metrics(part, request.split, measure.keys, settings)
        return next((found[key] for key in measure.keys if key in found), math.nan)

    return {"by": by, "steps": steps, "series": series_by(ledger, by, steps, compute)}


def flagged_share(ledger: Ledger) -> float:
    """Share of rows with a flag that is found without text."""
    counts = Counter(ledger.get("flags").tolist())
    raised = sum(n for names, n in counts.items() if any(not needs_text(name) for name in names))
    return raised / max(ledger.n_rows, 1)


def series_by(
    ledger: Ledger, by: str, steps: list[int], compute: Callable[[Ledger], float]
) -> list[tuple[Any, list[float | None]]]:
    """Value of a column -> what `compute` gives of its rows at each step."""
    values, of_step = ledger.get(by), ledger.get("step")
    counts = Counter(value for value in values.tolist() if value not in (None, NULL_INT))
    found = []
    for value, _ in counts.most_common(MOST_VALUES):
        rows = values == value
        parts = [ledger.take(np.flatnonzero(rows & (of_step == step))) for step in steps]
        found.append((value, [_known(compute(part)) if part.n_rows else None for part in parts]))
    return found


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
