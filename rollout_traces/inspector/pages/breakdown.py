"""A measure of Health taken apart: one line for each of the most frequent values of a column."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.flags import needs_text
from rollout_traces.inspector.pages.figures import Number, finite
from rollout_traces.inspector.pages.measures import FLAGGED, MEASURES
from rollout_traces.inspector.view import SplitView
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.store.step_metrics import ledger_metrics

BY = ("source", "engine", "version_max", "stop_reason", "prompt_key")
"""Columns of the ledger by which a measure is taken apart."""
MOST_VALUES = 6
SeriesOfValues = list[tuple[Any, list[Number]]]


@dataclass(frozen=True)
class BreakdownAnswer:
    """A measure over the steps for the most frequent values of a column.

    Attributes:
        by: the column.
        steps: ascending.
        series: a value and one number a step, None where it is unknown; the most frequent value first.
    """

    by: str
    steps: list[int]
    series: SeriesOfValues


def breakdown(view: SplitView, name: str, by: str) -> BreakdownAnswer:
    """A measure of Health over the steps for the most frequent values of a column.

    Raises:
        StoreError: there is no such measure, or the column is none of `BY`.
    """
    measure = next((each for each in MEASURES if each.key == name), None)
    if measure is None or by not in BY:
        raise StoreError(f"breakdown: no measure {name!r} by {by!r}. Columns: {', '.join(BY)}.")
    ledger = view.store.ledger_rows(view.run, view.split)
    settings = RunSettings.from_config(view.store.config(view.run))
    steps = sorted({int(step) for step in ledger.get("step").tolist()})

    def compute(part: Ledger) -> float:
        if name == FLAGGED:
            return flagged_share(part)
        found = ledger_metrics(part, view.split, measure.keys, settings)
        return next((found[key] for key in measure.keys if key in found), math.nan)

    return BreakdownAnswer(by, steps, series_by(ledger, by, steps, compute))


def flagged_share(ledger: Ledger) -> float:
    """Share of rows with a flag that is found without text."""
    counts = Counter(ledger.get("flags").tolist())
    raised = sum(n for names, n in counts.items() if any(not needs_text(name) for name in names))
    return raised / max(ledger.n_rows, 1)


def series_by(
    ledger: Ledger, by: str, steps: list[int], compute: Callable[[Ledger], float]
) -> SeriesOfValues:
    """Value of a column -> what `compute` gives of its rows at each step."""
    values, of_step = ledger.get(by), ledger.get("step")
    counts = Counter(value for value in values.tolist() if value not in (None, NULL_INT))
    found: SeriesOfValues = []
    for value, _ in counts.most_common(MOST_VALUES):
        parts = [ledger.take(np.flatnonzero((values == value) & (of_step == step))) for step in steps]
        found.append((value, [finite(compute(part)) if part.n_rows else None for part in parts]))
    return found
