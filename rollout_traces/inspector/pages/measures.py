"""The measures of a step on the Health page: metrics under their own names, each with the filter of its examples and taken apart by columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.flags import needs_text
from rollout_traces.inspector.pages.figures import Number, finite
from rollout_traces.inspector.workspace import SplitView
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.store.step_metrics import ledger_metrics


@dataclass(frozen=True)
class StepMeasure:
    """One metric of a step, and where to look when it stands out.

    Attributes:
        key: the metric's key, without the split; its name in addresses too.
        title: what the chart says.
        meaning: one sentence with the unit.
        where: a filter in the query language that finds rollouts behind it.
        order: the order in which examples are shown.
        unit: `share`, `count` or `number`.
        otherwise: the key that stands in where the step does not have this one.
    """

    key: str
    title: str
    meaning: str
    where: str = ""
    order: str = ""
    unit: Literal["share", "count", "number"] = "share"
    otherwise: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it may be read from, the best first."""
        return (self.key, self.otherwise) if self.otherwise else (self.key,)


FLAGGED = "flags/any_share"
"""Not a metric of the step but counted from its rows: rollouts with a flag that is found without text."""

MEASURES = (
    StepMeasure(
        "reward/mean",
        "Reward, mean",
        "mean reward of all rollouts whose reward function did not fail",
        order="reward",
        unit="number",
    ),
    StepMeasure(
        FLAGGED,
        "Flagged",
        "share of all rollouts with a flag that is found without text, so that it does not move with the cap",
        "flags is not null",
    ),
    StepMeasure(
        "group/tie_share",
        "Tied groups",
        "share of groups of two or more whose rewards are all equal",
        "flags has 'tied_group'",
    ),
    StepMeasure(
        "group/wasted_token_share",
        "Tokens in tied groups",
        "share of sampled tokens that lie in tied groups",
        "flags has 'tied_group'",
        "-n_sampled",
    ),
    StepMeasure(
        "discarded/share",
        "Discarded",
        "share of rollouts left out of training",
        "discard_reason is not null",
    ),
    StepMeasure(
        "stop/length_share",
        "Truncated",
        "share of rollouts cut by length, among those with a stop reason",
        "stop_reason = 'length'",
    ),
    StepMeasure(
        "staleness/mean",
        "Staleness, mean",
        "mean over sampled tokens of the version being trained minus the token's",
        "staleness_max > 0",
        "-staleness_max",
        "number",
    ),
    StepMeasure(
        "staleness/mixed_share",
        "Mixed versions",
        "share of rollouts sampled by more than one version",
        "staleness_max > 0",
        "-staleness_max",
    ),
    StepMeasure(
        "mismatch/k3",
        "Mismatch of a token, k3",
        "mean over sampled tokens of e^d − d − 1, d = prox minus rollout logprob",
        "mismatch_k3 is not null",
        "-mismatch_k3",
        "number",
    ),
    StepMeasure(
        "mismatch/abs_max",
        "Largest mismatch of a token",
        "largest |prox − rollout logprob| of the step, nats",
        "mismatch_k3 is not null",
        "-mismatch_k3",
        "number",
    ),
    StepMeasure(
        "update/top3_share",
        "Update in three rollouts",
        "share of the step's update that its three heaviest rollouts carry",
        "update_share is not null",
        "-update_share",
    ),
    StepMeasure(
        "tools/errors_per_call",
        "Tool errors per call",
        "failed tool results per call, over all rollouts, or over those kept at random where not all were decoded",
        "n_tool_errors > 0",
        "-n_tool_errors",
        otherwise="tools/errors_per_call_of_random",
    ),
    StepMeasure(
        "reward/failed_share",
        "Rewards that failed",
        "share of rollouts whose reward timed out or failed",
        "reward_status in ('timeout', 'error')",
    ),
)
"""In the order of the page; one that is unknown at every step is not shown."""


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
    steps = sorted({int(step) for step in ledger.get("step").tolist()})

    def compute(part: Ledger) -> float:
        if name == FLAGGED:
            return flagged_share(part)
        found = ledger_metrics(part, view.split, measure.keys, view.settings)
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
        rows = np.flatnonzero(values == value)
        rows = rows[np.argsort(of_step[rows], kind="stable")]
        parts = np.split(rows, np.searchsorted(of_step[rows], steps[1:]))
        found.append((value, [finite(compute(ledger.take(part))) if len(part) else None for part in parts]))
    return found
