"""Deleting from a Trackio project of this machine: runs through Trackio, rollouts out of its tables."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.ledger.columns import Ledger, pack, unpack
from rollout_traces.sink.stored import TIMEOUT
from rollout_traces.trace.conversion import LEDGER_KEY


def remove_runs(project: str, runs: Mapping[str, str]) -> None:
    """Deletes runs with everything that Trackio keeps of them.

    Args:
        runs: id -> name.

    Raises:
        StoreError: Trackio could not.
    """
    from trackio.sqlite_storage import SQLiteStorage

    for run_id, name in runs.items():
        if not SQLiteStorage.delete_run(project, name, run_id=run_id):
            raise StoreError(f"project {project!r}: Trackio could not delete run {name!r} ({run_id}).")


def remove_traces(project: str, traces: Collection[str], ledger_rows: Mapping[str, Collection[str]]) -> None:
    """Deletes traces, and rows of the ledgers in step summaries; all of it or nothing.

    What is deleted is overwritten in the database.

    Args:
        traces: ids of traces.
        ledger_rows: id of a step summary -> uids of the rollouts that leave its ledger.

    Raises:
        StoreError: the database cannot be written, or a ledger is damaged.
    """
    from trackio.sqlite_storage import SQLiteStorage

    path = SQLiteStorage.get_project_db_path(project)
    with SQLiteStorage._get_process_lock(project):
        try:
            connection = sqlite3.connect(path, timeout=TIMEOUT, isolation_level=None)
        except sqlite3.Error as error:
            raise StoreError(f"project {project!r}: {path} cannot be written ({error}).") from error
        try:
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("DELETE FROM traces WHERE id = ?", [(each,) for each in traces])
            for trace_id, uids in ledger_rows.items():
                _rewrite(connection, trace_id, set(uids))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise StoreError(f"project {project!r}: {path} cannot be written ({error}).") from error
        finally:
            connection.close()
    _remove_session_files(project, {*traces, *ledger_rows})


def _remove_session_files(project: str, traces: Collection[str]) -> None:
    """Deletes the files in which Trackio writes each trace once more, for the Hub's viewer."""
    from trackio.agent_sessions import trace_session_filename
    from trackio.sqlite_storage import project_trace_sessions_dir

    names = {trace_session_filename(trace_id) for trace_id in traces}
    for path in Path(project_trace_sessions_dir(project)).rglob("*.jsonl"):
        if path.name in names:
            path.unlink(missing_ok=True)


def remove_media(files: Collection[Path]) -> int:
    """Deletes media files, and the folders of steps and runs that are empty then.

    Args:
        files: two folders below the project's media folder: `run/step/file`.

    Returns:
        How many could not be deleted.
    """
    failed = 0
    for path in files:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            failed += 1
            continue
        for folder in (path.parent, path.parent.parent):
            with suppress(OSError):
                folder.rmdir()
    return failed


def shrink(project: str) -> bool:
    """Gives freed space back to the disk.

    Returns:
        False when somebody was writing; the space is used again by what comes.
    """
    from trackio.sqlite_storage import SQLiteStorage

    path = SQLiteStorage.get_project_db_path(project)
    with SQLiteStorage._get_process_lock(project):
        connection = sqlite3.connect(path, timeout=5, isolation_level=None)
        try:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
    return True


def _rewrite(connection: sqlite3.Connection, trace_id: str, uids: set[str]) -> None:
    """Takes rollouts out of a step summary's ledger."""
    found = connection.execute("SELECT spans FROM traces WHERE id = ?", (trace_id,)).fetchone()
    if found is None:
        return
    spans: list[Any] = orjson.loads(found[0] or b"[]")
    for span in spans:
        if isinstance(span, dict) and span.get(LEDGER_KEY):
            ledger = unpack(base64.b64decode(span[LEDGER_KEY]))
            kept = [row for row, uid in enumerate(ledger.get("uid").tolist()) if uid not in uids]
            span[LEDGER_KEY] = base64.b64encode(pack(_taken(ledger, kept))).decode()
    connection.execute("UPDATE traces SET spans = ? WHERE id = ?", (orjson.dumps(spans).decode(), trace_id))


def _taken(ledger: Ledger, rows: list[int]) -> Ledger:
    import numpy as np

    return ledger.take(np.asarray(rows, np.int64))
