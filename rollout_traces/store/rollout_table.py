"""The rollouts of an index: segments, immutable parquet files that any program reads; and inside DuckDB a table that follows
the manifest, and views that give every column.

`stored` has the columns of the segments; `rows` has those that are computed beside them; `rollouts`, which SQL of
anybody reads, has labels and side tables too, and none of the store's own.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_traces.errors import StoreError
from rollout_traces.model.private_files import replace_file
from rollout_traces.model.text import fresh_name
from rollout_traces.store.columns import (
    ALWAYS,
    COMPUTED,
    INTERNAL,
    LABELLED,
    PLACE,
    TRACE,
    Kind,
    SideColumns,
    common_kind,
    literal,
    quoted,
    sql_cast,
    sql_type,
)
from rollout_traces.store.engine import Engine
from rollout_traces.store.labels import Labelled

SUFFIX = ".parquet"
ROW_GROUP = 122_880
"""Rows that one of DuckDB's threads scans together; its own number."""


@dataclass(frozen=True)
class SegmentFile:
    """One file of rows.

    Attributes:
        number: its number in the manifest.
        n_rows: rows in it.
        kinds: the kind of each of its columns.
        checksum: CRC-32 of its bytes.
        dead: places whose rows in it were replaced by another segment's.
    """

    number: int
    path: Path
    n_rows: int
    kinds: Mapping[str, Kind]
    checksum: int
    dead: frozenset[int] = frozenset()


class DamagedSegment(StoreError):
    """A segment's file cannot be read, or is not what was written.

    Args:
        why: what went wrong.
    """

    def __init__(self, segment: SegmentFile, why: object) -> None:
        self.segment = segment
        super().__init__(f"{segment.path}: damaged ({why}); it is rebuilt at the next refresh.")


def write_segment(folder: Path, table: pa.Table) -> tuple[Path, int]:
    """Writes rows to a new file that only its owner can read, and nobody finds before it is complete.

    Args:
        folder: where to.
        table: the rows.

    Returns:
        The file, and the CRC-32 of its bytes.
    """
    path = folder / f"{fresh_name()}{SUFFIX}"
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", row_group_size=ROW_GROUP, store_schema=False)
    content = buffer.getvalue().to_pybytes()
    replace_file(path, content)
    return path, zlib.crc32(content)


def check_segment(segment: SegmentFile) -> None:
    """Looks whether a segment's file is what was written.

    Raises:
        FileNotFoundError: another process has replaced the segment.
        DamagedSegment: it is not.
    """
    try:
        found = zlib.crc32(segment.path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedSegment(segment, error) from error
    if found != segment.checksum:
        raise DamagedSegment(segment, f"its checksum is {found}, expected {segment.checksum}")


def remove_unknown(folder: Path, known: Sequence[Path]) -> None:
    """Removes the files of a folder that no manifest knows, left by a process that was killed."""
    kept = {path.name for path in known}
    for path in folder.iterdir() if folder.is_dir() else ():
        if SUFFIX in path.name and path.name not in kept:
            with suppress(OSError):
                path.unlink()


MOST_LOADED = 3_000_000
"""Rows up to which the table is in memory, some 400 bytes each; of more, a question reads the parquet files."""
FEW = ROW_GROUP
"""Rows that are loaded at the first question."""
FROM_FILES = 24
"""Questions that read the files of more than `FEW` rows before these are loaded: loading takes longer than the first page."""
MOST_GONE = 1_000_000
"""Rows that were taken out of it after which it is loaded anew, since they keep their memory."""
TRAINING = "rollout"
Superseded = Mapping[tuple[int, str, str], int]
"""Run's number, split and attempt -> the step from which a later attempt supersedes its rows, see `manifest.superseded`."""
CONDENSED_TOGETHER = ROW_GROUP
"""Rows after which a table that is kept condensed is condensed again, while it is loaded and later: a row group of DuckDB's."""
LABEL_KEY, SIDE_KEY = "__labelled", "__side"
"""Columns by which labels and side tables are joined; names that no column of a run has."""

Lent = TypeVar("Lent")
Loaded = dict[str, tuple[int, frozenset[int]]]
"""File -> its number in the table, and the places of it that were left out."""


@dataclass(frozen=True)
class State:
    """The manifest's state at one moment.

    Attributes:
        stamp: changes with every change of the index.
        segments: the segments, in order of arrival.
        runs: run number -> (id, name).
        superseded: from which step attempts are superseded.
        labelled: labels and notes.
        side: columns of side tables.
    """

    stamp: tuple[int, ...]
    segments: tuple[SegmentFile, ...]
    runs: Mapping[int, tuple[str, str]]
    superseded: Superseded = field(default_factory=dict)
    labelled: Labelled = field(default_factory=Labelled)
    side: SideColumns = field(default_factory=SideColumns)

    @cached_property
    def stored_kinds(self) -> dict[str, Kind]:
        """The kind of every column that some segment has."""
        found: dict[str, set[Kind]] = {}
        for segment in self.segments:
            for name, kind in segment.kinds.items():
                found.setdefault(name, set()).add(kind)
        return {**PLACE, **{name: common_kind(kinds) for name, kinds in found.items()}}

    @cached_property
    def own_kinds(self) -> dict[str, Kind]:
        """The kind of every column but those of side tables."""
        return {**ALWAYS, **self.stored_kinds, **TRACE, "from_ledger": "bool", **COMPUTED, **LABELLED}

    @cached_property
    def side_names(self) -> frozenset[str]:
        """The columns that come from side tables: those that the table has not by itself, in any case of letters."""
        own = {name.lower() for name in self.own_kinds}
        by_lower = {name.lower(): name for name in self.side.kinds}
        return frozenset(name for lower, name in by_lower.items() if lower not in own)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kind of every column, those included that no row knows yet."""
        return self.own_kinds | {name: self.side.kinds[name] for name in sorted(self.side_names)}

    def relation(self, names: Sequence[str] | None = None) -> str:
        """Writes the relation behind FROM for some columns of `kinds`; all when None."""
        joins = []
        if self.labelled.entries and (names is None or not LABELLED.keys().isdisjoint(names)):
            joins.append(f"LEFT JOIN labelled ON {LABEL_KEY} = coalesce(CAST(uid AS VARCHAR), id)")
        if self.side_names and (names is None or not self.side_names.isdisjoint(names)):
            joins.append(f"LEFT JOIN side ON {SIDE_KEY} = id")
        return f"(SELECT * FROM rows {' '.join(joins)})" if joins else "rows"

    def views(self) -> list[str]:
        """The statements that make `rows` and `rollouts` of `stored`, `labelled` and `side`."""
        stored = self.stored_kinds
        computed = {
            **self._run_columns(),
            "traced": "doc IS NOT NULL",
            "late": "coalesce(late_part <> 0, false)",
            "superseded": superseded_sql(self.superseded),
        }
        unlabelled = {} if self.labelled.entries else LABELLED
        absent = [
            f"CAST(NULL AS {sql_type(kind)}) AS {quoted(name)}"
            for name, kind in {**ALWAYS, **TRACE, "from_ledger": "bool", **unlabelled}.items()
            if name not in stored
        ]
        every = f"SELECT {', '.join(['*', *absent])} FROM stored"
        listed = ", ".join(f"{sql} AS {name}" for name, sql in computed.items())
        shown = ", ".join(quoted(name) for name in self.kinds if name not in INTERNAL or name == "row")
        return [
            f"CREATE OR REPLACE VIEW rows AS SELECT *, {listed} FROM ({every})",
            f"CREATE OR REPLACE VIEW rollouts AS SELECT {shown} FROM {self.relation()}",
        ]

    def _run_columns(self) -> dict[str, str]:
        """SQL of `run_id` and `run`: a run's number is its place in a list."""
        first, last = min(self.runs, default=0), max(self.runs, default=0)
        columns = zip(*(self.runs.get(number, ("", "")) for number in range(first, last + 1)), strict=True)
        return {
            name: f"list_extract([{', '.join(map(literal, column))}], run_no - {first - 1})"
            for name, column in zip(("run_id", "run"), columns, strict=True)
        }

    def select(self, segment: SegmentFile, scan: str) -> str:
        """The living rows of a segment, with the columns of `stored`.

        Args:
            scan: what stands behind FROM to read its file.
        """
        columns = [
            f"{sql_cast(quoted(name), segment.kinds[name], kind)} AS {quoted(name)}"
            if name in segment.kinds
            else f"CAST(NULL AS {sql_type(kind)}) AS {quoted(name)}"
            for name, kind in self.stored_kinds.items()
        ]
        dead = f" WHERE NOT {_in_places(segment.dead)}" if segment.dead else ""
        return f"SELECT {', '.join(columns)} FROM {scan}{dead}"

    def stored(self, scan: Callable[[SegmentFile], str]) -> str:
        """The statement behind `stored` that reads the segments themselves.

        Args:
            scan: gives what stands behind FROM to read a segment's file.
        """
        parts = [self.select(segment, scan(segment)) for segment in self.segments]
        return (
            " UNION ALL ".join(parts)
            or f"{self.select(SegmentFile(0, Path(), 0, {}, 0), '(SELECT 1)')} LIMIT 0"
        )

    def tables(self) -> dict[str, pa.Table]:
        """The tables of labels and side tables, by name, where there are any."""
        found = {"labelled": self.labelled.table(LABEL_KEY)} if self.labelled.entries else {}
        if self.side_names:
            found["side"] = self.side.table(SIDE_KEY, sorted(self.side_names))
        return found


class RolloutTable:
    """The table of one process.

    Args:
        engine: what holds it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._now: State | None = None
        self._loaded: Loaded = {}
        self._next = self._gone = self._wide = self._asked = 0
        self._is_condensed = False

    @contextmanager
    def at(
        self, now: Callable[[], tuple[State, Lent]]
    ) -> Iterator[tuple[State, duckdb.DuckDBPyConnection, Lent]]:
        """Lends a connection whose statements all see one state of the table.

        Args:
            now: gives the state, and what else belongs to it; called by one thread at a time, so that no state is
                older than the one before.

        Raises:
            FileNotFoundError: another process has replaced a segment; the state is an old one.
            DamagedSegment: a segment cannot be read.
        """
        with closing(self._engine.cursor()) as cursor:
            with self._lock:
                state, lent = now()
                self._asked += 1
                if self._now is None or self._now.stamp != state.stamp or self._asked == FROM_FILES:
                    self._follow(cursor, state)
                cursor.execute("BEGIN")
                cursor.execute(
                    "SELECT 1 FROM followed LIMIT 0"
                )  # the transaction begins with what it first reads
            yield state, cursor, lent

    def keep_condensed(self) -> None:
        """Has the table take less memory from now on, for twice the time that it takes to load.

        Half of it at 400,000 rows, a third at a million; as much as before below `CONDENSED_TOGETHER`.
        """
        with self._lock:
            self._is_condensed = True

    def forget(self) -> None:
        """Reads everything anew at the next question."""
        with self._lock:
            self._now = None

    def _follow(self, cursor: duckdb.DuckDBPyConnection, state: State) -> None:
        """Brings the table from the state that it has to another one; where that fails, all is loaded at the next question."""
        before, self._now = self._now, None
        cursor.execute("BEGIN")
        try:
            cursor.execute("CREATE OR REPLACE TABLE followed AS SELECT 1")
            for name, relation in state.tables().items():
                cursor.register("given", relation)
                cursor.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM given")
                cursor.unregister("given")
            most = MOST_LOADED if self._asked >= FROM_FILES else min(MOST_LOADED, FEW)
            if sum(segment.n_rows for segment in state.segments) > most:
                loaded: Loaded = {}
                stored = self._of_files(cursor, state, before)
            else:
                loaded = self._load(cursor, state, before)
                stored = "SELECT * EXCLUDE (file_no) FROM loaded"
            for statement in (f"CREATE OR REPLACE VIEW stored AS {stored}", *state.views()):
                cursor.execute(statement)
            cursor.execute("COMMIT")
        except duckdb.Error as error:
            raise StoreError(f"the table cannot be read ({error}).") from error
        self._now, self._loaded = state, loaded

    def _load(self, cursor: duckdb.DuckDBPyConnection, state: State, before: State | None) -> Loaded:
        """Puts new segments into the table and takes out what is gone; all of it where its columns changed."""
        there = {segment.path.name: segment for segment in state.segments}
        known = {file: each for file, each in self._loaded.items() if before is not None and file in there}
        changed = before is not None and before.stored_kinds != state.stored_kinds
        if not known or changed or self._gone > MOST_GONE:
            typed = ", ".join(f"{quoted(name)} {sql_type(kind)}" for name, kind in state.stored_kinds.items())
            cursor.execute(f"CREATE OR REPLACE TABLE loaded (file_no INTEGER, {typed})")
            known, self._loaded, self._gone = {}, {}, 0
        for file, (number, dead) in self._loaded.items():
            segment = there.get(file)
            if segment is None:
                self._delete(cursor, f"file_no = {number}")
            elif segment.dead != dead:
                self._delete(cursor, f"file_no = {number} AND {_in_places(segment.dead)}")
                known[file] = (number, segment.dead)
        for file, segment in there.items():
            if file not in known:
                check_segment(segment)
                self._next += 1
                known[file] = (self._next, segment.dead)
                rows = state.select(segment, _scan(segment))
                try:
                    cursor.execute(f"INSERT INTO loaded SELECT {self._next}, * FROM ({rows})")
                except duckdb.IOException as error:
                    raise DamagedSegment(segment, error) from error
                self._condense(cursor, segment.n_rows)
        cursor.execute(
            'CREATE INDEX IF NOT EXISTS by_row ON loaded ("row")'
        )  # last: it is made quicker than kept
        return known

    def _condense(self, cursor: duckdb.DuckDBPyConnection, n_rows: int) -> None:
        """Condenses the rows that came since the last time, once they are many; the transaction ends for it."""
        self._wide += n_rows
        if self._is_condensed and self._wide >= CONDENSED_TOGETHER:
            cursor.execute("COMMIT")
            with suppress(duckdb.TransactionException):  # somebody reads: at the next rows then
                cursor.execute("CHECKPOINT condensed")
                self._wide = 0
            cursor.execute("BEGIN")

    def _delete(self, cursor: duckdb.DuckDBPyConnection, which: str) -> None:
        [(gone,)] = cursor.execute(f"DELETE FROM loaded WHERE {which}").fetchall()
        self._gone += gone

    @staticmethod
    def _of_files(cursor: duckdb.DuckDBPyConnection, state: State, before: State | None) -> str:
        """Lets go of the table in memory; gives the statement that reads the files themselves."""
        cursor.execute("DROP TABLE IF EXISTS loaded")
        known = set() if before is None else {segment.path.name for segment in before.segments}
        for segment in state.segments:
            if segment.path.name not in known:
                check_segment(segment)
        return state.stored(_scan)


def _scan(segment: SegmentFile) -> str:
    return f"read_parquet({literal(str(segment.path.resolve()))})"


def _in_places(places: Collection[int]) -> str:
    return f"place IN ({', '.join(map(str, places))})"


def superseded_sql(since: Superseded) -> str:
    """SQL that is true of superseded rows and false of all others."""
    cases = [
        f"WHEN run_no = {run} AND split = {literal(split)} AND attempt = {literal(attempt)} THEN step >= {step}"
        for (run, split, attempt), step in since.items()
    ]
    return f"CASE {' '.join(cases)} ELSE false END" if cases else "false"
