"""Rollouts that loop: a short period at the end, or any stretch written several times in a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rollout_traces.ledger.tokens import MaskedTokens
from rollout_traces.metrics.registry import Key, family, share
from rollout_traces.metrics.view import StepView, Values

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
    """Start and stop of the longest unbroken run of True; 0 and 0 where there is none."""
    edges = np.flatnonzero(np.diff(equal, prepend=False, append=False))
    starts, stops = edges[::2], edges[1::2]
    if not len(starts):
        return 0, 0
    longest = int(np.argmax(stops - starts))
    return int(starts[longest]), int(stops[longest])


@family(
    reads="tokens",
    keys=(
        Key("repetition_share", "rollouts of which a short period fills over half of the end", default=True),
    ),
)
def repetition(view: StepView) -> Values:
    """rows where a period of at most 64 tokens fills over half of the last 256 sampled tokens / rows with tokens.

    Rollouts with fewer sampled tokens do not count as repeating: 128 repeated tokens are needed. Rows whose
    tokens were left behind are not counted at all.
    """
    loops = np.zeros(view.ledger.n_rows, bool)
    loops[list(repetitions(view.sampled))] = True
    return share("repetition_share", loops, view.tokens.has_tokens)


GRAM = 8
"""Tokens that are compared at once to find where a rollout may repeat itself."""
REACH = 16
"""Grams on either side among which the smallest is looked up; every loop has one in each of its rounds."""
REPEATS = 3
"""Grams that must come back after the same distance before a rollout is looked at token by token."""
_FACTORS = tuple(np.uint32(x) for x in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D))
_ODD = np.uint32(0x27D4EB2F)


@dataclass(frozen=True)
class Loop:
    """A stretch of sampled tokens that repeats itself.

    Attributes:
        row: the rollout.
        period: tokens of one round.
        start: first sampled token of the stretch, counted among the row's sampled tokens.
        stop: one past its last.
    """

    row: int
    period: int
    start: int
    stop: int

    @property
    def covered(self) -> int:
        """Tokens of the stretch."""
        return self.stop - self.start


def longest_loops(sampled: MaskedTokens, *, rounds: int, min_tokens: int) -> dict[int, Loop]:
    """The longest loop of each rollout that has one.

    Args:
        sampled: the sampled tokens of B rollouts.
        rounds: times that a stretch must be written in a row.
        min_tokens: tokens that all rounds together must have.

    Returns:
        Row -> its loop.
    """
    starts, counts = sampled.segments.starts, sampled.segments.counts
    found: dict[int, Loop] = {}
    if counts.max(initial=0) < min_tokens:
        return found
    ids = sampled.batch.input_ids[sampled.positions]
    for row, period in _candidates(ids, sampled.rows):
        mine = ids[starts[row] : starts[row] + counts[row]]
        start, stop = _longest_run(mine[period:] == mine[:-period])
        stop += period
        covered = stop - start
        if covered >= max(min_tokens, rounds * period) and covered > getattr(found.get(row), "covered", 0):
            found[row] = Loop(row, period, start, stop)
    return found


def _candidates(ids: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """Rows, each with a distance after which several of its grams come back."""
    if len(ids) <= GRAM:
        return
    grams = _hashed_grams(ids.astype(np.uint32))
    at = np.flatnonzero(grams == _smallest_around(grams))
    at = at[rows[at] == rows[at + GRAM - 1]]
    if not len(at):
        return
    codes = grams[at].astype(np.int64) | (rows[at] << 32)
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    distances = at[order[1:]][same] - at[order[:-1]][same]
    places, n = np.unique(rows[at[order[1:]][same]] * (len(ids) + 1) + distances, return_counts=True)
    for place in places[n >= REPEATS].tolist():
        yield divmod(place, len(ids) + 1)


def _hashed_grams(tokens: np.ndarray) -> np.ndarray:
    """uint32 [M - GRAM + 1]: a hash of the tokens from each place on; loops are made sure of token by token."""
    hashes = tokens * _ODD
    hashes ^= hashes >> np.uint32(15)
    width = 1
    for factor in _FACTORS:
        following = hashes[width:]
        hashes = hashes[:-width] * factor
        hashes += following
        width *= 2
    return hashes


def _smallest_around(values: np.ndarray) -> np.ndarray:
    """The smallest of the values up to `REACH` places before and after each."""
    smallest = np.full(len(values) + 2 * REACH, np.iinfo(values.dtype).max, values.dtype)
    smallest[REACH : REACH + len(values)] = values
    width = 1
    while width * 2 <= 2 * REACH + 1:
        smallest = np.minimum(smallest[:-width], smallest[width:])
        width *= 2
    rest = 2 * REACH + 1 - width
    return np.minimum(smallest[: len(values)], smallest[rest : rest + len(values)])
