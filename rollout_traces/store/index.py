"""The index of a project: one SQLite file, filled behind a watermark, rebuilt whenever in doubt.

Never authoritative: every row can be read again from the source.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.private_files import make_folder, open_file
from rollout_traces.store import schema
from rollout_traces.store.connections import Connections
from rollout_traces.store.indexing import Writer, forget_all_but, read_batch
from rollout_traces.store.source import Source

logger = logging.getLogger("rollout_traces")
Progress = Callable[[int, int], None]
"""Called with traces done and traces in all."""

PAGE_BYTES = 16384
"""Page size of a new file: a scan looks up a quarter of the pages that SQLite's usual 4 KB need."""


class Index:
    """An index file and its source.

    Args:
        source: what it indexes.
        path: the file; by default where the source says.
    """

    def __init__(self, source: Source, path: Path | None = None) -> None:
        self.source = source
        self.path = path or source.index_path()
        make_folder(self.path.parent)
        self._writing = threading.Lock()
        self._damage: str | None = None
        self._file: tuple[int, int] | None = None
        self._connections = Connections(self._open)
        self._ensure()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lends a connection for reading.

        Raises:
            StoreError: the file cannot be read, or is damaged; then the next refresh builds it anew.
        """
        self._follow_the_file()
        with self._connections.one() as connection:
            try:
                yield connection
            except sqlite3.OperationalError as error:
                raise StoreError(f"the index {self.path} cannot be read ({error}).") from error
            except sqlite3.DatabaseError as error:
                self._damage = str(error)
                raise StoreError(
                    f"the index {self.path} is damaged ({error}); it is built anew at the next refresh."
                ) from error

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Lends a connection on which all reads see the same state."""
        with self.reading() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def refresh(self, progress: Progress | None = None) -> int:
        """Indexes what came since the last time.

        Args:
            progress: called after every batch.

        Returns:
            Number of traces added by this call.

        Raises:
            StoreError: the source cannot be read.
        """
        with self._writing:
            if self._damage is None:
                try:
                    return self._refresh(progress)
                except sqlite3.OperationalError as error:
                    raise StoreError(f"the index {self.path} cannot be written ({error}).") from error
                except sqlite3.DatabaseError as error:
                    self._damage = str(error)
                except StoreError:
                    if self._damage is None:
                        raise
            self._start_over(f"it is damaged ({self._damage})")
            return self._refresh(progress)

    def rebuild(self, progress: Progress | None = None) -> int:
        """Empties the index and fills it anew.

        Args:
            progress: called after every batch.

        Returns:
            Number of traces added.
        """
        with self._writing:
            try:
                with self._transaction() as connection:
                    self._make_tables(connection)
            except sqlite3.DatabaseError as error:
                self._start_over(f"it is damaged ({error})")
            return self._refresh(progress)

    def close(self) -> None:
        """Closes the file."""
        self._connections.close()

    def _follow_the_file(self) -> None:
        """Lets go of a file that another process has replaced or removed."""
        if self._file is not None and self._file != _identity(self.path):
            self._connections.close()
            self._file = None
            self._ensure()

    def _open(self) -> sqlite3.Connection:
        with contextlib.suppress(OSError):
            os.close(open_file(self.path, os.O_RDWR))
        connection = sqlite3.connect(self.path, timeout=30, check_same_thread=False, isolation_level=None)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -32000")
        self._file = _identity(self.path)
        return connection

    def _ensure(self) -> None:
        """Makes the tables where the file is new, of another version, or damaged."""
        try:
            with self._connections.one() as connection:
                version = _version(connection)
            if version != schema.INDEX_VERSION:
                with self._transaction() as connection:
                    version = _version(connection)
                    if version is not None and version != schema.INDEX_VERSION:
                        logger.warning(
                            "rollout-traces: the index %s has version %s, expected %s; it is built anew.",
                            self.path,
                            version,
                            schema.INDEX_VERSION,
                        )
                    if version != schema.INDEX_VERSION:
                        self._make_tables(connection)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise StoreError(f"the index {self.path} cannot be opened ({error}).") from error
            self._start_over(f"it is damaged ({error})")

    def _start_over(self, why: str) -> None:
        logger.warning("rollout-traces: the index %s is built anew: %s.", self.path, why)
        self._damage = None
        self._connections.close()
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        with self._transaction() as connection:
            self._make_tables(connection)

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        schema.create(connection)
        _set_meta(connection, "built", time.time_ns())

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connections.one() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _refresh(self, progress: Progress | None) -> int:
        self._forget_deleted()
        with self.reading() as connection:
            after, seen, built = (int(_meta(connection, name, 0)) for name in ("watermark", "seen", "built"))
        added = 0
        last = self.source.last_rowid()
        if last > after:
            n_source = self.source.count()
            with ThreadPoolExecutor(1, thread_name_prefix="rollout-traces-read") as reader:
                for batch in self._batches(reader, after, built):
                    added += batch
                    if progress is not None:
                        progress(min(seen + added, n_source), n_source)
        self._copy_runs()
        return added

    def _batches(self, reader: ThreadPoolExecutor, after: int, built: int) -> Iterator[int]:
        """Writes batch after batch while the next one is read; yields how many each added.

        Stops when another process has built the index anew: what was read belongs to the old one.
        """
        coming = reader.submit(read_batch, self.source, after)
        while batch := coming.result():
            after = batch[-1].stored.rowid
            coming = reader.submit(read_batch, self.source, after)
            with self._transaction() as connection:
                if _meta(connection, "built", 0) != built:
                    return
                watermark = _meta(connection, "watermark", 0)
                fresh = [read for read in batch if read.stored.rowid > watermark]
                if fresh:
                    Writer(connection).add(fresh)
                    _set_meta(connection, "watermark", after)
                    _set_meta(connection, "last_id", fresh[-1].stored.trace_id)
                    _set_meta(connection, "seen", _meta(connection, "seen", 0) + len(fresh))
            yield len(fresh)

    def _forget_deleted(self) -> None:
        """Drops what was deleted at the source, where rowids may have been given out again."""
        with self.snapshot() as connection:
            watermark, seen, last_id = (
                _meta(connection, name, 0) for name in ("watermark", "seen", "last_id")
            )
        if not seen:
            return
        n_there = self.source.count(watermark)
        if n_there == seen and self.source.id_at(watermark) == last_id:
            return
        if n_there > seen:
            logger.warning("rollout-traces: the index %s lacks traces; it is built anew.", self.path)
            with self._transaction() as connection:
                self._make_tables(connection)
            return
        there = self.source.trace_ids()
        with self._transaction() as connection:
            gone = forget_all_but(connection, there)
            known = {*connection.execute("SELECT src FROM traces UNION SELECT src FROM digests").fetchall()}
            watermark = max((src for (src,) in known), default=0)
            _set_meta(connection, "watermark", watermark)
            _set_meta(connection, "last_id", there.get(watermark, ""))
            _set_meta(connection, "seen", sum(rowid <= watermark for rowid in there))
            _set_meta(connection, "built", time.time_ns())
        if gone:
            logger.warning("rollout-traces: %d traces were deleted from %s.", gone, self.source.label)

    def _copy_runs(self) -> None:
        runs = sorted((r.run_id, r.name, r.started, r.last_step) for r in self.source.runs())
        with self.reading() as connection:
            known = connection.execute(
                "SELECT run_id, name, started, last_step FROM runs ORDER BY run_id"
            ).fetchall()
        if runs == known:
            return
        with self._transaction() as connection:
            ids = orjson.dumps([run_id for run_id, *_ in runs]).decode()
            connection.execute(
                "DELETE FROM runs WHERE run_id NOT IN (SELECT value FROM json_each(?))", (ids,)
            )
            connection.executemany(
                "INSERT INTO runs (run_id, name, started, last_step) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (run_id) DO UPDATE SET name = excluded.name, started = excluded.started,"
                " last_step = excluded.last_step",
                runs,
            )


def stamp(connection: sqlite3.Connection) -> tuple[int, ...]:
    """What changes whenever rows were added or the file was built anew."""
    return tuple(_meta(connection, name, 0) for name in ("built", "watermark", "seen"))


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another of the same name; None when there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _version(connection: sqlite3.Connection) -> int | None:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        return None
    return int(_meta(connection, "version", 0))


def _meta(connection: sqlite3.Connection, name: str, default: Any) -> Any:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return default if row is None else row[0]


def _set_meta(connection: sqlite3.Connection, name: str, value: int | str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
