"""Keeping the index's rows of TRL's tables in step with the project: new ones, deleted ones, and those known better.

A run that this package logged has its rollouts in ledgers and traces; the tables of such a run show the same
rollouts once more, and are left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from rollout_traces.store import manifest
from rollout_traces.store.indexing import StepWriter, read_stored
from rollout_traces.store.logged_tables import table_of
from rollout_traces.store.manifest import meta, set_meta
from rollout_traces.store.source import BATCH_BYTES, Source
from rollout_traces.store.stored_trace import StoredTrace

WATERMARK, COUNTED = "tables_watermark", "tables_counted"
"""The last row of scalars that was looked at, and, once a table was found, how many there were up to it."""
Lent = Callable[[], AbstractContextManager[sqlite3.Connection]]


def refresh_tables(source: Source, segments: Path, reading: Lent, transaction: Lent, *, came: bool) -> int:
    """Adds the rows of new tables; drops those that were deleted, or of runs that have traces of our own now.

    Args:
        source: the project.
        segments: where segments go.
        reading: lends a connection of the index.
        transaction: begins a transaction of the index.
        came: traces came since the last time.

    Returns:
        Rows added.
    """
    last = source.last_metrics_id()
    with reading() as connection:
        after, counted = (int(meta(connection, name, 0)) for name in (WATERMARK, COUNTED))
    if counted and (came or source.count_metrics(after) != counted):
        with transaction() as connection:
            _forget(connection, source, segments, came=came)
            set_meta(connection, COUNTED, source.count_metrics(after))
    added = 0
    if last <= after:
        return 0
    for reached, rows in source.logged_tables.between(after, last, BATCH_BYTES):
        with transaction() as connection:
            if int(meta(connection, WATERMARK, 0)) != after:
                return added
            ours = _runs_of_ours(connection, {row.run_id for row in rows})
            new = [row for row in rows if row.run_id not in ours]
            if new:
                _add(connection, source, segments, new)
            _remember(connection, source, reached, counted or len(new))
            after = reached
            counted = counted or len(new)
            added += len(new)
    with transaction() as connection:
        if int(meta(connection, WATERMARK, 0)) == after:
            _remember(connection, source, last, counted)
    return added


def _remember(connection: sqlite3.Connection, source: Source, reached: int, found: int) -> None:
    set_meta(connection, WATERMARK, reached)
    if found:
        set_meta(connection, COUNTED, source.count_metrics(reached))


def _add(connection: sqlite3.Connection, source: Source, segments: Path, rows: Sequence[StoredTrace]) -> None:
    StepWriter(connection, segments, source).add([read_stored(row) for row in rows])
    manifest.changed(connection)


def _forget(connection: sqlite3.Connection, source: Source, segments: Path, *, came: bool) -> None:
    found = connection.execute(
        "SELECT doc, src, place, run_id FROM docs JOIN places USING (place) JOIN runs USING (run) WHERE src < 0"
    ).fetchall()
    there = source.metrics_ids(sorted({table_of(src) for _, src, _, _ in found}))
    ours = _runs_of_ours(connection, {run_id for *_, run_id in found}) if came else set()
    gone = [(doc, place) for doc, src, place, run_id in found if table_of(src) not in there or run_id in ours]
    if not gone:
        return
    connection.executemany("DELETE FROM docs WHERE doc = ?", [(doc,) for doc, _ in gone])
    StepWriter(connection, segments, source).put_together(sorted({place for _, place in gone}))
    manifest.changed(connection)


def _runs_of_ours(connection: sqlite3.Connection, run_ids: set[str]) -> set[str]:
    """Those of some runs of which a rollout was logged by this package."""
    return {
        run_id
        for run_id in run_ids
        if connection.execute(
            "SELECT 1 FROM places JOIN docs USING (place) WHERE run = (SELECT run FROM runs WHERE run_id = ?)"
            " AND kind <> 'other' LIMIT 1",
            (run_id,),
        ).fetchone()
    }
