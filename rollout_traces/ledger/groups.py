"""Rows by group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rollout_traces.ledger.segments import ratio


@dataclass(frozen=True, eq=False)
class GroupIndex:
    """K groups over B rows.

    Attributes:
        codes: int64 [B]; 0 .. K - 1, the group of each row.
        sizes: int64 [K]; rows in each group.
    """

    codes: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, group: np.ndarray) -> GroupIndex:
        """Indexes the ledger's `group` column, int64 [B]."""
        if len(group):
            low, high = int(group.min()), int(group.max())
            if high - low < len(group):
                codes = group - low
                sizes = np.bincount(codes)
                if sizes.all():
                    return cls(codes, sizes)
        _, codes, sizes = np.unique(group, return_inverse=True, return_counts=True)
        return cls(codes.reshape(-1), sizes)

    def __len__(self) -> int:
        """Number of groups, K."""
        return len(self.sizes)

    def rows(self) -> Iterator[np.ndarray]:
        """Yields each group's row numbers, ascending."""
        order = np.argsort(self.codes, kind="stable")
        yield from np.split(order, np.cumsum(self.sizes)[:-1])

    def sum(self, values: np.ndarray) -> np.ndarray:
        """float64 [K] sums of the finite values [B]."""
        weights = np.where(np.isfinite(values), values, 0) if values.dtype.kind == "f" else values
        return np.bincount(self.codes, weights=weights, minlength=len(self))

    def count(self, where: np.ndarray) -> np.ndarray:
        """int64 [K]: rows of each group for which the mask [B] holds."""
        return np.bincount(self.codes[where], minlength=len(self.sizes))

    def all(self, where: np.ndarray) -> np.ndarray:
        """bool [K]: groups in which the mask [B] holds for every row."""
        return self.count(where) == self.sizes

    def mean(self, values: np.ndarray) -> np.ndarray:
        """float64 [K] means of the finite values, NaN where a group has none."""
        return ratio(self.sum(values), self.count(np.isfinite(values)))

    def std(self, values: np.ndarray) -> np.ndarray:
        """float64 [K] population standard deviations of the finite values."""
        return np.sqrt(self.mean(np.square(self.centred(values))))

    def centred(self, values: np.ndarray) -> np.ndarray:
        """float64 [B]: values less their group's mean."""
        return values - self.mean(values)[self.codes]

    def min(self, values: np.ndarray) -> np.ndarray:
        """float64 [K] smallest finite values, inf where a group has none."""
        extremes = np.full(len(self), np.inf)
        np.minimum.at(extremes, self.codes, np.where(np.isfinite(values), values, np.inf))
        return extremes

    def max(self, values: np.ndarray) -> np.ndarray:
        """float64 [K] largest finite values, -inf where a group has none."""
        return -self.min(-values)
