"""The index of a project: a folder of segments and words, filled behind a watermark, rebuilt whenever in doubt.

Never authoritative: every row can be read again from the source.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import duckdb

from rollout_traces.errors import StoreError
from rollout_traces.model.private_files import make_folder, open_file
from rollout_traces.store import manifest
from rollout_traces.store.asking import Asking, RememberedAnswers
from rollout_traces.store.columns import SideColumns, read_side_columns
from rollout_traces.store.engine import Engine
from rollout_traces.store.indexing import StepWriter, runs_of_ours
from rollout_traces.store.labels import LabelBook
from rollout_traces.store.manifest import FEWEST_JOINED, compact, meta, set_meta
from rollout_traces.store.reading import read_trace
from rollout_traces.store.rollout_table import (
    DamagedSegment,
    RolloutTable,
    State,
    check_segment,
    remove_unknown,
)
from rollout_traces.store.source import PAGE_BYTES, Connections, Source

logger = logging.getLogger("rollout_traces")
Progress = Callable[[int, int], None]
"""Called with traces done and traces in all."""
Answer = TypeVar("Answer")

MANY = 10_000
"""Traces of one refresh after which its segments are joined at once."""
MANIFEST = "index.sqlite3"
SEGMENTS = "segments"
TABLES, COUNTED = "tables_watermark", "tables_counted"
"""The last row of scalars that was looked at for tables, and, once one was found, how many there were up to it."""


class Index:
    """An index folder and its source.

    Args:
        source: what it indexes.
        folder: the folder; by default where the source says.
    """

    def __init__(self, source: Source, folder: Path | None = None) -> None:
        self.source = source
        self.folder = folder or source.index_path()
        self.path = self.folder / MANIFEST
        self.segments = self.folder / SEGMENTS
        make_folder(self.folder)
        make_folder(self.segments)
        self._writing = threading.Lock()
        self._damage: str | None = None
        self._file: tuple[int, int] | None = None
        self._connections = Connections(self._open)
        self.engine = Engine(self.segments)
        self.table = RolloutTable(self.engine)
        self._state: State | None = None
        self.answers = RememberedAnswers()
        self.side_folder = Path(source.side_folder())
        self.labels = LabelBook(source.labels_path())
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

    def ask(self, question: Callable[[Asking], Answer]) -> Answer:
        """The answer to a question about one state of words and table.

        Args:
            question: asks them; it may be called again where another process replaced a segment meanwhile.

        Raises:
            StoreError: the index is damaged; the next refresh rebuilds what is.
        """
        for last in (False, False, True):
            with ExitStack() as opened:
                try:

                    def now() -> tuple[State, sqlite3.Connection]:
                        connection = opened.enter_context(self.snapshot())
                        return self._state_at(connection), connection

                    state, cursor, connection = opened.enter_context(self.table.at(now))
                    asking = Asking(connection, cursor, state, self.engine, self.source, self.answers)
                    try:
                        return question(asking)
                    except StoreError as error:
                        if isinstance(error.__cause__, duckdb.IOException):
                            for segment in state.segments:
                                check_segment(segment)
                        raise
                except FileNotFoundError as error:
                    self.table.forget()
                    if last:
                        self._damage = f"a segment is missing: {error}"
                        raise StoreError(f"{self.folder}: a segment is missing ({error}).") from error
                except DamagedSegment as error:
                    self._damage = str(error)
                    raise
        raise AssertionError

    def _state_at(self, connection: sqlite3.Connection) -> State:
        state = self._state
        labelled = self.labels.now()
        side = read_side_columns(self.side_folder, SideColumns() if state is None else state.side)
        stamp = (*manifest.stamp(connection), hash(side.stamp), labelled.stamp)
        if state is None or state.stamp != stamp:
            made = manifest.state(connection, self.segments)
            self._state = state = replace(made, side=side, stamp=stamp, labelled=labelled)
            _say_hidden(state)
        return state

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
                    if self._state is None:  # damage in the manifest is found by no refresh without new rows
                        with self.snapshot() as connection:
                            manifest.state(connection, self.segments)
                    return self._refresh(progress)
                except sqlite3.OperationalError as error:
                    if "no such table" not in str(error):
                        raise StoreError(f"the index {self.path} cannot be written ({error}).") from error
                    self._damage = str(error)
                except (sqlite3.DatabaseError, DamagedSegment) as error:
                    self._damage = str(error)
                except StoreError:
                    if self._damage is None:
                        raise
            self._start_over(f"it is damaged ({self._damage})")
            return self._refresh(progress)

    def rebuild(self, progress: Progress | None = None, why: str = "somebody asked for it") -> int:
        """Removes the index's files, and with them every copy of what they held, and fills it anew.

        Args:
            progress: called after every batch.
            why: said in the log.

        Returns:
            Number of traces added.
        """
        with self._writing:
            self._start_over(why)
            return self._refresh(progress)

    def close(self) -> None:
        """Closes the file, and lets go of the table."""
        self._connections.close()
        self.table.forget()
        self.engine.close()

    def _follow_the_file(self) -> None:
        """Lets go of a file that another process has replaced or removed."""
        if self._file is not None and self._file != _identity(self.path):
            self._connections.close()
            self._file = None
            self._state = None
            make_folder(self.folder)
            make_folder(self.segments)
            self._ensure()

    def _open(self) -> sqlite3.Connection:
        # only where it is new: closing any descriptor of a file lets go of the locks that SQLite holds on it
        with suppress(OSError):
            os.close(open_file(self.path, os.O_RDWR | os.O_EXCL))
        connection = sqlite3.connect(self.path, timeout=30, check_same_thread=False, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        self._file = _identity(self.path)
        return connection

    def _ensure(self) -> None:
        """Makes the tables where the file is new, of another version, or damaged."""
        try:
            with self._connections.one() as connection:
                version = manifest.version_of(connection)
            if version not in (0, manifest.INDEX_VERSION):
                self._start_over(f"it has version {version}, expected {manifest.INDEX_VERSION}")
            elif not version:
                with self._transaction() as connection:
                    if not manifest.version_of(connection):  # another process may have made them meanwhile
                        self._make_tables(connection)
        except sqlite3.OperationalError as error:
            raise StoreError(f"the index {self.path} cannot be opened ({error}).") from error
        except sqlite3.DatabaseError as error:
            self._start_over(f"it is damaged ({error})")

    def _start_over(self, why: str) -> None:
        """Removes the file, and has everything read again."""
        self._damage = None
        self._state = None
        self._connections.close()
        self.answers.forget()
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self._empty(why)

    def _empty(self, why: str) -> None:
        """Has everything read again, the file's other readers undisturbed."""
        logger.warning("rollout-traces: the index %s is built anew: %s.", self.path, why)
        with self._transaction() as connection:
            self._make_tables(connection)

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        manifest.create(connection)
        set_meta(connection, "built", time.time_ns())
        remove_unknown(self.segments, [])

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connections.one() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _refresh(self, progress: Progress | None) -> int:
        if self._lacks_or_has_too_much():
            self._empty(f"its traces are not those of {self.source.label} any more")
        with self.reading() as connection:
            after, seen, built = (int(meta(connection, name)) for name in ("watermark", "seen", "built"))
        added = 0
        if self.source.last_rowid() > after:
            n_source = self.source.count()
            for n in self._batches(after, built):
                added += n
                if progress is not None:
                    progress(min(seen + added, n_source), n_source)
        if added and self._has_tables_of_ours():
            self._empty("rollouts were logged of runs whose tables were read")
            return self._refresh(progress)
        of_tables = self._refresh_tables()
        if added or of_tables:
            self._compact(fewest=2 if added + of_tables >= MANY else FEWEST_JOINED)
        self._copy_runs()
        return added + of_tables

    def _batches(self, after: int, built: int) -> Iterator[int]:
        """Reads and writes page after page; yields how many each added.

        Stops when another process has built the index anew: what was read belongs to the old one.
        """
        while page := self.source.traces(after):
            after = page[-1].rowid
            with self._transaction() as connection:
                if meta(connection, "built") != built:
                    return
                watermark = meta(connection, "watermark")
                fresh = [stored for stored in page if stored.rowid > watermark]
                if fresh:
                    StepWriter(connection, self.segments, self.source).add(
                        [read_trace(each) for each in fresh]
                    )
                    set_meta(connection, "watermark", after)
                    set_meta(connection, "last_id", fresh[-1].trace_id)
                    set_meta(connection, "seen", meta(connection, "seen") + len(fresh))
                    manifest.changed(connection)
            yield len(fresh)

    def _refresh_tables(self) -> int:
        """Adds the rows of new tables, but for those of runs that have traces of our own; gives their number."""
        last = self.source.last_metrics_id()
        with self.reading() as connection:
            after, counted = (int(meta(connection, name)) for name in (TABLES, COUNTED))
        added = 0
        if last <= after:
            return 0
        for reached, rows in self.source.logged_tables.between(after, last, PAGE_BYTES):
            with self._transaction() as connection:
                if int(meta(connection, TABLES)) != after:
                    return added
                ours = runs_of_ours(connection, {row.run_id for row in rows})
                new = [read_trace(row) for row in rows if row.run_id not in ours]
                if new:
                    StepWriter(connection, self.segments, self.source).add(new)
                    manifest.changed(connection)
                after = reached
                counted = counted or len(new)
                added += len(new)
                set_meta(connection, TABLES, reached)
                if counted:
                    set_meta(connection, COUNTED, self.source.count_metrics(reached))
        return added

    def _compact(self, fewest: int = FEWEST_JOINED) -> None:
        """Joins small segments; what a killed process left in the folder goes too."""
        with self._transaction() as connection:
            gone = compact(connection, self.segments, fewest)
            if gone:
                manifest.changed(connection)
            known = manifest.segments(connection, self.segments)
            remove_unknown(self.segments, [*gone, *(segment.path for segment in known)])
        for path in gone:
            path.unlink(missing_ok=True)

    def _lacks_or_has_too_much(self) -> bool:
        """Tells whether the source has other traces than were read of it: deleted ones' rowids are given out again."""
        with self.snapshot() as connection:
            watermark, seen, last_id = (meta(connection, name) for name in ("watermark", "seen", "last_id"))
            of_tables, counted = (meta(connection, name) for name in (TABLES, COUNTED))
        others = seen and (self.source.count(watermark) != seen or self.source.id_at(watermark) != last_id)
        return bool(others or (counted and self.source.count_metrics(of_tables) != counted))

    def _has_tables_of_ours(self) -> bool:
        with self.snapshot() as connection:
            found = connection.execute(
                "SELECT DISTINCT run_id FROM docs JOIN places USING (place) JOIN runs USING (run) WHERE src < 0"
            )
            return bool(runs_of_ours(connection, {run_id for (run_id,) in found.fetchall()}))

    def _copy_runs(self) -> None:
        runs = sorted(self.source.runs())
        with self.reading() as connection:
            known = connection.execute(f"SELECT {manifest.RUN} FROM runs ORDER BY run_id").fetchall()
        if runs == known:
            return
        with self._transaction() as connection:
            manifest.replace_runs(connection, runs)
            manifest.changed(connection)


def _say_hidden(state: State) -> None:
    hidden = sorted(set(state.side.kinds) - state.side_names)
    if hidden:
        logger.warning(
            "rollout-traces: a side table has columns that the table has by itself; they are left out: %s.",
            ", ".join(hidden),
        )


def _identity(path: Path) -> tuple[int, int] | None:
    """Gives what distinguishes a file from another of the same name; None when there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
