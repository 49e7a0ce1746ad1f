"""Small segments become larger ones, so that a live run's table stays a few files."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_traces.store import manifest
from rollout_traces.store.columns.assemble import stacked
from rollout_traces.store.columns.segments import SegmentFile, check_segment, write_segment
from rollout_traces.store.indexing import SEGMENT_ROWS

FAN = 16
"""So many neighbouring segments of one size class become one."""
LARGEST = 1 << 20
"""Segments of more rows are left as they are, unless most of their rows were replaced."""


def compact(connection: sqlite3.Connection, folder: Path) -> list[Path]:
    """Joins neighbouring segments of like size, and rewrites those of which most rows are dead.

    Args:
        connection: a connection whose transaction the caller holds.
        folder: where the segments are.

    Returns:
        Files that are no part of the table any more, to be removed once that is committed.
    """
    gone: list[Path] = []
    while run := _due(manifest.segments(connection, folder), _dead_rows(connection)):
        _join(connection, folder, run)
        gone += [segment.path for segment in run]
    return gone


def join_neighbours(connection: sqlite3.Connection, folder: Path) -> list[Path]:
    """Joins neighbouring segments up to `indexing.SEGMENT_ROWS` rows: few files, worth it once many rows came at once.

    Args:
        connection: a connection whose transaction the caller holds.
        folder: where the segments are.

    Returns:
        As `compact`.
    """
    runs: list[list[SegmentFile]] = [[]]
    for segment in manifest.segments(connection, folder):
        if sum(other.n_rows for other in runs[-1]) + segment.n_rows > SEGMENT_ROWS:
            runs.append([])
        runs[-1].append(segment)
    several = [run for run in runs if len(run) > 1]
    for run in several:
        _join(connection, folder, run)
    return [segment.path for run in several for segment in run]


def _due(segments: Sequence[SegmentFile], dead: dict[int, int]) -> list[SegmentFile]:
    """The first segments that should be rewritten together; none when all is well."""
    for segment in segments:
        if 2 * dead.get(segment.number, 0) > segment.n_rows:
            return [segment]
    for at in range(len(segments) - FAN + 1):
        run = segments[at : at + FAN]
        largest = max(segment.n_rows for segment in run)
        if sum(segment.n_rows for segment in run) <= LARGEST and 2 * largest <= sum(s.n_rows for s in run):
            return list(run)
    return []


def _dead_rows(connection: sqlite3.Connection) -> dict[int, int]:
    return dict(
        connection.execute("SELECT segment, sum(n_rows) FROM parts WHERE dead GROUP BY segment").fetchall()
    )


def _join(connection: sqlite3.Connection, folder: Path, run: Sequence[SegmentFile]) -> None:
    tables = [_living(segment) for segment in run]
    columns = stacked(
        [{name: table[name].combine_chunks() for name in table.column_names} for table in tables]
    )
    joined = pa.table({name: column for name, (_, column) in columns.items()})
    manifest.drop_segments(connection, [segment.number for segment in run])
    if not joined.num_rows:
        return
    kinds = {name: kind for name, (kind, _) in columns.items()}
    kinds |= {name: "mixed" for segment in run for name, kind in segment.kinds.items() if kind == "mixed"}
    written = write_segment(folder, joined)
    number = manifest.add_segment(connection, written, joined, kinds)
    # the rows stay where they were in the order of arrival
    connection.execute("UPDATE segments SET segment = ? WHERE segment = ?", (run[-1].number, number))
    connection.execute("UPDATE parts SET segment = ? WHERE segment = ?", (run[-1].number, number))


def _living(segment: SegmentFile) -> pa.Table:
    import pyarrow.compute as pc

    check_segment(segment)
    table = pq.read_table(segment.path)
    dead = pa.array(segment.dead, pa.int64())
    return table.filter(pc.invert(pc.is_in(table["place"], value_set=dead)))
