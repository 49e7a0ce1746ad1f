"""What the Health page measures of a step: one entry a measure, each with the filter that shows examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rollout_traces.ledger.columns import NULL_INT, Ledger

TIE_TOLERANCE = 1e-6
"""Rewards of a group are tied within this times max(1, |reward|)."""


@dataclass(frozen=True)
class Measure:
    """One number of a step, and where to look when it stands out.

    Attributes:
        key: its name in addresses.
        title: what the chart says.
        meaning: one sentence with the unit.
        compute: the step's ledger -> the number, NaN when it is unknown.
        where: a filter in the query language that finds rollouts behind it.
        order: the order in which examples are shown.
        unit: `share`, `count` or `number`.
    """

    key: str
    title: str
    meaning: str
    compute: Callable[[Ledger], float]
    where: str = ""
    order: str = ""
    unit: str = "share"


def _known_ints(ledger: Ledger, name: str) -> np.ndarray:
    """float [B], NaN where unknown."""
    values = ledger.get(name)
    return np.where(values == NULL_INT, np.nan, values.astype(np.float64))


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _largest(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else float("nan")


def _share_equal(ledger: Ledger, name: str, value: str) -> float:
    column = ledger.get(name)
    known = [item for item in column.tolist() if item is not None]
    return sum(item == value for item in known) / len(column) if known else float("nan")


def tied_rows(ledger: Ledger) -> np.ndarray:
    """bool [B]: rows whose group has two or more known rewards, all equal within the tolerance."""
    groups, rewards = ledger.get("group"), ledger.get("reward")
    tied = np.zeros(ledger.n_rows, bool)
    for group in np.unique(groups[groups != NULL_INT]):
        rows = np.flatnonzero(groups == group)
        values = rewards[rows]
        if len(rows) >= 2 and np.isfinite(values).all():
            scale = max(1.0, float(np.abs(values).max()))
            tied[rows] = float(values.max() - values.min()) <= TIE_TOLERANCE * scale
    return tied


def tie_reasons(ledger: Ledger, low: float, high: float) -> dict[str, int]:
    """Tied groups by what they have in common.

    Args:
        ledger: one step's rows.
        low: the worst reward there is.
        high: the best.

    Returns:
        Reason -> number of groups; a group counts once, under the first that fits.
    """
    tied, groups, rewards = tied_rows(ledger), ledger.get("group"), ledger.get("reward")
    stops, statuses = ledger.get("stop_reason"), ledger.get("reward_status")
    margin = 1e-6 * max(1.0, abs(low), abs(high))
    found: dict[str, int] = {}
    for group in np.unique(groups[tied]):
        rows = np.flatnonzero(groups == group)
        reward = float(rewards[rows[0]])
        if all(statuses[row] not in (None, "ok") for row in rows):
            reason = "all failed to be rewarded"
        elif all(stops[row] == "length" for row in rows):
            reason = "all truncated"
        elif reward >= high - margin:
            reason = "all best"
        elif reward <= low + margin:
            reason = "all worst"
        else:
            reason = f"all at {reward:.3g}"
        found[reason] = found.get(reason, 0) + 1
    return found


def _tied_groups(ledger: Ledger) -> float:
    groups = ledger.get("group")
    known = np.unique(groups[groups != NULL_INT])
    return len(np.unique(groups[tied_rows(ledger)])) / len(known) if len(known) else float("nan")


def _wasted(ledger: Ledger) -> float:
    sampled = _known_ints(ledger, "n_sampled")
    total = np.nansum(sampled)
    return float(np.nansum(sampled[tied_rows(ledger)]) / total) if total > 0 else float("nan")


def _mixed(ledger: Ledger) -> float:
    low, high = _known_ints(ledger, "version_min"), _known_ints(ledger, "version_max")
    known = np.isfinite(low) & np.isfinite(high)
    return float((low[known] != high[known]).mean()) if known.any() else float("nan")


def _discarded(ledger: Ledger) -> float:
    return sum(reason is not None for reason in ledger.get("discard_reason").tolist()) / max(ledger.n_rows, 1)


def _top_three(ledger: Ledger) -> float:
    shares = ledger.get("update_share")
    known = shares[np.isfinite(shares)]
    return float(np.sort(known)[-3:].sum() / known.sum()) if known.sum() > 0 else float("nan")


def _tool_errors(ledger: Ledger) -> float:
    calls, errors = _known_ints(ledger, "n_tool_calls"), _known_ints(ledger, "n_tool_errors")
    known = np.isfinite(calls) & np.isfinite(errors)
    return float(errors[known].sum() / calls[known].sum()) if calls[known].sum() > 0 else float("nan")


def _failed_rewards(ledger: Ledger) -> float:
    known = [status for status in ledger.get("reward_status").tolist() if status is not None]
    return sum(status != "ok" for status in known) / len(known) if known else float("nan")


def _flagged(ledger: Ledger) -> float:
    return sum(bool(names) for names in ledger.get("flags").tolist()) / max(ledger.n_rows, 1)


MEASURES = (
    Measure(
        "reward",
        "Reward, mean",
        "mean reward of all rollouts",
        lambda rows: _mean(rows.get("reward")),
        order="reward",
        unit="number",
    ),
    Measure("flagged", "Flagged", "share of rollouts with any flag", _flagged, "flags is not null"),
    Measure(
        "tied",
        "Tied groups",
        "share of groups whose rewards are all equal",
        _tied_groups,
        "flags has 'tied_group'",
    ),
    Measure(
        "wasted",
        "Wasted tokens",
        "share of sampled tokens that lie in tied groups",
        _wasted,
        "flags has 'tied_group'",
        "-n_sampled",
    ),
    Measure(
        "discarded",
        "Discarded",
        "share of rollouts left out of training",
        _discarded,
        "discard_reason is not null",
    ),
    Measure(
        "truncated",
        "Truncated",
        "share of rollouts cut by length",
        lambda rows: _share_equal(rows, "stop_reason", "length"),
        "stop_reason = 'length'",
    ),
    Measure(
        "staleness",
        "Staleness, mean",
        "mean over rollouts of the version being trained minus the oldest version",
        lambda rows: _mean(_known_ints(rows, "staleness_max")),
        "staleness_max > 0",
        "-staleness_max",
        "number",
    ),
    Measure(
        "mixed",
        "Mixed versions",
        "share of rollouts sampled by more than one version",
        _mixed,
        "flags has 'mixed_versions'",
    ),
    Measure(
        "mismatch",
        "Train against rollout, k3",
        "mean over rollouts of e^d − d − 1, d = prox minus rollout logprob",
        lambda rows: _mean(rows.get("mismatch_k3")),
        "mismatch_k3 is not null",
        "-mismatch_k3",
        "number",
    ),
    Measure(
        "mismatch_max",
        "Largest mismatch of a token",
        "largest |prox − rollout logprob| of the step, nats",
        lambda rows: _largest(rows.get("mismatch_abs_max")),
        "mismatch_k3 is not null",
        "-mismatch_k3",
        "number",
    ),
    Measure(
        "top3",
        "Update in three rollouts",
        "share of the step's update that its three heaviest rollouts carry",
        _top_three,
        "update_share is not null",
        "-update_share",
    ),
    Measure(
        "tool_errors",
        "Tool errors a call",
        "failed tool results per call, over the rollouts whose calls are known",
        _tool_errors,
        "n_tool_errors > 0",
        "-n_tool_errors",
    ),
    Measure(
        "reward_failures",
        "Rewards that failed",
        "share of rollouts whose reward timed out or failed",
        _failed_rewards,
        "reward_status in ('timeout', 'error')",
    ),
)
"""In the order of the page; one that is unknown at every step is not shown."""
