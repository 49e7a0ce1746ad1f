"""Where the values of a number lie, step by step: exact values, and ranges between its quantiles.

A mean hides a tenth of the rollouts that go elsewhere, a number that takes fewer values, or a wider spread. The share
of the rollouts in a range shows them, in every part of the rollouts, and its noise is known from counting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rollout_traces.analysis.relations import known_number
from rollout_traces.analysis.row_sample import RowSample
from rollout_traces.analysis.share_changes import FEWEST_STEPS, begins, share_likelihood

QUANTILES = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.995)
"""Where ranges end."""
LEAST_EXACT = 0.01
"""Share of the rollouts from which an exact value is looked at ..."""
MOST_EXACT = 24
"""... the most frequent so many."""
FEWEST_ROLLOUTS = 200
"""Rollouts that know a number."""
LEAST_SHARE = 0.05
"""Share of the rollouts in a range that filled, or had before in one that emptied."""
UNEVEN = 25.0
"""Gain in log-likelihood of two shares over one from which a range is looked at."""
SURE = 15.0
"""Gain of two shares over one that is learned from which a range filled or emptied, over how much steps differ beside it."""
AROUND = 20
"""Steps on either side of it."""
STEEPEST = 0.15
"""Log-odds a step by which learning moves a share at most."""
NEWTON = 8
"""Steps of Newton's method, of which log-odds need few."""
BLOCKS = (1, 5, 10)
"""Steps that are put together to see how much shares differ by themselves."""
CLEARER = 1.15
"""A part is named where its gain is larger than that of a wider one by this factor."""


@dataclass(frozen=True)
class ValueRange:
    """Values of a number.

    Attributes:
        low: values are above it, or equal to it where `exact`.
        high: values are at most that.
        exact: one value alone.
    """

    low: float
    high: float
    exact: bool = False

    def sql(self, name: str) -> str:
        """The condition that a rollout lies in it."""
        column = known_number(name)
        if self.exact:
            return f"{column} = {self.low!r}"
        ends = [f"{column} > {self.low!r}"] if np.isfinite(self.low) else []
        ends += [f"{column} <= {self.high!r}"] if np.isfinite(self.high) else []
        return " and ".join(ends)

    def words(self, number: Callable[[float], str]) -> str:
        """It in words, with a function that writes a number."""
        if self.exact:
            return f"exactly {number(self.low)}"
        if not np.isfinite(self.low):
            return f"at most {number(self.high)}"
        if not np.isfinite(self.high):
            return f"above {number(self.low)}"
        return f"between {number(self.low)} and {number(self.high)}"


@dataclass(frozen=True)
class Filled:
    """A range that suddenly many rollouts lie in, or hardly any.

    Attributes:
        column: the number.
        range: where it lies.
        place: position of the first step of the new share.
        rises: whether it filled; else it emptied.
        gain: in log-likelihood, over one share.
        part: columns and values of the part that it is seen in; empty for all rollouts.
    """

    column: str
    range: ValueRange
    place: int
    rises: bool
    gain: float
    part: tuple[tuple[str, str], ...]


def filled(sample: RowSample, name: str) -> Filled | None:
    """The surest range of a number that fills or empties at a step, in the part where it is clearest.

    Args:
        sample: the rollouts.
        name: the number.
    """
    values = sample.numbers[name]
    known = np.isfinite(values)
    if known.sum() < FEWEST_ROLLOUTS or len(sample.steps) < 2 * FEWEST_STEPS:
        return None
    cell, cells = _cells(values[known])
    if len(cells) < 2:
        return None
    ranges, members = _ranges(cells)
    at, size, n_cells = sample.at[known], len(sample.steps), len(cells)
    best: Filled | None = None
    for columns, codes, names in sample.splits():
        code = codes[known]
        here = code >= 0
        flat = (code[here] * size + at[here]) * n_cells + cell[here]
        counted = np.bincount(flat, minlength=len(names) * size * n_cells)
        hits = counted.reshape(len(names), size, n_cells).astype(float) @ members
        of = counted.reshape(len(names), size, n_cells).sum(axis=2).astype(float)
        for i, j in _uneven(hits, of):
            found = _begun(hits[i, :, j], of[i])
            if found is None or found[2] < SURE:
                continue
            place, rises, gain = found
            rows = here & (code == i)
            inside = members[cell[rows], j] > 0
            gain /= _alike(inside, sample.group[known][rows], at[rows] >= place)
            if gain >= SURE:
                part = tuple(zip(columns, names[i], strict=True))
                each = Filled(name, ranges[j], place, rises, gain, part)
                if best is None or _clearer(each, best):
                    best = each
    return best


def _clearer(one: Filled, other: Filled) -> bool:
    """Whether a range says more than another; of two that say the same, the one that filled."""
    if len(one.part) == len(other.part) and one.rises and not other.rises:
        return one.gain >= 0.999 * other.gain
    return one.gain > other.gain * (CLEARER if len(one.part) > len(other.part) else 1.0)


def _cells(values: np.ndarray) -> tuple[np.ndarray, list[ValueRange]]:
    """int [N], the cell of each value, and the cells: frequent values, and ranges of all others."""
    distinct, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    often = np.flatnonzero(counts >= max(LEAST_EXACT * len(values), 20))
    often = np.sort(often[np.argsort(-counts[often], kind="stable")][:MOST_EXACT])
    place = np.full(len(distinct), -1)
    place[often] = np.arange(len(often))
    cell = place[inverse]
    ranges = [ValueRange(float(v), float(v), True) for v in distinct[often]]
    rest = cell < 0
    if rest.any():
        edges = (
            np.unique(np.quantile(values[rest], QUANTILES)) if rest.sum() >= FEWEST_ROLLOUTS else np.empty(0)
        )
        cell[rest] = len(often) + np.searchsorted(edges, values[rest])
        ranges += [ValueRange(a, b) for a, b in pairwise((-np.inf, *edges.tolist(), np.inf))]
    return cell, ranges


def _ranges(cells: list[ValueRange]) -> tuple[list[ValueRange], np.ndarray]:
    """What is looked at: frequent values, ranges, and both tails; float [cells, ranges], 1 where a cell lies in one."""
    ends = [cell for cell in cells if not cell.exact]
    ranges = [*cells]
    ranges += [ValueRange(-np.inf, cell.high) for cell in ends[1:-1]]
    ranges += [ValueRange(cell.low, np.inf) for cell in ends[1:-1]]
    members = np.asarray(
        [
            [
                cell == each or (not each.exact and each.low <= _least(cell) and cell.high <= each.high)
                for each in ranges
            ]
            for cell in cells
        ],
        float,
    )
    return ranges, members


def _least(cell: ValueRange) -> float:
    """What a range has to begin below to hold a cell."""
    return np.nextafter(cell.low, -np.inf) if cell.exact else cell.low


def _uneven(hits: np.ndarray, of: np.ndarray) -> Iterator[tuple[int, int]]:
    """Parts and ranges whose share is far from constant.

    Args:
        hits: float [P, T, R].
        of: float [P, T].
    """
    before, total = np.cumsum(hits, axis=1)[:, :-1], hits.sum(axis=1, keepdims=True)
    n, n_all = np.cumsum(of, axis=1)[:, :-1, None], of.sum(axis=1)[:, None, None]
    one = share_likelihood(total, n_all)
    gain = share_likelihood(before, n) + share_likelihood(total - before, n_all - n) - one
    for i, j in np.argwhere(np.nan_to_num(gain).max(axis=1) >= UNEVEN):
        yield int(i), int(j)


def _begun(n: np.ndarray, of: np.ndarray) -> tuple[int, bool, float] | None:
    """Position, whether it rises, and gain, of a share that suddenly is there or suddenly is not.

    Args:
        n: float [T], rollouts in the range.
        of: float [T], those of the part.
    """
    place, _ = begins(n, of, least=LEAST_SHARE)
    if place is not None:
        return place, True, _gain(n, of, place)
    back, _ = begins(n[::-1], of[::-1], least=LEAST_SHARE)
    return None if back is None else (len(n) - back, False, _gain(n, of, len(n) - back))


def _gain(n: np.ndarray, of: np.ndarray, place: int) -> float:
    """Gain in log-likelihood of two levels over a share that grows or falls as it does by learning, in `AROUND` steps."""
    side = slice(max(place - AROUND, 0), place + AROUND)
    hits, rows, x = n[side], of[side], np.arange(len(n))[side] - place + 0.5
    levels = sum(float(share_likelihood(hits[part].sum(), rows[part].sum())) for part in (x < 0, x > 0))
    return (levels - _learned(hits, rows, x)) / _unrest(n, of, place)


def _learned(hits: np.ndarray, of: np.ndarray, x: np.ndarray) -> float:
    """Largest log-likelihood of log-odds that move on a line by at most `STEEPEST` a step."""
    a, b = 0.0, 0.0
    for free in (True, False):
        for _ in range(NEWTON):
            p = 1 / (1 + np.exp(-np.clip(a + b * x, -30, 30)))
            left, weight = hits - of * p, of * p * (1 - p) + 1e-9
            if free:
                slope = np.stack([left.sum(), (left * x).sum()])
                curve = np.asarray(
                    [[weight.sum(), (weight * x).sum()], [(weight * x).sum(), (weight * x * x).sum()]]
                )
                da, db = np.linalg.solve(curve + 1e-9 * np.eye(2), slope)
                a, b = a + float(np.clip(da, -3, 3)), float(np.clip(b + np.clip(db, -0.3, 0.3), -1, 1))
            else:
                a += float(np.clip(left.sum() / weight.sum(), -3, 3))
        if abs(b) <= STEEPEST:
            break
        b = float(np.sign(b) * STEEPEST)
    p = np.clip(1 / (1 + np.exp(-np.clip(a + b * x, -30, 30))), 1e-9, 1 - 1e-9)
    return float((hits * np.log(p) + (of - hits) * np.log(1 - p)).sum())


def _alike(inside: np.ndarray, group: np.ndarray, after: np.ndarray) -> float:
    """How many times more groups vary beside two levels than as many independent rollouts; at least 1.

    Args:
        inside: bool [N], rollouts of a part that are in a range.
        group: [N].
        after: bool [N], from the position on.
    """
    share = np.where(after, inside[after].mean(), inside[~after].mean())
    _, of = np.unique(group, return_inverse=True)
    left = np.bincount(of, inside - share)
    n, counted = np.bincount(of), float((share * (1 - share)).sum())
    if counted <= 0:
        return float((n**2).sum() / n.sum())
    return max(float((left**2).sum()) / counted, 1.0)


def _unrest(n: np.ndarray, of: np.ndarray, place: int) -> float:
    """How many times more steps, or blocks of them, vary beside two levels than by counting alone; at least 1."""
    expected, counted = np.zeros(len(n)), np.zeros(len(n))
    for side in (slice(0, place), slice(place, None)):
        share = n[side].sum() / max(of[side].sum(), 1.0)
        expected[side], counted[side] = share * of[side], share * (1 - share) * of[side]
    total = max(float(counted.sum()), 1e-12)
    left = n - expected
    starts = [np.arange(0, len(n), width) for width in BLOCKS]
    return max(1.0, *(float((np.add.reduceat(left, at) ** 2).sum()) / total for at in starts))
