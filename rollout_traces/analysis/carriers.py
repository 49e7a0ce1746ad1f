"""Carriers: a handful of rows, or those of one group or two, that make a spike, which is theirs and nobody else's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.compare import DISCOVERY
from rollout_traces.analysis.noise import TINY
from rollout_traces.analysis.run_rows import ENOUGH_ROWS, RowMeasure, RunRows

HANDFUL, AN_EIGHTH = (3, 5), 8
"""Rows that are a handful: three, and where that is no more than one in eight of the step up to five ..."""
FEW = 0.01
"""... or this part of the step ..."""
FEW_GROUPS = 2
"""... or those of so few groups, up to half of the step, which are no habit of a part; what more rows do is a part's or all rows'."""
APART = 2.0
"""They lie so many times as far out as the next row."""
QUARTER = 0.25
"""Rows carry a step where a handful makes more than this of its summed absolute contributions, or of what those of a step usually are ..."""
RARE = 0.95
"""... and more than in this part of the steps: a handful may carry two or three of 40 ..."""
BEYOND = 12.0
"""... and lie this many median absolute deviations of all rows from their middle, which no tail of a healthy column reaches often ..."""
NORMAL = 2.439
"""... or so many of what the deviation that 9 in 10 rows do not exceed says for normal ones, 1.645 / 0.6745 of the median: of a column of two
heaps the larger alone has no spread."""
FEWEST_ROWS = 8
"""Rows that a step needs for some of them to be few."""
TAIL = 0.01
"""Part of the rows of the other steps, the furthest from the middle, that say how far out a row may lie by itself ..."""
FEWEST_OF_TAIL = 10
"""... at least so many."""
TWO_VALUED = 3
"""A column of fewer values is a share, and has no carriers."""


@dataclass(frozen=True, eq=False)
class Handful:
    """The rows that carry a column at some steps.

    Attributes:
        rows: int [K], positions of the rows.
        log_p: place of a step -> log of the chance that as many rows lie as far out at any step, by the tail of all others.
    """

    rows: np.ndarray
    log_p: Mapping[int, float]


def carried_by(rows: RunRows, measure: RowMeasure, values: np.ndarray) -> Handful:
    """The rows that carry a number at a step, to be set aside before parts are looked at.

    Args:
        rows: the rollouts.
        measure: a number of them.
        values: float [N], that number, comparable between steps.
    """
    nothing = Handful(np.empty(0, np.int64), {})
    if measure.name.statistic != "mean" or (there := np.isfinite(values)).sum() < FEWEST_ROWS:
        return nothing
    own = values if there.all() else values[there]
    seen = own[:: -(-len(own) // ENOUGH_ROWS)]
    middle = np.median(seen)
    half, most = np.quantile(np.abs(seen - middle), [0.5, 0.9], method="higher")
    usual = max(half, most / NORMAL)
    furthest = max(own.max() - middle, middle - own.min())
    if usual <= 0 or furthest <= BEYOND * usual or len(np.unique(own[: 1 << 12])) < TWO_VALUED:
        return nothing
    known, size = np.flatnonzero(there), np.abs(own - middle)
    at = rows.at[known]
    n = np.bincount(at, minlength=len(rows.steps))
    total = np.maximum(np.bincount(at, size, len(rows.steps)), n * usual)
    order = np.lexsort((-size, at))
    starts = np.cumsum(n) - n
    place = np.empty(len(at), np.int64)
    place[order] = np.arange(len(at)) - starts[at[order]]
    few = np.maximum(np.clip(n // AN_EIGHTH, *HANDFUL), (FEW * n).astype(np.int64))
    top = np.bincount(at, np.where(place < few[at], size, 0.0), len(n)) / np.maximum(total, TINY)
    crowded = (n >= FEWEST_ROWS) & (top > QUARTER) & (top >= np.quantile(top[n > 0], RARE, method="lower"))
    chosen, group = np.zeros(len(at), bool), rows.unit[known]
    for step in np.flatnonzero(crowded).tolist():
        far = order[starts[step] : starts[step] + n[step] // 2 + 1]
        most = max(int(few[step]), _of_few_groups(group[far]))
        far = far[: _handful(size[far[: most + 1]])]
        chosen[far[size[far] > BEYOND * usual]] = True
    if not chosen.any():
        return nothing
    others = np.sort(size[~chosen])[::-1][: max(FEWEST_OF_TAIL, int(TAIL * len(size))) + 1]
    log_p = {
        step: _beyond_tail(_furthest(size[here], group[here]), others, len(rows.steps))
        for step in np.unique(at[chosen]).tolist()
        for here in [np.flatnonzero(chosen & (at == step))]
    }
    log_p = {step: p for step, p in log_p.items() if p <= np.log(DISCOVERY)}
    return Handful(known[chosen & np.isin(at, list(log_p))], log_p)


def _handful(size: np.ndarray) -> int:
    """Counts the furthest rows of a step that lie apart from all others; 0 where none are, or more than are given.

    Args:
        size: float [K + 1], their distances and that of the next, the largest first.
    """
    with np.errstate(over="ignore"):
        apart = size[:-1] / np.maximum(size[1:], TINY)
    return int(apart.argmax()) + 1 if len(apart) and apart.max() >= APART else 0


def _of_few_groups(group: np.ndarray) -> int:
    """Counts the first rows, of groups int [K], that are of few groups."""
    is_first = np.zeros(len(group), bool)
    is_first[np.unique(group, return_index=True)[1]] = True
    return int((np.cumsum(is_first) <= FEW_GROUPS).sum())


def _furthest(size: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The largest distance of each group, from the smallest on: rows of one group lie far out together.

    Args:
        size: float [K], distances of rows.
        group: int [K], theirs.
    """
    _, place = np.unique(group, return_inverse=True)
    furthest = np.zeros(int(place.max()) + 1)
    np.maximum.at(furthest, place, size)
    return np.sort(furthest)


def _beyond_tail(far: np.ndarray, tail: np.ndarray, n_steps: int) -> float:
    """Log of the chance that at any step so many groups lie as far out, where the tail is a power's (Hill 1975).

    Args:
        far: float [K], distances of the groups of a step, from the smallest on.
        tail: float [M], the largest distances of others, the largest first; those of rows at the middle itself are no tail.
        n_steps: steps of the run.
    """
    tail = tail[tail > 0]
    if len(tail) <= 1:
        return 0.0
    at_least, m = tail[-1], len(tail) - 1
    slope = float(np.log(tail[:-1] / at_least).mean())
    if slope <= 0:  # all at one distance, as where rewards have a few values
        return -np.inf if far[-1] > at_least else 0.0
    log_rate = np.log(m / n_steps) - np.log(far / at_least) / slope
    several = np.arange(len(far), 0, -1)
    chance = several * log_rate - np.asarray([math.lgamma(k + 1) for k in several])
    return min(float(chance.min() + np.log(n_steps)), 0.0)
