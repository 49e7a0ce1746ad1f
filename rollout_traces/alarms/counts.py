"""A share of rollouts, and how sure it is: rows of one group answer one prompt and are no independent draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

SPARSE = 4
"""Numbers that there could be, for each row, above which only those that occur are counted."""
Z = 1.959964
"""Standard normal quantile of a 95 % interval."""


@dataclass(frozen=True)
class Counts:
    """How many of some units were hit, by group; adds up over steps, whose groups are others.

    Attributes:
        n: units: rollouts, or tool calls.
        n_groups: groups that they come from, G.
        hits: units that were hit, sum of x_g.
        hits_hits: sum of x_g ** 2.
        hits_n: sum of x_g * n_g.
        n_n: sum of n_g ** 2.
    """

    n: float = 0.0
    n_groups: int = 0
    hits: float = 0.0
    hits_hits: float = 0.0
    hits_n: float = 0.0
    n_n: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.n + other.n,
            self.n_groups + other.n_groups,
            self.hits + other.hits,
            self.hits_hits + other.hits_hits,
            self.hits_n + other.hits_n,
            self.n_n + other.n_n,
        )

    def as_plain(self) -> list[float]:
        """The fields in order; whole numbers as such."""
        return self._plain

    @cached_property
    def _plain(self) -> list[float]:
        values = (self.n, self.n_groups, self.hits, self.hits_hits, self.hits_n, self.n_n)
        return [int(value) if value == int(value) else value for value in values]

    @property
    def share(self) -> float:
        """Hits a unit; 0 where there is none."""
        return self.hits / self.n if self.n else 0.0

    def lower(self) -> float:
        """Lower end of the share's 95 % interval.

        The smaller one of two: of the ratio estimator with groups as clusters (Cochran 1977, section 2.11:
        `var = G / (G - 1) * sum (x_g - p n_g) ** 2 / n ** 2`, Student's t with G - 1 degrees of freedom), and
        Wilson's (1927) for independent units, which also holds where no group differs from the others.
        """
        if self.n_groups < 2 or not self.n:
            return 0.0
        p = self.share
        spread = max(self.hits_hits - 2 * p * self.hits_n + p * p * self.n_n, 0.0)
        variance = self.n_groups / (self.n_groups - 1) * spread / self.n**2
        clustered = p - student_t(self.n_groups - 1) * math.sqrt(variance)
        return max(min(clustered, wilson_lower(p, self.n)), 0.0)


class Grouped:
    """Rows by group, to count several things in.

    Args:
        groups: int64 [B].
        n: [B] units of each row, a rollout each when None.

    Attributes:
        nothing: the counts of what no row has.
    """

    def __init__(self, groups: np.ndarray, n: np.ndarray | None = None) -> None:
        self._members = from_zero(groups)
        self._units = np.bincount(self._members, n).astype(np.float64)
        has_units = self._units > 0
        self.nothing = Counts(
            float(self._units.sum()), int(has_units.sum()), n_n=float((self._units**2).sum())
        )

    def count(self, hits: np.ndarray) -> Counts:
        """Counts hits.

        Args:
            hits: [B] of each row; bool, or how many of its units.
        """
        if not hits.any():
            return self.nothing
        x = np.bincount(self._members, hits.astype(np.float64))
        return replace(
            self.nothing,
            hits=float(x.sum()),
            hits_hits=float((x * x).sum()),
            hits_n=float((x * self._units).sum()),
        )


def from_zero(group: np.ndarray) -> np.ndarray:
    """Groups' numbers, int64 [B], from 0 on and not far above the number of rows."""
    if len(group):
        low = group.min()
        if int(group.max()) - int(low) <= SPARSE * len(group):
            return group - low
    return np.unique(group, return_inverse=True)[1]


def total(counts: Sequence[Counts]) -> Counts:
    """Their sum."""
    if len(counts) == 1:
        return counts[0]
    columns = zip(
        *((one.n, one.n_groups, one.hits, one.hits_hits, one.hits_n, one.n_n) for one in counts), strict=True
    )
    return Counts(*map(sum, columns))


def wilson_lower(p: float, n: float) -> float:
    """Lower end of Wilson's 95 % interval of a share p of n."""
    middle = p + Z * Z / (2 * n)
    half = Z * math.sqrt(p * (1 - min(p, 1.0)) / n + Z * Z / (4 * n * n))
    return (middle - half) / (1 + Z * Z / n)


def student_t(df: int) -> float:
    """97.5 % quantile of Student's t, within 2 % from 4 degrees of freedom on (Abramowitz and Stegun 26.7.5)."""
    first = (Z**3 + Z) / (4 * df)
    second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * df**2)
    return Z + first + second
