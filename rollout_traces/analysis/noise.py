"""How much a series moves by itself: the spread between its steps, how long a disturbance lasts, and its tails."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rollout_traces.analysis.student import log_tail, quartile

LAGS = (1, 4, 7)
"""Steps between the values whose differences are looked at: neighbours, and two at which a short memory is nearly over."""
DEVIATION = 1.4826
"""A standard deviation in median absolute deviations, for a normal distribution."""
CLIPPED = 3.5
"""Differences beyond so many standard deviations are movements or outliers, and count as this many."""
CLIPPED_LOSS = 1.01
"""What the variance of a normal distribution loses by that clipping, made good."""
LONGEST_MEMORY = 0.9
"""The correlation of two neighbours is taken as at most this, else nothing could ever be seen."""
SPREAD_ERROR = 1.0
"""Standard error of a variance times the root of the number of steps: what may be chance is not held against the groups."""
TINY = np.finfo(float).tiny
FREEDOMS = (3.0, 4.0, 6.0, 10.0, 20.0, 60.0)
"""Degrees of freedom of Student's t among which the tails of a series are chosen."""
NEIGHBOURS = 7
"""Steps whose median a value is compared with: more than twice as many as a spike has."""
REACH = 4.0
"""Errors that a value may lie from that median before it counts for a level; of a normal one in 16,000 does."""
OUTERMOST = 4
"""Values that may be a movement, which says nothing of the tails: two steps and their neighbours."""
SMALLEST_ERROR = 1e-6
"""Part of a series' own size below which an error is rounding."""
CONSTANT = 0.02
"""A series that hardly ever moves by itself has as error this part of its spread ..."""


@dataclass(frozen=True, eq=False)
class Noise:
    """The noise of S series over T steps.

    Attributes:
        variance: float [S, T], of each value; infinite where there is none.
        memory: float [S], correlation of neighbours.
        freedom: float [S], degrees of freedom of the tails.
        clipped: float [S, T], the values with what lies far from all of its neighbours drawn in: what spikes cannot bend.
    """

    variance: np.ndarray
    memory: np.ndarray
    freedom: np.ndarray
    clipped: np.ndarray

    def at(self, series: np.ndarray) -> Noise:
        """Of some of the series."""
        return Noise(self.variance[series], self.memory[series], self.freedom[series], self.clipped[series])


def noise_of(
    values: np.ndarray, errors: np.ndarray, moved: np.ndarray | None = None, *, lags: tuple[int, ...] = LAGS
) -> Noise:
    """Estimates noise from differences of neighbours, which a change of level touches once.

    Args:
        values: float [S, T], NaN where there is none.
        errors: float [S, T], variance of each value that is known from its groups; 0 where it is not known.
        moved: float [S, T], what it did that is no noise; nothing by default.
        lags: steps between the values whose differences are looked at; of neighbours alone, nothing is known of memory.
    """
    given = values, errors
    order = in_a_row(values)
    moved = np.zeros_like(values) if moved is None else moved
    values, errors, moved = (np.take_along_axis(each, order, axis=1) for each in (values, errors, moved))
    y = values - moved
    n = np.isfinite(y).sum(axis=1)
    known = np.where(np.isfinite(y), np.nan_to_num(errors), np.nan)
    own = _median(known)
    spreads = np.stack([_spread(y, lag) for lag in lags])
    further = spreads[1:] if len(lags) > 1 else spreads
    level = np.nan_to_num(np.where(np.isfinite(further), further, spreads[:1])).mean(axis=0)
    level = np.where(np.isfinite(level), np.maximum(level, spreads[0]), 0.0)
    scale = np.sqrt(_median((y - _median(y)[:, None]) ** 2)) + np.abs(_median(y)) * SMALLEST_ERROR
    with np.errstate(invalid="ignore", divide="ignore"):
        root = np.sqrt(np.maximum(n, 1.0))
        memory = 1 - np.nan_to_num(spreads[0] / level, nan=1.0)
        between = np.where(own > 0, level - own * (1 + SPREAD_ERROR / root), level)
    between = np.maximum(between, 0.0)
    memory = np.where((n > 2 * LAGS[-1]) & (len(lags) > 1), np.clip(memory, 0.0, LONGEST_MEMORY), 0.0)
    memory = np.where(own > 0, np.minimum(memory, between / np.maximum(between + own, TINY)), memory)
    floor = np.where(own > 0, own * CONSTANT, (CONSTANT * scale) ** 2)
    largest = np.max(np.abs(values), axis=1, where=np.isfinite(values), initial=0.0)
    floor = np.maximum(floor, np.where(largest > 0, (SMALLEST_ERROR * largest) ** 2, 1.0))
    variance = np.maximum(np.nan_to_num(errors) + between[:, None], floor[:, None])
    freedom = _freedom(y, np.where(np.isfinite(values), variance, np.inf))
    values, errors = given
    variance = np.maximum(np.nan_to_num(errors) + between[:, None], floor[:, None])
    variance = np.where(np.isfinite(values), variance, np.inf)
    return Noise(variance, memory, freedom, clipped(values, variance))


def in_a_row(values: np.ndarray) -> np.ndarray:
    """int [S, T]: the places of what is known, one after the other, then those of what is not.

    Args:
        values: float [S, T], NaN where there is none: a source that comes every third step has its own neighbours.
    """
    return np.argsort(~np.isfinite(values), axis=1, kind="stable")


def clipped(values: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """float [S, T]: values at most `REACH` errors from the median of their neighbours.

    Args:
        values: float [S, T], NaN where there is none.
        variance: float [S, T], of each.
    """
    there = np.isfinite(values)
    if not there.any() or values.shape[1] < NEIGHBOURS:
        return values
    order = in_a_row(values)
    packed = np.take_along_axis(values, order, axis=1)
    last = np.maximum(there.sum(axis=1) - 1, 0)[:, None]
    upto = np.minimum(np.arange(values.shape[1]), last)
    padded = np.pad(np.nan_to_num(np.take_along_axis(packed, upto, axis=1)), ((0, 0), (NEIGHBOURS // 2, NEIGHBOURS // 2)), mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS, axis=1)
    middle = np.empty_like(values)
    np.put_along_axis(middle, order, np.partition(around, NEIGHBOURS // 2, axis=-1)[..., NEIGHBOURS // 2], axis=1)
    reach = REACH * np.sqrt(np.where(np.isfinite(variance), variance, 0.0))
    return np.where(there, np.clip(values, middle - reach, middle + reach), np.nan)


def _median(values: np.ndarray) -> np.ndarray:
    import warnings

    if values.size and np.isfinite(values).all():
        return np.median(values, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nan_to_num(np.nanmedian(values, axis=1))


def _spread(y: np.ndarray, lag: int) -> np.ndarray:
    """float [S]: half the mean squared difference of values some steps apart, robustly; NaN where there are too few."""
    if y.shape[1] <= 2 * lag:
        return np.full(len(y), np.nan)
    differences = y[:, lag:] - y[:, :-lag]
    size = np.abs(differences)
    robust = DEVIATION * _median(size)
    plain = np.sqrt(np.nan_to_num(_mean(differences**2)))
    scale = np.where(robust > 0, robust, plain)
    clipped = np.minimum(size, CLIPPED * scale[:, None])
    return CLIPPED_LOSS * _mean(clipped**2) / 2


def _mean(values: np.ndarray) -> np.ndarray:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(values, axis=1)


def _freedom(y: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """float [S]: tails by maximum likelihood over `FREEDOMS`; of the furthest values only that they are far is used.

    A value is compared with the mean of its neighbours, so that a level is none of the tails.
    """
    if y.shape[1] <= 2 * OUTERMOST:
        return np.full(len(y), FREEDOMS[-1])
    middle = (y[:, :-2] + y[:, 2:]) / 2
    residual = (y[:, 1:-1] - middle) / np.sqrt(variance[:, 1:-1] + variance[:, :-2] / 2)
    size = np.sort(np.abs(np.nan_to_num(residual)), axis=1)
    inner, edge = size[:, :-OUTERMOST], size[:, -OUTERMOST]
    scale = np.maximum(np.median(inner, axis=1), SMALLEST_ERROR)
    shapes = np.asarray([_shape(nu) for nu in FREEDOMS])
    factors = shapes[:, :1] / scale
    beyond = log_tail(edge * factors, np.asarray(FREEDOMS)[:, None])
    likelihoods = []
    for nu, factor, constant, further in zip(FREEDOMS, factors, shapes[:, 1], beyond, strict=True):
        squares = np.log1p((inner * factor[:, None]) ** 2 / nu).sum(axis=1)
        likelihoods.append(
            inner.shape[1] * (constant + np.log(factor)) - (nu + 1) / 2 * squares + OUTERMOST * further
        )
    return np.asarray(FREEDOMS)[np.argmax(likelihoods, axis=0)]


@lru_cache(len(FREEDOMS))
def _shape(nu: float) -> tuple[float, float]:
    """Of Student's t: the median of its absolute value, and the log of the constant of its density."""
    return quartile(nu), math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - math.log(nu * math.pi) / 2
