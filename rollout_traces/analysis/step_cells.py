"""Sums of a measure over steps and the values of a column, and what each value did beside the others."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rollout_traces.analysis.curves import Part
from rollout_traces.analysis.run_rows import RunRows, distinct

SMOOTHED = 0.2
"""Part of the run over which the spread between groups is pooled, to each side ..."""
LEAST_SMOOTHED = 8
"""... and at least so many steps."""
LEAST_SPREAD = 0.3
"""Spread between groups around a step, of that of the run, at least: where a rare value was never seen it is not impossible."""
FEW_GROUPS = 4.0
"""Groups for which the variance of all rows stands, beside those that a value has."""
NEARLY_ALL = 0.9
"""Part of the rows that have others in their group, where values are compared inside groups."""
ALIKE = 1.25
"""Rollouts of a group are alike where a mean over groups has so many times the variance that it had if each row were a group of its own."""
HALF_A_ROW = 0.5
"""Rows that are added to those that have a value, so that a share that never occurred is not impossible."""
NORMAL_KURTOSIS = 3.0
"""Fourth moment of a normal distribution; the excess over it of Student's t of f degrees of freedom is 6 / (f - 4)."""
EXCESS_OF_T, KURTOSIS_ENDS, MOST_FREEDOM = 6.0, 4.0, 60.0


@dataclass(frozen=True, eq=False)
class CellSums:
    """A measure at every cell.

    Attributes:
        mean: float [V, T].
        variance: float [V, T], of it with groups as units.
        n: float [V, T], rows.
        tails: float [V], degrees of freedom of the tails of a mean.
        weighted: float [V, T], rows by their weight.
        apart: float [U], how far each unit is from its cell, times its rows.
        n_groups: float [V * T], groups.
        mass: float [V * T], the sum of the squares of their rows.
        fewer: float [V, T], the part of the variance that is for groups of fewer rows than usual.
    """

    mean: np.ndarray
    variance: np.ndarray
    n: np.ndarray
    tails: np.ndarray
    weighted: np.ndarray
    apart: np.ndarray
    n_groups: np.ndarray
    mass: np.ndarray
    fewer: np.ndarray


class StepCells:
    """Sums over the cells of a way to part the rows: a cell is a step and a value.

    Args:
        rows: the rows.
        column: the column that parts them; "" for none.
        whole: the cells of no column, whose units are these where each is of one value.
    """

    def __init__(self, rows: RunRows, column: str = "", whole: StepCells | None = None) -> None:
        codes, values = rows.parts[column] if column else (np.zeros(len(rows.at), np.int64), [""])
        self.n_steps, self.n_values = len(rows.steps), len(values)
        self.parts: list[Part] = [((column, value),) for value in values] if column else [()]
        self.known = np.flatnonzero(codes >= 0) if (codes < 0).any() else None
        at, unit, codes = (
            part if self.known is None else part[self.known] for part in (rows.at, rows.unit, codes)
        )
        key = unit * self.n_values + codes
        units, self.unit = distinct(key)
        self.n_units = len(units)
        self.value, self.at = units % self.n_values, np.empty(self.n_units, np.int64)
        self.at[self.unit] = at
        self.cell = self.value * self.n_steps + self.at
        self._of_all: tuple[np.ndarray, ...] = ()
        self._of_others: tuple[np.ndarray, ...] = ()
        self._units = whole if whole and self.known is None and self.n_units == whole.n_units else self
        self._summed: deque[tuple[Any, ...]] = deque(maxlen=3)
        self.whole = np.cumsum(np.diff(units // self.n_values, prepend=-1) > 0) - 1

    def sums(
        self, values: np.ndarray, weight: np.ndarray | None, within: float = 0.0, between: float = 0.0
    ) -> CellSums:
        """A measure at every cell.

        Args:
            values: float [N], NaN where unknown.
            weight: float [N]; None where all rows count alike.
            within: variance of the rows of a group: a group of which a step has fewer rows than usual is less sure.
            between: variance of all rows.
        """
        n_u, s_u = self.of_units(values, weight)
        size, shape = self.n_values * self.n_steps, (self.n_values, self.n_steps)
        n, n_groups, mass = self._counts(n_u)
        s = np.bincount(self.cell, s_u, size)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = s / n
        apart = s_u - np.nan_to_num(mean)[self.cell] * n_u
        squares = apart**2
        variance = self._variance(np.bincount(self.cell, squares, size), n_groups, mass, n, between)
        fewer = np.zeros(size)
        if weight is None:
            many = n_groups > 1
            usual = pooled(np.where(many, n, 0.0).reshape(shape), np.where(many, mass, 0.0).reshape(shape))
            with np.errstate(invalid="ignore", divide="ignore"):
                fewer = within * np.nan_to_num(np.maximum(1 / n - usual * mass / n**2, 0.0), posinf=0.0)
        weighted = n
        if weight is not None:
            counted = np.isfinite(values) & (weight > 0)
            n = np.bincount(self.cell, self.of_units(np.where(counted, 0.0, np.nan), None)[0], size)
        return CellSums(
            mean.reshape(shape),
            (np.nan_to_num(variance) + fewer).reshape(shape),
            n.reshape(shape),
            self._tails(squares, n_groups),
            weighted.reshape(shape),
            apart,
            n_groups,
            mass,
            fewer.reshape(shape),
        )

    def _variance(
        self, squares: np.ndarray, n_groups: np.ndarray, mass: np.ndarray, n: np.ndarray, between: float
    ) -> np.ndarray:
        """float [V * T]: of a mean, from the squares of its groups, their number, and the sums of their rows' squares and rows.

        Of a value that has hardly two groups at a step they say little: the variance of all rows stands for a few of them.
        """
        shape = (self.n_values, self.n_steps)
        many = n_groups > 1
        squares = np.where(many, squares * n_groups / np.maximum(n_groups - 1, 1), 0.0)
        few = (
            FEW_GROUPS * mass.reshape(shape).sum(axis=1) / np.maximum(n_groups.reshape(shape).sum(axis=1), 1)
        )
        spread = pooled(squares.reshape(shape), np.where(many, mass, 0.0).reshape(shape), few, between)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(n > 0, spread * mass / n**2, np.nan)

    def beside_the_rest(
        self, own: CellSums, between: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means less what the other values did at the same steps, as far as a value goes with them (analysis of covariance).

        Args:
            own: the measure.
            between: variance of all rows.

        Returns:
            values and their variances, float [V, T], and how far each value goes with the rest, float [V].
        """
        n = own.weighted
        known = n > 0
        moved = np.where(known, own.mean - usual_levels(own.mean, n), 0.0) * n
        rest_n = n.sum(axis=0) - n
        with np.errstate(invalid="ignore", divide="ignore"):
            rest = np.where(rest_n > 0, (moved.sum(axis=0) - moved) / rest_n, np.nan)
            less = n / rest_n
        control = goes_with(np.where(known, own.mean, np.nan), rest)
        used = control > 0
        if not used.any():
            return own.mean, own.variance, control
        values = np.where(used[:, None], own.mean - control[:, None] * rest, own.mean)
        less = control[:, None] * np.where(np.isfinite(less), less, 0.0)
        n_whole = int(self.whole[-1]) + 1
        of_group = np.bincount(self.whole, own.apart, n_whole)
        at_group = np.zeros(n_whole, np.int64)
        at_group[self.whole] = self.at
        everyone = less**2 * np.bincount(at_group, of_group**2, self.n_steps)
        taken = less.ravel()[self.cell]
        others = taken * of_group[self.whole]
        apart = own.apart * (1 + taken) - others
        size = self.n_values * self.n_steps
        squares = np.maximum(np.bincount(self.cell, apart**2 - others**2, size) + everyone.ravel(), 0.0)
        variance = self._variance(squares, own.n_groups, own.mass, n.ravel(), between).reshape(n.shape)
        variance = np.where(used[:, None], np.nan_to_num(variance) + own.fewer, own.variance)
        return values, variance, control

    def inside_groups(
        self, own: CellSums, values: np.ndarray, weight: np.ndarray | None, within: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Means less those of the other rows of the same groups, so that no prompt and nothing that is learned is in them; None where values hardly share groups, or groups are hardly alike.

        Of two values only their difference would be left, which does not say whose it is.

        Args:
            own: the measure.
            values, weight: as for `sums`.
            within: variance of the rows of a group.

        Returns:
            As `beside_the_rest`.
        """
        there = own.n > 0
        alike = float(np.median((own.variance * own.n)[there])) if there.any() else 0.0
        if self.n_values <= 2 or self._units is not self or alike < ALIKE * within:
            return None
        n_u, s_u = self.of_units(values, weight)
        rest_n, counts, n, mass, n_groups = self._others(n_u)
        both = counts > 0
        if n_u[both].sum() < NEARLY_ALL * n_u.sum():
            return None
        rest_s = np.bincount(self.whole, s_u)[self.whole] - s_u
        with np.errstate(invalid="ignore", divide="ignore"):
            apart = np.where(both, counts * (s_u / n_u - rest_s / rest_n), 0.0)
            mean = np.bincount(self.cell, apart, len(n)) / n
        apart -= np.nan_to_num(mean)[self.cell] * counts
        squares = np.bincount(self.cell, apart**2, len(n))
        expected = within * float(both.sum()) / max(float(counts.sum()), TINY)
        shape = self.n_values, self.n_steps
        variance = self._variance(squares, n_groups, mass, n, expected).reshape(shape)
        return mean.reshape(shape), np.nan_to_num(variance), np.ones(self.n_values)

    def _others(self, n_u: np.ndarray) -> tuple[np.ndarray, ...]:
        """Rows of the other units of each unit's group, and how many rows' worth both are compared with, float [U] each; of these, float [V * T] each, their sum, that of their squares, and how many there are; kept where every row counts."""
        if n_u is self.n_rows and self._of_others:
            return self._of_others
        rest = np.bincount(self.whole, n_u)[self.whole] - n_u
        counts = n_u * rest / np.maximum(n_u + rest, TINY)
        size = self.n_values * self.n_steps
        found = (
            rest,
            counts,
            *(np.bincount(self.cell, each, size) for each in (counts, counts**2, counts > 0)),
        )
        if n_u is self.n_rows:
            self._of_others = found
        return found

    def means(self, values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
        """float [V, T]: means alone; arguments as for `sums`."""
        n_u, s_u = self.of_units(values, weight)
        n, s = self._counts(n_u)[0], np.bincount(self.cell, s_u, self.n_values * self.n_steps)
        with np.errstate(invalid="ignore", divide="ignore"):
            return (s / n).reshape(self.n_values, self.n_steps)

    def of_units(self, values: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """float [U] each: rows that know a value, by their weight, and the sum of their values; the last three are kept."""
        if self._units is not self:
            return self._units.of_units(values, weight)
        for of, by, n, total in self._summed:
            if of is values and by is weight:
                return n, total
        n, total = self._summed_over_units(values, weight)
        self._summed.append((values, weight, n, total))
        return n, total

    def _summed_over_units(
        self, values: np.ndarray, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if self.known is not None:
            values, weight = values[self.known], None if weight is None else weight[self.known]
        if weight is None and np.isfinite(total := np.bincount(self.unit, values, self.n_units)).all():
            return self.n_rows, total
        there = np.isfinite(values)
        w = there.astype(float) if weight is None else np.where(there, weight, 0.0)
        plain = np.where(there, values, 0.0) * w
        return np.bincount(self.unit, w, self.n_units), np.bincount(self.unit, plain, self.n_units)

    @cached_property
    def n_rows(self) -> np.ndarray:
        """float [U]: rows of each unit."""
        if self._units is not self:
            return self._units.n_rows
        return np.bincount(self.unit, minlength=self.n_units).astype(float)

    @cached_property
    def n_units_of_value(self) -> np.ndarray:
        """int [V]: units of each value, at least 1."""
        return np.maximum(np.bincount(self.value, minlength=self.n_values), 1)

    def _counts(self, n_u: np.ndarray) -> tuple[np.ndarray, ...]:
        """float [V * T] each: rows, groups and the sum of the squares of their rows; kept where every row counts."""
        if n_u is self.n_rows and self._of_all:
            return self._of_all
        size = self.n_values * self.n_steps
        found = tuple(np.bincount(self.cell, each, size) for each in (n_u, n_u > 0, n_u**2))
        if n_u is self.n_rows:
            self._of_all = found
        return found

    def _tails(self, squares: np.ndarray, n_groups: np.ndarray) -> np.ndarray:
        """float [V]: degrees of freedom of Student's t with the kurtosis that a mean of so many groups has."""
        many = self.n_units_of_value
        second, fourth = (
            np.bincount(self.value, each, self.n_values) / many for each in (squares, squares**2)
        )
        excess = fourth / np.maximum(second**2, np.finfo(float).tiny) - NORMAL_KURTOSIS
        groups = many / np.maximum((n_groups.reshape(self.n_values, -1) > 0).sum(axis=1), 1)
        return KURTOSIS_ENDS + EXCESS_OF_T * groups / np.maximum(excess, EXCESS_OF_T / MOST_FREEDOM)


def usual_levels(mean_V_T: np.ndarray, n_V_T: np.ndarray) -> np.ndarray:
    """float [V, 1]: the level of each value beside what all values share at a step: of one that is there at few, it is not those steps'.

    An additive model of values and steps, fitted in turns.

    Args:
        mean_V_T: float, NaN where there is none.
        n_V_T: rows, 0 where there are none.
    """
    known = n_V_T > 0
    mean, shared = np.where(known, mean_V_T, 0.0), np.zeros(n_V_T.shape[1])
    of_value, of_step = (np.maximum(n_V_T.sum(axis=axis), TINY) for axis in (1, 0))
    for _ in range(TURNS):
        usual = ((mean - shared) * n_V_T).sum(axis=1) / of_value
        shared = ((mean - usual[:, None]) * n_V_T).sum(axis=0) / of_step
    return usual[:, None]


TINY = np.finfo(float).tiny
TURNS = 5
"""Rounds of the fit; what one leaves is the part of its step's rows that a value has, to this power."""


def goes_with(own_V_T: np.ndarray, rest_V_T: np.ndarray) -> np.ndarray:
    """float [V]: how far each of V series goes up and down with another; 0 where that is little or is not known.

    By regression of what they differ by over some steps, without the largest differences: a movement of one of them, which
    lasts or comes slowly, has hardly a part in it.

    Args:
        own_V_T: float [V, T], NaN where there is none.
        rest_V_T: the others.
    """
    found = np.zeros(len(own_V_T))
    for i, (own, rest) in enumerate(zip(own_V_T, rest_V_T, strict=True)):
        there = np.isfinite(own)
        both = there & np.isfinite(rest)
        if both.sum() < max(FEWEST_TOGETHER, TOGETHER * there.sum()):
            continue
        pair = np.stack([own[both], rest[both]])
        apart = pair[:, APART:] - pair[:, :-APART]
        apart -= np.median(apart, axis=1, keepdims=True)
        usual = np.abs(apart) <= FAR * np.median(np.abs(apart), axis=1, keepdims=True)
        x, y = apart[:, usual.all(axis=0)]
        squares = float(y @ y)
        slope = min(float(x @ y) / squares, 1.0) if squares > 0 else 0.0
        quieter = ((apart[0] - slope * apart[1]) ** 2).sum() < (apart[0] ** 2).sum()
        found[i] = slope if slope > LEAST_CONTROL and quieter else 0.0
    return found


FEWEST_TOGETHER = 12
"""Steps at which there are a value and the rest, at least, and ..."""
TOGETHER = 0.8
"""... of the steps of the value."""
APART = 5
"""Steps over which differences are taken: what lasts for a few steps is in them, and what lasts for many is in few."""
FAR = 4.0
"""Median absolute deviations of the differences from which on one is a movement's."""
LEAST_CONTROL = 0.2
"""Least control; a part that goes with the rest less is left alone."""


def pooled(
    squares: np.ndarray, mass: np.ndarray, few: np.ndarray | None = None, expected: float = 0.0
) -> np.ndarray:
    """float [V * T]: the spread between groups around each step: a policy that learns has more of it at times than at others.

    Args:
        squares, mass: float [V, T], sums whose ratio it is.
        few: float [V], mass with which ...
        expected: ... this spread stands beside the run's, and the run's beside that around each step.
    """
    beside = np.zeros((len(mass), 1)) if few is None else few[:, None]
    reach = max(LEAST_SMOOTHED, int(SMOOTHED * squares.shape[1]))
    top, bottom = _around(squares, reach), _around(mass, reach) + beside
    total = np.maximum(mass.sum(axis=1, keepdims=True) + beside, TINY)
    whole = (squares.sum(axis=1, keepdims=True) + beside * expected) / total
    local = np.where(bottom > 0, (top + beside * whole) / np.where(bottom > 0, bottom, 1.0), whole)
    return np.maximum(local, LEAST_SPREAD * whole).ravel()


def _around(values_V_T: np.ndarray, reach: int) -> np.ndarray:
    """float [V, T]: the sum over each step and so many to each side of it."""
    n_steps = values_V_T.shape[1]
    place = np.arange(n_steps)
    low, high = np.maximum(place - reach, 0), np.minimum(place + reach + 1, n_steps)
    total = np.concatenate([np.zeros((len(values_V_T), 1)), np.cumsum(values_V_T, axis=1)], axis=1)
    return total[:, high] - total[:, low]


def crowded(share_V_T: np.ndarray, n_V_T: np.ndarray) -> np.ndarray:
    """float [V, T]: how much more the rows of a step differ in a share than those of the steps around, at least 1.

    A share that hardly ever occurs has a spread near 0, pooled over many steps; where it comes, rows differ more.

    Args:
        share_V_T: float [V, T], NaN where there are no rows.
        n_V_T: rows.
    """
    rows = np.where(np.isfinite(share_V_T), n_V_T, 0.0)
    local = (_around(np.nan_to_num(share_V_T) * rows, BESIDE) + HALF_A_ROW) / (_around(rows, BESIDE) + 1)
    spread = local * (1 - local)
    around = pooled(spread * rows, rows).reshape(rows.shape)
    return np.maximum(spread / np.where(around > 0, around, 1.0), 1.0)


BESIDE = 2
"""Steps to each side over which a share is looked at where it comes."""


def binomial(share: np.ndarray, n: np.ndarray) -> np.ndarray:
    """float [V, T]: of a share of which less than a row is to be expected, the variance by the whole run; else 0."""
    total = n.sum(axis=1, keepdims=True)
    usual = (np.where(n > 0, np.nan_to_num(share), 0.0) * n).sum(axis=1, keepdims=True)
    usual = np.clip((usual + HALF_A_ROW) / (total + 1), 0.0, 1.0)
    rare = (n > 0) & (np.minimum(usual, 1 - usual) * n < 1)
    return np.where(rare, usual * (1 - usual) / np.maximum(n, 1.0), 0.0)
