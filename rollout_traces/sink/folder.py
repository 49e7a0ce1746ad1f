"""Trackio's folder on this machine: made for this user alone where it is missing, how much a project takes of it, and
deleting from it: runs through Trackio, rollouts out of its tables.

What Trackio writes into it is readable by all by the process's umask, which is the trainer's and stays as it is. A
folder that others may not enter closes all of it.
"""

from __future__ import annotations

import base64
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rollout_traces.errors import StoreError
from rollout_traces.ledger.columns import pack, unpack
from rollout_traces.model.private_files import FOLDER_MODE, GROUP, GROUP_MODE, make_folder, shared_group
from rollout_traces.model.units import MEGABYTE
from rollout_traces.sink.stored import TIMEOUT
from rollout_traces.trace.conversion import LEDGER_KEY

log = logging.getLogger("rollout_traces")


def make_trackio_folder(folder: Path) -> None:
    """Makes Trackio's folder with mode 0700, or 2750 for `ROLLOUT_TRACES_GROUP`; one that is there stays as it is.

    Where it cannot be made, Trackio says so itself when it writes. A group that is none, or not this user's, is named
    in a warning, and the folder is for this user alone.
    """
    if folder.exists():
        return
    try:
        make_folder(folder)
    except OSError as error:
        log.warning("%s cannot be made: %s.", folder, error.strerror)
        return
    group = shared_group()
    if group is not None:
        try:
            os.chown(folder, -1, group)
            folder.chmod(GROUP_MODE)
        except OSError as error:
            folder.chmod(FOLDER_MODE)
            log.warning(
                "%s=%s: %s; %s is for this user alone.", GROUP, os.environ[GROUP], error.strerror, folder
            )


LOOK_EVERY = 10.0
"""Seconds for which an answer holds."""


class DiskUse:
    """Bytes of a local project: its database and the files that Trackio keeps next to it.

    Args:
        project: Trackio project.
    """

    def __init__(self, project: str) -> None:
        self._project = project
        self._bytes = 0
        self._looked_at: float | None = None

    def bytes(self) -> int:
        """The bytes, measured every ten seconds at most."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= LOOK_EVERY:
            self._looked_at = now
            self._bytes = self._look()
        return self._bytes

    def room_text(self) -> str:
        """Says how much room its disk has, `; 120 MB are free in /data/trackio`; "" where that cannot be asked."""
        import trackio.utils

        try:
            free = shutil.disk_usage(trackio.utils.TRACKIO_DIR).free
        except OSError:
            return ""
        return f"; {free / MEGABYTE:,.0f} MB are free in {trackio.utils.TRACKIO_DIR}"

    def _look(self) -> int:
        import trackio.utils

        root, name = Path(trackio.utils.TRACKIO_DIR), trackio.utils.canonical_project_name(self._project)
        files = list(root.glob(f"{name}.db*"))
        for folder in (root / "media" / name, root / "traces" / name):
            files += folder.rglob("*")
        return sum(_size(path) for path in files)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


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
        connection = sqlite3.connect(path, isolation_level=None)
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
            span[LEDGER_KEY] = base64.b64encode(pack(ledger.take(np.asarray(kept, np.int64)))).decode()
    connection.execute("UPDATE traces SET spans = ? WHERE id = ?", (orjson.dumps(spans).decode(), trace_id))
