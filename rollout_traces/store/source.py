"""The source that traces are read from: one set of read-only SQL over Trackio's tables, whatever carries it.

A local project and a Trackio server differ only in how a SELECT travels, so a source is one method,
`select`, and everything else is written once here. Nothing here imports Trackio.
"""

from __future__ import annotations

import abc
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.model.live_lines import LIVE_FOLDER
from rollout_traces.model.packed_arrays import damage_said
from rollout_traces.model.text import SAID
from rollout_traces.model.units import MB
from rollout_traces.store.logged_tables import LoggedTables
from rollout_traces.store.places import (
    LABELS_FOLDER,
    LINES_SUFFIX,
    MARKS_FOLDER,
    SIDE_FOLDER,
    database_path,
    lines_path,
    local_index_path,
    local_projects,
    own_labels_path,
)
from rollout_traces.store.rows import StoredTrace
from rollout_traces.trace.images import read_file

NO_PROJECT = "There is none at all: TRACKIO_DIR names another folder, and `rollout-traces show --example` opens a run to look at."
PAGE_BYTES = 16 * MB
"""Messages read, and indexed, together; one trace may hold more."""
SCALARS = 5000
"""Rows of logged scalars read together."""
_PLACE = "rowid, id, run_id, run_name, step, key, trace_index, timestamp"
_LEDGER = "CASE WHEN key LIKE '%/steps' THEN spans END"
SqlValue = str | int | float | None
LoggedRows = list[tuple[int, int, str, str | bytes]]
"""Rows of logged scalars: id, step, timestamp, JSON text."""


class SourceRun(NamedTuple):
    """One run of the project.

    Attributes:
        run_id: Trackio's id of it.
        name: its name; several runs may share one.
        started: when its first entry was stored; empty when unknown.
        last_step: the highest step logged.
    """

    run_id: str
    name: str
    started: str
    last_step: int


class Source(abc.ABC):
    """A project of Trackio, read only.

    Attributes:
        project: the project's name.
        label: how it is called in messages to a person.
        page: rows of text fetched in one SELECT, and indexed in one transaction.
        texts: the JSON of a trace as it is selected for the index, as text or as bytes.
    """

    project: str
    label: str
    page: int = 1000
    texts: str = "messages, metadata"
    _tables: set[str] | frozenset[str] = frozenset()

    @abc.abstractmethod
    def select(self, sql: str, parameters: Sequence[SqlValue] = ()) -> list[tuple[Any, ...]]:
        """Runs one read-only SELECT.

        Args:
            sql: the statement, with `?` for each parameter.

        Returns:
            The rows.

        Raises:
            StoreError: the project cannot be read.
        """

    @abc.abstractmethod
    def index_path(self) -> Path:
        """Says where this source's index file belongs."""

    def marks_path(self) -> Path:
        """The file of what readers said of the project's incidents: beside the index, which can be made again, never in it."""
        index = self.index_path()
        return index.with_name(f"{index.name}-marks{LINES_SUFFIX}")

    def labels_path(self) -> Path:
        """Says where the file of people's labels on its rollouts belongs: with this user, where it is not beside them."""
        return own_labels_path(self.label)

    @abc.abstractmethod
    def side_folder(self) -> str:
        """Says where this source's side tables belong: a folder of this machine, or an address."""

    def live_folder(self) -> Path | None:
        """Finds the folder in which loggers say what is in flight; None where that is on another machine."""
        return None

    def media(self, path: str) -> bytes:
        """A file that Trackio keeps for the project.

        Args:
            path: its path under Trackio's media folder, as a trace names it.

        Raises:
            StoreError: it is not on this machine, not the project's, or cannot be read.
        """
        raise StoreError("images are shown on the machine that holds the project's files alone.")

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of connections."""

    def last_rowid(self) -> int:
        """The highest rowid among the traces, 0 when there are none."""
        return self._number("traces", "SELECT max(rowid) FROM traces")

    def count(self, up_to: int | None = None) -> int:
        """Counts the traces.

        Args:
            up_to: count only those of at most this rowid.
        """
        # The test on run_id makes SQLite count in its slimmest index; the texts' own is as large as they are.
        sql = "SELECT count(run_id) FROM traces WHERE run_id >= ''"
        test, given = ("", ()) if up_to is None else (" AND rowid <= ?", (up_to,))
        return self._number("traces", sql + test, given)

    def id_at(self, rowid: int) -> str | None:
        """The id of the trace with a rowid, None when there is none."""
        rows = self._of("traces", "SELECT id FROM traces WHERE rowid = ?", (rowid,))
        return rows[0][0] if rows else None

    def traces(self, after: int) -> list[StoredTrace]:
        """Traces in order of arrival; spans only of those that may be step summaries.

        Args:
            after: rowid to start behind.

        Returns:
            At most `page` of them, at least one if there are any.
        """
        last = self._last_of_page(after)
        if last is None:
            return []
        return self._stored("rowid > ? AND rowid <= ?", (after, last))

    def _stored(self, where: str, parameters: Sequence[SqlValue]) -> list[StoredTrace]:
        """Traces that satisfy a condition; spans only of those that may be step summaries."""
        sql = f"SELECT {_PLACE}, {self.texts}, {_LEDGER} FROM traces WHERE {where} ORDER BY rowid"
        return [StoredTrace(*row) for row in self.select(sql, parameters)]

    @cached_property
    def logged_tables(self) -> LoggedTables:
        """The tables of completions among the project's scalars, whose rows are read like traces."""
        return LoggedTables(self.select)

    def last_metrics_id(self) -> int:
        """The highest id among the rows of logged scalars, 0 when there are none."""
        return self._number("metrics", "SELECT max(id) FROM metrics")

    def count_metrics(self, up_to: int) -> int:
        """Counts the rows of logged scalars up to an id."""
        return self._number("metrics", "SELECT count(*) FROM metrics WHERE id <= ?", (up_to,))

    def traces_at(self, rowids: Sequence[int]) -> list[StoredTrace]:
        """Traces by rowid, in that order of arrival; spans only of those that may be step summaries."""
        found = self.logged_tables.rowids([rowid for rowid in rowids if rowid < 0])
        for chunk in self.pages(sorted(rowid for rowid in rowids if rowid >= 0)):
            found += self._stored(f"rowid IN ({_holes(chunk)})", chunk)
        return found

    def _last_of_page(self, after: int) -> int | None:
        """The rowid where a page ends: after `page` rows, or before they hold more than PAGE_BYTES."""
        last, size = None, 0
        for rowid, length in self._of(
            "traces",
            "SELECT rowid, length(messages) FROM traces WHERE rowid > ? ORDER BY rowid LIMIT ?",
            (after, self.page),
        ):
            size += length
            if last is not None and size > PAGE_BYTES:
                break
            last = rowid
        return last

    def trace(self, trace_id: str) -> StoredTrace:
        """One whole trace.

        Raises:
            StoreError: there is none of that id.
        """
        of_table = self.logged_tables.ids([trace_id]).get(trace_id)
        if of_table is not None:
            return of_table
        rows = self._of(
            "traces", f"SELECT {_PLACE}, messages, metadata, spans FROM traces WHERE id = ?", (trace_id,)
        )
        if not rows:
            raise StoreError(
                f"{self.label}: no trace {trace_id!r}. It may have been deleted; list them again."
            )
        return StoredTrace(*rows[0])

    def messages(self, rowids: Sequence[int], having: str) -> Iterator[tuple[int, str | bytes]]:
        """Messages of the traces whose text may hold a piece of text.

        Args:
            rowids: which traces.
            having: the text, any case.

        Yields:
            rowid and JSON text of the messages, for a superset of the traces that hold it.
        """
        for stored in self.logged_tables.rowids([rowid for rowid in rowids if rowid < 0]):
            yield stored.rowid, stored.messages
        for chunk in self.pages([rowid for rowid in rowids if rowid >= 0]):
            yield from self.select(
                f"SELECT rowid, messages FROM traces WHERE rowid IN ({_holes(chunk)}) AND instr(search_text, ?)",
                (*chunk, having.lower()),
            )

    def texts_of(self, trace_ids: Sequence[str], *, spans: bool) -> dict[str, tuple[Any, Any, Any]]:
        """JSON texts of some traces by id: messages, metadata, and spans or None.

        Args:
            trace_ids: which traces; those that are gone are left out.
            spans: read the spans too.
        """
        of_tables = self.logged_tables.ids(trace_ids)
        found: dict[str, Any] = {
            i: (stored.messages, stored.metadata, None) for i, stored in of_tables.items()
        }
        last = "spans" if spans else "NULL"
        for chunk in self.pages([i for i in trace_ids if i not in of_tables]):
            sql = f"SELECT id, messages, metadata, {last} FROM traces WHERE id IN ({_holes(chunk)})"
            rows = self._of("traces", sql, chunk)
            found.update({trace_id: texts for trace_id, *texts in rows})
        return {trace_id: tuple(texts) for trace_id, texts in found.items()}

    def pages(self, values: Sequence[Any]) -> Iterator[list[Any]]:
        """Some values, as many at a time as one SELECT may name."""
        for at in range(0, len(values), self.page):
            yield list(values[at : at + self.page])

    def runs(self) -> list[SourceRun]:
        """The project's runs, oldest first, those without traces included."""
        found: dict[str, SourceRun] = {}
        for table in ("metrics", "traces"):
            for run in self._runs_of(table):
                known = found.get(run.run_id, run)
                started, last = min(run.started, known.started), max(run.last_step, known.last_step)
                found[run.run_id] = run._replace(started=started, last_step=last)
        return sorted(found.values(), key=lambda run: (run.started, run.name))

    def _runs_of(self, table: str) -> Iterator[SourceRun]:
        """One seek in Trackio's own indexes for each run; a GROUP BY would read every row."""
        sql = (
            f"SELECT run_id, run_name, (SELECT min(timestamp) FROM {table} b WHERE b.run_id = a.run_id),"
            f" (SELECT max(step) FROM {table} b WHERE b.run_id = a.run_id)"
            f" FROM {table} a WHERE run_id > ? ORDER BY run_id LIMIT 1"
        )
        after = ""
        while rows := self._of(table, sql, (after,)):
            after, name, started, last_step = rows[0]
            yield SourceRun(after, name, started or "", last_step if type(last_step) is int else 0)

    def run_config(self, run_id: str) -> dict[str, Any]:
        """A run's configuration, empty when none was stored."""
        rows = self._of("configs", "SELECT config FROM configs WHERE run_id = ?", (run_id,))
        with damage_said(f"{self.label}: the configuration of run {run_id}"):
            return dict(orjson.loads(rows[0][0])) if rows else {}

    def metrics(self, run_id: str, after: int) -> LoggedRows:
        """Rows of a run's logged scalars in order of arrival: id, step, timestamp, JSON text.

        Args:
            after: id to start behind.
        """
        return self._of(
            "metrics",
            "SELECT id, step, timestamp, metrics FROM metrics WHERE run_id = ? AND id > ? ORDER BY id LIMIT ?",
            (run_id, after, SCALARS),
        )

    def loss_histograms(self, run_id: str, split: str, step: int) -> list[str]:
        """Reads the packed histograms of a step's loss tokens, one a part of it, where they are not in step summaries."""
        return []

    def _of(self, table: str, sql: str, parameters: Sequence[SqlValue] = ()) -> list[tuple[Any, ...]]:
        """The rows of a SELECT from one table; none where the project does not have it yet."""
        return self.select(sql, parameters) if self._has(table) else []

    def _number(self, table: str, sql: str, parameters: Sequence[SqlValue] = ()) -> int:
        """The one number of a SELECT from one table; 0 where there is none."""
        rows = self._of(table, sql, parameters)
        return int(rows[0][0] or 0) if rows else 0

    def _has(self, table: str) -> bool:
        if table not in self._tables:
            self._tables = {
                row[0] for row in self.select("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
        return table in self._tables


def _holes(values: Sequence[Any]) -> str:
    """One `?` a value; not every source takes a list as one JSON parameter."""
    return ", ".join("?" * len(values))


class Connections:
    """Opens connections as they are needed and keeps them warm.

    Args:
        open_one: opens a connection with `check_same_thread=False`.
    """

    def __init__(self, open_one: Callable[[], sqlite3.Connection]) -> None:
        self._open_one = open_one
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closings = 0

    @contextmanager
    def one(self) -> Iterator[sqlite3.Connection]:
        """Lends a connection that no other thread uses meanwhile."""
        with self._lock:
            closings = self._closings
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._open_one()
        try:
            yield connection
        finally:
            with self._lock:
                kept = closings == self._closings
                if kept:
                    self._idle.append(connection)
            if not kept:
                connection.close()

    def close(self) -> None:
        """Closes those that are idle now, and those that are lent when they come back."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._closings += 1
        for connection in idle:
            connection.close()


class LocalSource(Source):
    """A local project.

    Args:
        project: its name.
        folder: Trackio's folder; by default where Trackio itself looks.

    Raises:
        StoreError: there is no such project.
    """

    # bytes: a text would be decoded, and encoded again to be parsed
    texts = "CAST(messages AS BLOB), CAST(metadata AS BLOB)"

    def __init__(self, project: str, folder: Path | None = None) -> None:
        self.project = project
        self.path = database_path(project, folder)
        self.label = f"project {project!r}"
        if not self.path.is_file():
            known = local_projects(self.path.parent)
            there = f"Projects there: {', '.join(known)}." if known else NO_PROJECT
            raise StoreError(f"no project {project!r} in {self.path.parent}. {there}")
        self._connections = Connections(lambda: open_read_only(self.path))

    def select(self, sql: str, parameters: Sequence[SqlValue] = ()) -> list[tuple[Any, ...]]:
        """Runs one SELECT on the project's database."""
        try:
            with self._connections.one() as connection:
                return connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.label}: {self.path} cannot be read ({error}).") from error

    def media_folder(self) -> Path:
        """Finds the folder in which Trackio keeps the project's media files; it may be missing."""
        return self.path.parent / "media" / self.path.stem

    def media(self, path: str) -> bytes:
        """A file in the project's media folder; links that lead out of it are not followed."""
        folder = self.media_folder()
        try:
            own = folder.resolve(strict=True)
            wanted = (folder.parent / path).resolve(strict=True)
            if not wanted.is_relative_to(own):
                raise ValueError("it is not in the project's media folder.")
            return read_file(str(wanted))
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.label}: the file {path[:SAID]!r} cannot be shown: {error}") from error

    def index_path(self) -> Path:
        """Beside the project, in a folder that Trackio does not look into."""
        return local_index_path(self.path)

    def marks_path(self) -> Path:
        """Beside the project, in a folder that Trackio does not look into; beside the index where that cannot be."""
        return lines_path(self.path, MARKS_FOLDER, super().marks_path())

    def labels_path(self) -> Path:
        """Beside the project, or in the user's data, and not in the index, which can be removed."""
        return lines_path(self.path, LABELS_FOLDER, own_labels_path(str(self.path.resolve())))

    def live_folder(self) -> Path | None:
        """Beside the project."""
        return self.path.parent / LIVE_FOLDER / self.path.stem

    def side_folder(self) -> str:
        """Beside the project, in a folder that Trackio does not look into."""
        return str(self.path.parent / SIDE_FOLDER / self.path.stem)

    def close(self) -> None:
        """Closes the connections."""
        self._connections.close()


def open_read_only(database: Path, patience: float = 10) -> sqlite3.Connection:
    """A connection to a project's file that cannot write, for any thread.

    Args:
        patience: seconds to wait for whoever has locked it.

    Raises:
        sqlite3.Error: it is none, or cannot be read.
    """
    address = database.resolve().as_uri()
    connection = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=patience, check_same_thread=False)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError:  # a read-only folder has no place for the log's index
        connection.close()
        connection = sqlite3.connect(f"{address}?immutable=1", uri=True, check_same_thread=False)
    return connection
