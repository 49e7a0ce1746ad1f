"""Statistics over the rows of a flat array: rows end to end, some of them empty."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Segments:
    """B consecutive stretches of a flat array of M values.

    Attributes:
        counts: int64 [B]; values in each stretch, summing to M.
    """

    counts: np.ndarray

    @cached_property
    def filled(self) -> np.ndarray:
        """bool [B]: the stretches that hold a value."""
        return self.counts > 0

    @cached_property
    def all_filled(self) -> bool:
        """True when every stretch holds a value."""
        return bool(self.filled.all())

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 [B]: where each stretch begins."""
        return self.counts.cumsum() - self.counts

    def rows(self) -> np.ndarray:
        """int64 [M]: the stretch every value belongs to."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def sum(self, values_M: np.ndarray) -> np.ndarray:
        """Sums of bools, integers or floats; an empty stretch gives 0.

        Args:
            values_M: [M], finite.

        Returns:
            [B], int64 for bools and integers, else float64.
        """
        dtype = np.int64 if values_M.dtype.kind in "biu" else np.float64
        if len(values_M) and self.all_filled:
            return np.add.reduceat(values_M, self.starts, dtype=dtype)
        sums = np.zeros(len(self.counts), dtype)
        if len(values_M):
            sums[self.filled] = np.add.reduceat(values_M, self.starts[self.filled], dtype=dtype)
        return sums

    def mean(self, values_M: np.ndarray) -> np.ndarray:
        """float64 [B] means of the finite values; NaN where a stretch has none."""
        if values_M.dtype.kind != "f":
            return ratio(self.sum(values_M), self.counts)
        finite = np.isfinite(values_M)
        if finite.all():
            return ratio(self.sum(values_M), self.counts)
        return ratio(self.sum(np.where(finite, values_M, 0)), self.sum(finite))

    def min(self, values_M: np.ndarray, empty: float) -> np.ndarray:
        """[B] smallest values; `empty` for an empty stretch."""
        return self._extreme(np.minimum, values_M, empty)

    def max(self, values_M: np.ndarray, empty: float) -> np.ndarray:
        """[B] largest values; `empty` for an empty stretch."""
        return self._extreme(np.maximum, values_M, empty)

    def _extreme(self, pick: np.ufunc, values_M: np.ndarray, empty: float) -> np.ndarray:
        dtype = np.int64 if values_M.dtype.kind in "biu" else np.float64
        if len(values_M) and self.all_filled:
            return pick.reduceat(values_M, self.starts).astype(dtype, copy=False)
        extremes = np.full(len(self.counts), empty, dtype)
        if len(values_M):
            extremes[self.filled] = pick.reduceat(values_M, self.starts[self.filled])
        return extremes


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """float64: `above / below`, NaN where `below` is 0."""
    known = below != 0
    return np.where(known, above / np.where(known, below, 1), np.nan)
