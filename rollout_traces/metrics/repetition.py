"""Rollouts that loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_traces.ledger.masked_tokens import MaskedTokens
from rollout_traces.metrics.aggregate import share
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import StepView

WINDOW = 256
LONGEST_PERIOD = 64
FILLED = 0.5
NO_TOKEN = -(2**40)
"""From here down are no ids, not even a damaged one."""


@dataclass(frozen=True)
class Repetition:
    """The loop at the end of a rollout.

    Attributes:
        period: tokens that repeat themselves.
        covered: tokens that they fill, without a break.
        start: flat position of the first of these in the batch.
        stop: one past the flat position of the last.
    """

    period: int
    covered: int
    start: int
    stop: int


def repetitions(
    sampled: MaskedTokens,
    *,
    window: int = WINDOW,
    longest_period: int = LONGEST_PERIOD,
    filled: float = FILLED,
) -> dict[int, Repetition]:
    """Rollouts whose last sampled tokens a short period fills.

    A period p fills the tokens of an unbroken stretch in which every token equals the one p before it, the p
    tokens that started it included. It must come round twice.

    Args:
        sampled: the sampled tokens of B rollouts.
        window: last sampled tokens of a rollout that are looked at.
        longest_period: longest period looked for, tokens.
        filled: part of the window that must be filled, more than which counts.

    Returns:
        Row -> the loop of its shortest period.
    """
    needed = int(filled * window) + 1
    long_rows = (sampled.segments.counts >= needed).nonzero()[0]
    if not len(long_rows):
        return {}
    window_R_W, at_R_W = _last_tokens(sampled, long_rows, window)
    found: dict[int, Repetition] = {}
    for period in range(1, min(longest_period, window - 1) + 1):
        equal = window_R_W[:, period:] == window_R_W[:, :-period]
        for index in np.flatnonzero(np.count_nonzero(equal, axis=1) >= needed - period).tolist():
            row = int(long_rows[index])
            if row in found:
                continue
            start, stop = _longest_run(equal[index])
            covered = stop - start + period
            if covered >= needed and covered >= 2 * period:
                first, last = at_R_W[index, [start, stop + period - 1]].tolist()
                found[row] = Repetition(period, covered, first, last + 1)
    return found


def _last_tokens(sampled: MaskedTokens, rows: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and flat positions [R, window] of the last sampled tokens of R rows, at the right edge.

    Where a row has fewer, ids that are unlike each other and all others.
    """
    counts = sampled.segments.counts[rows]
    ends = sampled.segments.starts[rows] + counts
    back = np.arange(window, 0, -1)
    filled = back <= counts[:, None]
    at = np.zeros(filled.shape, np.int64)
    at[filled] = sampled.positions[(ends[:, None] - back)[filled]]
    ids = np.broadcast_to(NO_TOKEN - np.arange(window), filled.shape).copy()
    ids[filled] = sampled.batch.input_ids[at[filled]]
    return ids, at


def _longest_run(equal: np.ndarray) -> tuple[int, int]:
    """Start and stop of the longest unbroken run of True."""
    edges = np.flatnonzero(np.diff(equal, prepend=False, append=False))
    starts, stops = edges[::2], edges[1::2]
    longest = int(np.argmax(stops - starts)) if len(starts) else 0
    return (int(starts[longest]), int(stops[longest])) if len(starts) else (0, 0)


@family(
    "repetition",
    reads="tokens",
    source="practice",
    keys=(
        Key("repetition_share", "rollouts of which a short period fills over half of the end", default=True),
    ),
)
def repetition(view: StepView) -> dict[str, float]:
    """rows where a period of at most 64 tokens fills over half of the last 256 sampled tokens / rows with tokens.

    Rollouts with fewer sampled tokens do not count as repeating: 128 repeated tokens are needed. Rows whose
    tokens were left behind are not counted at all.
    """
    assert view.batch is not None
    loops = np.zeros(view.ledger.n_rows, bool)
    loops[list(repetitions(view.sampled))] = True
    return share("repetition_share", loops, view.batch.has_tokens)
