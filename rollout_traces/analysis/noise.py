"""Noise, how much a series moves by itself: the spread between its steps, how long a disturbance lasts, and its tails."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from statistics import NormalDist

import numpy as np

from rollout_traces.analysis.student import FREEDOMS, likelihood_of_tails, weighed_together

DEVIATION = 1 / NormalDist().inv_cdf(3 / 4)
"""A standard deviation in median absolute deviations, for a normal distribution."""
CLIPPED = 3.5
"""Differences beyond so many standard deviations are movements or outliers, and count as this many."""
OFTEN = 9
"""Differences that lie far out, of four spikes and a half: what leaves its level more often, as sources that take turns do, is no movement."""
FAR = 3.0
"""Differences lie far out from so many times that on, where most differ: no tail reaches it so often."""
CLIPPED_LOSS = 1.01
"""Makes good what that clipping takes from the variance of a normal distribution."""
TINY = np.finfo(float).tiny
NEIGHBOURS = 7
"""Steps whose median a value is compared with: more than twice as many as a spike has."""
REACH = 4.0
"""Errors that a value may lie from that median before it counts for a level; of a normal one in 16,000 does."""
OUTERMOST = 4
"""Values that may be a movement, which says nothing of the tails: two steps and their neighbours."""
SMALLEST_ERROR = 1e-6
"""Part of a series' own size below which an error is rounding."""
OF_LEVEL = 0.01
"""A setting that moves by this part of its level is nothing to speak of."""
CONSTANT = 0.02
"""A series that hardly ever moves by itself has as error this part of its spread ..."""


@dataclass(frozen=True, eq=False)
class Noise:
    """The noise of S series over T steps.

    Attributes:
        variance: float [S, T], of each value; infinite where there is none, and of a first one that lies far from those after it, as a
            step that compiles.
        memory: float [S], correlation of neighbours.
        freedom: float [S], degrees of freedom of the tails.
        clipped: float [S, T], the values with what lies far from all of its neighbours drawn in: what spikes cannot bend.
        prior: float [S, G], log of how likely each noise of the grid was thought before the series was looked at.
    """

    variance: np.ndarray
    memory: np.ndarray
    freedom: np.ndarray
    clipped: np.ndarray
    prior: np.ndarray

    def at(self, series: np.ndarray) -> Noise:
        """Of some of the series."""
        return Noise(*(getattr(self, each.name)[series] for each in fields(self)))


def crude(values: np.ndarray, errors: np.ndarray) -> Noise:
    """Noise from the differences of neighbours alone, without memory: what a movement hardly touches.

    Args:
        values: float [S, T], NaN where there is none.
        errors: float [S, T], variance of each value that is known from its groups; 0 where it is not known.
    """
    packed = np.take_along_axis(values, in_a_row(values), axis=1)
    own = median(np.where(np.isfinite(values), np.nan_to_num(errors), np.nan))
    of_groups = (np.nan_to_num(errors) > 0).any(axis=1)
    between = np.maximum(np.nan_to_num(_spread(packed, own, of_groups)) - own, 0.0)
    variance = _variance(values, errors, own, between)
    zero = np.zeros(len(values))
    prior = np.full((len(values), len(OF_GROUPS)), -np.log(len(OF_GROUPS)))
    return Noise(variance, zero, np.full(len(values), FREEDOMS[-1]), clipped(values, variance), prior)


@dataclass(frozen=True, eq=False)
class Fits:
    """S series under each of G noises.

    Attributes:
        likely: float [S, G], log likelihood; minus infinity where a noise is not tried.
        left: float [S, G], log likelihood of what the basis leaves.
        between: float [S, G], variance of what steps differ by.
        memory: float [S, G], correlation of neighbours.
        prior: float [S, G], log of how likely each noise is thought before.
        first: what the differences of neighbours alone say.
    """

    likely: np.ndarray
    left: np.ndarray
    between: np.ndarray
    memory: np.ndarray
    prior: np.ndarray
    first: Noise

    @property
    def weight(self) -> np.ndarray:
        """float [S, G]: how likely each noise is, of 1 in all."""
        score = self.left + self.prior
        weight = np.exp(score - score.max(axis=1, keepdims=True))
        return weight / weight.sum(axis=1, keepdims=True)

    @property
    def remembers(self) -> np.ndarray:
        """float [S]: how likely the noise lasts."""
        return (self.weight * (self.memory > 0)).sum(axis=1)

    def put(self, series: np.ndarray, others: Fits, at: np.ndarray) -> Fits:
        """The same with some of the series as they are `at` places of others."""
        found = {name: getattr(self, name).copy() for name in ("likely", "left", "between", "memory")}
        for name, values in found.items():
            values[series] = getattr(others, name)[at]
        return replace(self, **found)


def fits_of(values: np.ndarray, errors: np.ndarray, basis: np.ndarray) -> Fits:
    """Series under each noise of `OF_GROUPS`, or of `OF_LOGGED` where nothing is known of the scale.

    A value is its basis, its groups' error, and what steps differ by, which is autoregressive of first order.

    Args:
        values: float [S, T], NaN where there is none.
        errors: float [S, T], variance of each value that is known from its groups; 0 where it is not known.
        basis: float [S, K, T], what a series did that is no noise.
    """
    first = crude(values, errors)
    level = np.nanmedian(np.where(np.isfinite(values), first.variance, np.nan), axis=1)
    own = median(np.where(np.isfinite(values), np.nan_to_num(errors), np.nan))
    known = own > 0
    shape = len(values), len(OF_GROUPS)
    likely, left, prior = (np.full(shape, -np.inf) for _ in range(3))
    between, memory = np.zeros(shape), np.zeros(shape)
    for members, grid in ((np.flatnonzero(known), OF_GROUPS), (np.flatnonzero(~known), OF_LOGGED)):
        is_free = grid is OF_LOGGED
        alone, spread, slow = np.asarray(grid).T[..., None]
        for start in range(0, len(members), AT_ONCE):
            at = members[start : start + AT_ONCE]
            scale = np.ones(len(at)) if is_free else level[at]
            shared, own_of = spread * scale, alone * scale
            fits = _fit(
                first.clipped[at], np.nan_to_num(errors[at]), own_of, shared, slow, basis[at], is_free
            )
            whole = shared + (own_of if is_free else own[at])
            if values.shape[1] < FEWEST_OF_MEMORY:
                for each in fits[:2]:
                    each[slow[:, 0] > 0] = -np.inf
            here = at, slice(len(grid))
            likely[here], left[here], squares = (each.T for each in fits)
            between[here] = squares * (whole if is_free else shared).T
            memory[here] = (slow * shared / whole).T
            rarer = np.ones(len(grid)) if is_free else RARER ** np.searchsorted(MEMORIES, slow[:, 0])
            prior[here] = np.log(rarer / rarer.sum())
    return Fits(likely, left, between, memory, prior, first)


def noise_of(values: np.ndarray, errors: np.ndarray, fits: Fits) -> tuple[Noise, np.ndarray]:
    """The noise that the likelihood of a series says, averaged over those that were tried; and the log of that likelihood.

    Args:
        values, errors: as for `fits_of`.
        fits: its answer.
    """
    first = fits.first
    own = median(np.where(np.isfinite(values), np.nan_to_num(errors), np.nan))
    known = own > 0
    between, memory = ((fits.weight * each).sum(axis=1) for each in (fits.between, fits.memory))
    score = fits.likely + fits.prior
    peak = score.max(axis=1)
    likelihood = peak + np.log(np.exp(score - peak[:, None]).sum(axis=1))
    variance = _variance(values, errors, own, between)
    still = ~known & is_setting(values)
    variance[still], memory[still] = first.variance[still], 0.0
    uneven = ~known & ~still
    new = 1 - memory[uneven, None]
    usual = new * (new + 2) / 2 * variance[uneven]  # of what the middle of its neighbours leaves of a step
    more = _around(values[uneven]) / np.maximum(usual, TINY)
    variance[uneven] *= np.where(more > UNEVEN, more, 1.0)
    drawn_in = clipped(values, variance)
    begins = np.arange(len(values)), in_a_row(values)[:, 0]
    variance[begins] = np.where(drawn_in[begins] == values[begins], variance[begins], np.inf)
    return Noise(variance, memory, first.freedom, drawn_in, fits.prior), likelihood


UNEVEN = 2.0
"""Times the usual variance that a number has around a step where that is no chance of so few steps: at first a distance from where a policy began may be noise alone, and grows later."""
AROUND = NEIGHBOURS**2
"""Steps around one that say how much neighbours differ there."""


def _around(values: np.ndarray) -> np.ndarray:
    """float [S, T]: the variance around each step of what the middle of its neighbours leaves, robustly; 0 in a series of fewer steps.

    Args:
        values: float [S, T], NaN where there is none.
    """
    found = np.zeros(values.shape)
    for i in np.flatnonzero(np.isfinite(values).sum(axis=1) > AROUND):
        there = np.isfinite(values[i])
        bends = np.diff(np.pad(values[i, there], 1, mode="reflect"), 2) / 2
        found[i, there] = (DEVIATION * of_neighbours(np.abs(bends), AROUND)) ** 2
    return found


def of_neighbours(values: np.ndarray, width: int = NEIGHBOURS) -> np.ndarray:
    """float [N]: the median of the values around each, float [N], and itself; `width` is odd."""
    padded = np.pad(values, width // 2, mode="reflect")
    around = np.lib.stride_tricks.sliding_window_view(padded, width)
    return np.asarray(np.partition(around, width // 2, axis=1)[:, width // 2])


def is_setting(values: np.ndarray) -> np.ndarray:
    """bool [S]: whether a series mostly stays as it is from one step to the next.

    Args:
        values: float [S, T], NaN where there is none.
    """
    return median(np.abs(np.diff(np.take_along_axis(values, in_a_row(values), axis=1), axis=1))) == 0


def is_occasional(values_T: np.ndarray) -> bool:
    """Tells whether a number mostly stays as it is and leaves that for a few steps at times, as the share of a step's few rows that are cut off: no setting.

    Args:
        values_T: float [T], NaN behind the last one.
    """
    known = values_T[np.isfinite(values_T)]
    usual = float(np.median(known)) if len(known) else 0.0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (known != usual).astype(int), [0]])))
    starts, stops = edges[::2], edges[1::2]
    passing = (stops - starts <= MOST_AWAY) & (starts > 0) & (stops < len(known))
    if not passing.any():
        return False
    return usual == 0 or int(passing.sum()) > 1 or bool((known[starts[passing]] == 0).any())


MOST_AWAY = 3
"""Steps for which what occurs at times is there; what lasts longer was set."""


FEWEST_OF_MEMORY = 12
"""Steps of a series, of fewer of which nobody can tell noise that lasts from a movement."""
SPREADS = (0.0, *np.geomspace(1 / 6, 6, 5).tolist())
"""Variance of what steps differ by, in variances of what neighbours do, that are weighed against each other."""
MEMORIES = (0.0, 0.4, 0.7, 0.9)
"""Correlations of what neighbours differ by, that are weighed against each other."""
RARER = 0.5
"""How much rarer each longer memory of what groups' means differ by is than the one before it."""
SHARED = (0.5, 1.0)
"""Parts of a logged number's variance that have a memory, that are weighed against each other."""
OF_GROUPS = [(0.0, spread, m) for spread in SPREADS for m in (MEMORIES if spread else MEMORIES[:1])]
OF_LOGGED = [(1 - part, part, m) for part in SHARED for m in (MEMORIES if part == 1 else MEMORIES[1:])]
"""Noises that are weighed: variance of a value alone beside its groups', variance of what steps differ by, its memory."""
AT_ONCE = 1 << 7
"""Series that are filtered at once, so that what is in between stays in the processor's cache."""
RIDGE = 1e-9
"""Part of a basis that is added to its own squares, so that what is nearly the same twice can be solved."""


def _fit(
    y: np.ndarray,
    error: np.ndarray,
    alone: np.ndarray,
    between: np.ndarray,
    memory: np.ndarray,
    basis: np.ndarray,
    is_free: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of S series under each of G noises, float [G, S]: log likelihood, that of what the basis leaves, and the scale of the noise.

    Args:
        y: float [S, T], NaN where there is none.
        error: float [S, T], variance of each value by its groups.
        alone: float [G, S], further variance that neighbours do not share.
        between: float [G, S], variance of what steps differ by.
        memory: float [G, 1], correlation of it from one step to the next.
        basis: float [S, K, T].
        is_free: whether the scale of the variance is free.
    """
    there = np.isfinite(y)
    values = np.concatenate([basis, np.where(there, y, 0.0)[:, None]], axis=1)
    gram, logs = _innovations(values, there, error, alone, between, memory)
    own, right, total = gram[..., :-1, :-1], gram[..., :-1, -1:], gram[..., -1, -1]
    size = np.maximum(np.trace(own, axis1=-2, axis2=-1), TINY)
    own = own + RIDGE * size[..., None, None] * np.eye(own.shape[-1])
    squares = np.maximum(total - (right * np.linalg.solve(own, right)).sum(axis=(-2, -1)), TINY)
    n = there.sum(axis=1)
    left = np.maximum(n - basis.shape[1], 1)
    volume = np.linalg.slogdet(own)[1] / 2
    if is_free:
        scale = squares / left
        return logs - n / 2 * np.log(squares), logs - left / 2 * np.log(squares) - volume, scale
    return logs - squares / 2, logs - squares / 2 - volume, np.ones_like(logs)


def _innovations(
    values: np.ndarray,
    there: np.ndarray,
    error: np.ndarray,
    alone: np.ndarray,
    between: np.ndarray,
    memory: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Products, over all steps, of what each step has that those before it do not tell, of size 1 (Kalman 1960), and half the log of the precisions, summed.

    Args:
        values: float [S, K, T].
        there: bool [S, T], where there are values.
        error, alone, between, memory: as for `_fit`.

    Returns:
        float [G, S, K, K]; float [G, S].
    """
    steps = np.ascontiguousarray(np.moveaxis(values, 2, 0).swapaxes(1, 2))[:, :, None]
    weight, own = there.T.astype(float), np.ascontiguousarray(error.T)
    n_columns, shape = steps.shape[1], between.shape
    expected, spread, fresh = np.zeros((n_columns, *shape)), between, between * (1 - memory**2)
    products, logs = np.zeros((n_columns, n_columns, *shape)), np.zeros(shape)
    for t in range(len(steps)):
        precision = weight[t] / np.maximum(spread + own[t] + alone, TINY)
        gain = spread * precision
        off = steps[t] - expected
        products += (precision * off)[:, None] * off
        expected = memory * (expected + gain * off)
        spread = memory**2 * spread * (1 - gain) + fresh
        logs += np.log(np.where(precision > 0, precision, 1.0)) / 2
    return np.moveaxis(products, (0, 1), (2, 3)), logs


def _variance(values: np.ndarray, errors: np.ndarray, own: np.ndarray, between: np.ndarray) -> np.ndarray:
    """float [S, T]: of each value, at least what a series that hardly ever moves may have; infinite where there is none."""
    middle = median(values)
    scale = CONSTANT * np.sqrt(median((values - middle[:, None]) ** 2)) + OF_LEVEL * np.abs(middle)
    floor = np.where(own > 0, own * CONSTANT, scale**2)
    largest = np.max(np.abs(values), axis=1, where=np.isfinite(values), initial=0.0)
    unknown = np.where(own > 0, 0.0, 1.0)  # always 0, and nothing else says how sure that is
    floor = np.maximum(floor, np.where(largest > 0, (SMALLEST_ERROR * largest) ** 2, unknown))
    variance = np.maximum(np.nan_to_num(errors) + between[:, None], floor[:, None])
    return np.where(np.isfinite(values), variance, np.inf)


def _fitted(values: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """float [S, T]: least squares over the steps that there are."""
    there = np.isfinite(values)
    middle = np.where(there, values, 0.0).sum(axis=1, keepdims=True) / np.maximum(
        there.sum(axis=1, keepdims=True), 1
    )
    centre = np.where(there, values - middle, 0.0)
    masked = np.where(there[:, None], basis, 0.0)
    gram = masked @ np.swapaxes(masked, 1, 2) + np.eye(basis.shape[1]) * RIDGE
    right = masked @ centre[..., None]
    return middle + (np.swapaxes(basis, 1, 2) @ np.linalg.solve(gram, right))[..., 0]


def in_a_row(values: np.ndarray) -> np.ndarray:
    """int [S, T]: the places of what is known, one after the other, then those of what is not.

    Args:
        values: float [S, T], NaN where there is none: a source that comes every third step has its own neighbours.
    """
    there = np.isfinite(values)
    if there.all():
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.argsort(~there, axis=1, kind="stable")


def clipped(values: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """float [S, T]: values at most `REACH` errors from the median of their neighbours; the newest from that of those before it. A first step that the second one is unlike, as one that compiles, is as those after it.

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
    at = np.arange(values.shape[1])
    mirrored = np.maximum(np.where(at <= last, at, 2 * last - at), 0)
    half = NEIGHBOURS // 2
    known = np.nan_to_num(np.take_along_axis(packed, mirrored, axis=1))
    mirrored_end = np.pad(known, ((0, 0), (0, half)), mode="reflect")
    padded = np.pad(mirrored_end, ((0, 0), (half, 0)), mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS, axis=1)
    middle = np.empty_like(values)
    np.put_along_axis(middle, order, np.partition(around, half, axis=-1)[..., half], axis=1)
    reach = REACH * np.sqrt(np.where(np.isfinite(variance), variance, 0.0))
    opening = np.median(mirrored_end[:, :NEIGHBOURS], axis=1)
    rows, (first, second) = np.arange(len(values)), order[:, :2].T
    found = np.where(there, np.clip(values, middle - reach, middle + reach), np.nan)
    alone = np.abs(values[rows, second] - opening) <= reach[rows, second]
    alone &= np.abs(values[rows, first] - opening) > reach[rows, first]
    found[rows[alone], first[alone]] = opening[alone]
    return found


def median(values: np.ndarray) -> np.ndarray:
    """float [S]: of the values that there are in each series, float [S, T]; 0 where there are none."""
    if values.size and np.isfinite(values).all():
        return np.median(values, axis=1)
    return np.nan_to_num(_of_known(np.nanmedian, values))


def _of_known(figure: Callable[..., np.ndarray], values: np.ndarray) -> np.ndarray:
    """float [S]: a figure of the values that there are in each series, NaN where there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return figure(values, axis=1)


def _spread(y: np.ndarray, own: np.ndarray, of_groups: np.ndarray) -> np.ndarray:
    """float [S]: half the mean squared difference of neighbours, robustly; NaN where there are too few.

    Where most differences are 0, it is a setting that was changed at times; or, of groups, a share that is rare, of which a
    difference counts up to what its groups, whose variance is `own`, float [S], may make; or, where no groups say
    anything, bool [S], something that occurs at times, of which nothing but its usual size is known. Where many are far out, all count.
    """
    if y.shape[1] <= 2:
        return np.full(len(y), np.nan)
    size = np.abs(np.diff(y, axis=1))
    robust = DEVIATION * median(size)
    plain = np.sqrt(np.nan_to_num(_of_known(np.nanmean, size**2)))
    scale = np.where(robust > 0, robust, np.minimum(plain, CLIPPED * np.sqrt(own)))
    far = size > CLIPPED * np.where(robust > 0, FAR, 1.0)[:, None] * scale[:, None]
    plainly = far.sum(axis=1, keepdims=True) > OFTEN
    usual = CLIPPED_LOSS * _of_known(
        np.nanmean, np.minimum(size, np.where(plainly, np.inf, CLIPPED * scale[:, None])) ** 2
    )
    at_times = [i for i in np.flatnonzero((robust == 0) & ~of_groups) if is_occasional(y[i])]
    usual[at_times] = _of_known(np.nanmean, np.where(size[at_times] > 0, size[at_times], np.nan) ** 2)
    return usual / 2


def tails_of(
    values: np.ndarray, variance: np.ndarray, basis: np.ndarray, of_groups: np.ndarray
) -> np.ndarray:
    """float [S]: degrees of freedom of the tails of series; the steps of a logged number alone hardly say them.

    The mean of 1 / freedom by the likelihood of `FREEDOMS`, where all series together say how often each occurs; of means
    over groups the likeliest.

    Args:
        values: float [S, T], NaN where there is none.
        variance: float [S, T], of each.
        basis: float [S, K, T], what a series did that is no noise.
        of_groups: bool [S], whether they are means over groups.
    """
    found = np.full(len(values), FREEDOMS[-1])
    moving = ~is_setting(values)
    if not moving.any():
        return found
    order = in_a_row(values[moving])
    left = values - _fitted(clipped(values, variance), basis)
    y, wide = (np.take_along_axis(each[moving], order, axis=1) for each in (left, variance))
    middle = (y[:, :-2] + y[:, 2:]) / 2
    residual = (y[:, 1:-1] - middle) / np.sqrt(wide[:, 1:-1] + wide[:, :-2] / 2)
    likely = likelihood_of_tails(np.abs(np.nan_to_num(residual)), OUTERMOST)
    choices = np.asarray(FREEDOMS)
    tails = choices[np.argmax(likely, axis=1)]
    pooled = ~of_groups[moving] & ~_is_counted(values[moving])
    tails[pooled] = 1 / (weighed_together(likely[pooled]) @ (1 / choices))
    found[moving] = tails
    return found


def _is_counted(values: np.ndarray) -> np.ndarray:
    """bool [S]: whether a series, float [S, T], only ever rises or only ever falls, as steps and samples that are counted: that has no noise whose tails could be told."""
    by = np.diff(np.take_along_axis(values, in_a_row(values), axis=1), axis=1)
    return np.asarray(~(by < 0).any(axis=1) | ~(by > 0).any(axis=1))
