"""The columns of segments that are kept in memory, within a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from rollout_traces.store.columns.kinds import Kind, cast
from rollout_traces.store.columns.segments import SegmentFile, alive_rows, read_columns
from rollout_traces.store.columns.values import ValuesOf

MOST_KEPT = 64 << 20
"""Bytes of columns that are kept in memory, of whole ones and of segments' own; those asked for longest ago are let go
first."""


class Cache:
    """Columns of segments in memory, shared by all states of one table."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, frozenset[int], str], ValuesOf] = OrderedDict()
        self._bytes = 0
        self._alive: dict[tuple[str, frozenset[int]], np.ndarray | None] = {}
        self._lock = threading.RLock()

    def alive(self, segment: SegmentFile) -> np.ndarray | None:
        """See `alive_rows`."""
        key = (segment.path.name, segment.dead)
        with self._lock:
            if key not in self._alive:
                self._alive = {k: v for k, v in self._alive.items() if k[0] != segment.path.name}
                self._alive[key] = alive_rows(segment)
            return self._alive[key]

    def known(self, segment: SegmentFile, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Those columns of a segment's living rows that are in memory."""
        return {name: kept.column for name, kept in self.values(segment, names).items()}

    def values(self, segment: SegmentFile, names: Sequence[str]) -> dict[str, ValuesOf]:
        """The values of those columns."""
        file, dead = segment.path.name, segment.dead
        with self._lock:
            found = {name: self._kept.get((file, dead, name)) for name in names}
        return {name: kept for name, kept in found.items() if kept is not None}

    def columns(
        self, segment: SegmentFile, alive: np.ndarray | None, names: Sequence[str], kinds: Mapping[str, Kind]
    ) -> dict[str, pa.ChunkedArray]:
        """Columns of a segment's living rows."""
        file, dead = segment.path.name, segment.dead
        with self._lock:
            self.read(segment, alive, names)
            return {name: cast(self._kept[(file, dead, name)].column, kinds[name]) for name in names}

    def read(self, segment: SegmentFile, alive: np.ndarray | None, names: Sequence[str]) -> None:
        """Brings columns of a segment's living rows into memory."""
        file, dead = segment.path.name, segment.dead
        with self._lock:
            missing = [name for name in names if (file, dead, name) not in self._kept]
            if missing:
                for name, column in read_columns(segment, missing).items():
                    living = column if alive is None else column.filter(pa.array(alive))
                    self._keep((file, dead, name), living)
            for name in names:
                self._kept.move_to_end((file, dead, name))
            self._shrink(len(names))

    def forget(self, segments: Sequence[SegmentFile]) -> None:
        """Lets go of what belongs to other segments than these."""
        kept = {(segment.path.name, segment.dead) for segment in segments}
        with self._lock:
            for key in [key for key in self._kept if key[:2] not in kept]:
                self._bytes -= size_of(self._kept.pop(key).column)

    def _keep(self, key: tuple[str, frozenset[int], str], column: pa.ChunkedArray) -> None:
        self._kept[key] = ValuesOf(column)
        self._bytes += size_of(column)

    def _shrink(self, just_asked: int) -> None:
        while self._bytes > self._most and len(self._kept) > just_asked:
            _, kept = self._kept.popitem(last=False)
            self._bytes -= size_of(kept.column)


def size_of(column: pa.ChunkedArray) -> int:
    """Bytes that a column takes; one without any value takes none."""
    return 0 if column.null_count == len(column) else int(column.nbytes)
