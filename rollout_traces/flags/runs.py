"""Runs of marked tokens in rows that lie end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Runs:
    """R maximal runs of marked tokens, in order; none crosses a row's edge.

    Attributes:
        rows: int64 [R], ascending; the row of each run.
        starts: int64 [R]; flat position of its first token.
        stops: int64 [R]; flat position one past its last.
        offsets: int64 [B + 1]; where rows begin.
    """

    rows: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, mask_N: np.ndarray, offsets: np.ndarray) -> Runs:
        """Finds the runs of True.

        Args:
            mask_N: bool [N].
            offsets: int64 [B + 1].
        """
        n = len(mask_N)
        edges = np.empty(n + 1, bool)
        edges[0] = edges[n] = True
        np.not_equal(mask_N[1:], mask_N[:-1], out=edges[1:n])
        edges[offsets] = True
        at = edges.nonzero()[0]
        marked = mask_N[at[:-1]] if n else np.zeros(0, bool)
        starts, stops = at[:-1][marked], at[1:][marked]
        return cls(offsets.searchsorted(starts, side="right") - 1, starts, stops, offsets)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [R]: tokens of each run."""
        return self.stops - self.starts

    def first_of_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that have a run, and the index of the first run of each, both [rows with a run]."""
        new = np.ones(len(self.rows), bool)
        np.not_equal(self.rows[1:], self.rows[:-1], out=new[1:])
        first = new.nonzero()[0]
        return self.rows[first], first

    def last_of_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that have a run, and the index of the last run of each, both [rows with a run]."""
        ends = np.ones(len(self.rows), bool)
        np.not_equal(self.rows[1:], self.rows[:-1], out=ends[:-1])
        last = ends.nonzero()[0]
        return self.rows[last], last

    def local(self, run: int) -> tuple[int, int]:
        """Start and stop of a run in its row's own token positions."""
        base = self.offsets[self.rows[run]]
        return int(self.starts[run] - base), int(self.stops[run] - base)
