"""Loops of any period, anywhere in a rollout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rollout_traces.ledger.masked_tokens import MaskedTokens

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
        start, stop = _longest_stretch(mine, period)
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


def _longest_stretch(ids: np.ndarray, period: int) -> tuple[int, int]:
    """Start and stop of the longest stretch in which every token equals the one `period` before it."""
    edges = np.flatnonzero(np.diff(ids[period:] == ids[:-period], prepend=False, append=False))
    starts, stops = edges[::2], edges[1::2]
    if not len(starts):
        return 0, 0
    longest = int(np.argmax(stops - starts))
    return int(starts[longest]), int(stops[longest]) + period
