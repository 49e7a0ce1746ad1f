"""The index's own SQLite file: which segments there are, what was read, and the words of all conversations;
and how small segments become larger ones.

One transaction of it is what makes a change of the index whole: a segment that it does not name is no part
of the table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_traces.model.packed_arrays import MADE_UP
from rollout_traces.store.columns import ALWAYS, kind_of, stacked, stored_name, type_of
from rollout_traces.store.reading import SIGNS
from rollout_traces.store.rollout_table import (
    TRAINING,
    SegmentFile,
    State,
    Superseded,
    check_segment,
    write_segment,
)

INDEX_VERSION = 1
"""Another version in a file means that the index is built anew."""
MAX_COLUMNS = 2000
"""Names that get a column; further ones stay in the trace alone and are counted."""
RUN = "run_id, name, started, last_step"
"""Columns of a run."""

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE runs (run INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT UNIQUE, name TEXT, started TEXT, last_step INTEGER);
CREATE TABLE places (place INTEGER PRIMARY KEY, run INTEGER, split TEXT, step INTEGER, UNIQUE (run, split, step));
CREATE TABLE segments (segment INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT, n_rows INTEGER, kinds TEXT, checksum INTEGER);
CREATE TABLE parts (
    segment INTEGER, place INTEGER, n_rows INTEGER, n_ledger INTEGER, n_traces INTEGER, dead INTEGER,
    PRIMARY KEY (segment, place)) WITHOUT ROWID;
CREATE INDEX parts_place ON parts (place);
CREATE TABLE attempts (run INTEGER, split TEXT, attempt TEXT, first_step INTEGER, PRIMARY KEY (run, split, attempt))
    WITHOUT ROWID;
CREATE TABLE columns (name TEXT PRIMARY KEY, stored TEXT) WITHOUT ROWID;
CREATE TABLE docs (
    doc INTEGER PRIMARY KEY AUTOINCREMENT, src INTEGER UNIQUE, id TEXT, uid TEXT, place INTEGER, kind TEXT);
CREATE INDEX docs_id ON docs (id);
CREATE INDEX docs_uid ON docs (uid);
CREATE INDEX docs_place ON docs (place);
CREATE INDEX docs_digest ON docs (place, doc) WHERE kind = 'digest';
CREATE TABLE files (file INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT UNIQUE, size INTEGER, stamp TEXT);
"""
_SIGNS = SIGNS.replace("'", "''")
_WORDS = (
    "CREATE VIRTUAL TABLE words USING fts5("
    f"""text, content='', tokenize="unicode61 remove_diacritics 2 tokenchars '{_SIGNS}'")"""
)


def create(connection: sqlite3.Connection) -> None:
    """Makes empty tables in place of any there are, inside the caller's transaction."""
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'words_%'"
    ).fetchall():
        connection.execute(f"DROP TABLE {name}")
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(_WORDS)
    connection.execute(f"PRAGMA user_version = {INDEX_VERSION}")


def version_of(connection: sqlite3.Connection) -> int:
    """The version of a file's tables; 0 for a file without any."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def meta(connection: sqlite3.Connection, name: str) -> Any:
    """A remembered value; 0 where there is none."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else row[0]


def set_meta(connection: sqlite3.Connection, name: str, value: int | str) -> None:
    """Remembers a value."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def stamp(connection: sqlite3.Connection) -> tuple[int, ...]:
    """Reads numbers that change whenever rows came or went, or the index was built anew."""
    return tuple(int(meta(connection, name)) for name in ("built", "changes"))


def changed(connection: sqlite3.Connection) -> None:
    """Counts a change, so that every reader looks again."""
    set_meta(connection, "changes", int(meta(connection, "changes")) + 1)


def state(connection: sqlite3.Connection, folder: Path) -> State:
    """Reads the state of the table.

    Args:
        connection: a connection inside a snapshot.
        folder: where the segments are.
    """
    runs = {
        run: (run_id, name or "")
        for run, run_id, name in connection.execute("SELECT run, run_id, name FROM runs")
    }
    return State(stamp(connection), tuple(segments(connection, folder)), runs, superseded(connection))


def superseded(connection: sqlite3.Connection) -> Superseded:
    """The step from which an attempt's rows of a split are superseded by a later attempt.

    A later attempt supersedes a split from the first step that it wrote of it, steps that it has not come to
    included: they were sampled by weights that it did not go on from. It supersedes every split but training
    also from the first step that it trained, since what was evaluated behind that belongs to weights that
    were thrown away. Attempts are texts ordered by time; those that nothing supersedes are left out.
    """
    found = connection.execute(
        "SELECT a.run, a.split, a.attempt, min(later.first_step) FROM attempts a JOIN attempts later"
        " ON later.run = a.run AND later.attempt > a.attempt AND later.split IN (a.split, ?)"
        " GROUP BY a.run, a.split, a.attempt",
        (TRAINING,),
    )
    with _whole_values():
        return {(run, split, attempt): int(step) for run, split, attempt, step in found}


@contextmanager
def _whole_values() -> Iterator[None]:
    """Says of values that nobody wrote what SQLite says of a damaged page: the index is built anew then."""
    try:
        yield
    except MADE_UP as error:
        raise sqlite3.DatabaseError(f"values that were not written: {error}") from error


def segments(connection: sqlite3.Connection, folder: Path) -> list[SegmentFile]:
    """The segments of the table, in order."""
    dead: dict[int, list[int]] = {}
    for number, place in connection.execute("SELECT segment, place FROM parts WHERE dead"):
        dead.setdefault(number, []).append(place)
    with _whole_values():
        return [
            SegmentFile(
                number, folder / file, n_rows, orjson.loads(kinds), checksum, frozenset(dead.get(number, ()))
            )
            for number, file, n_rows, kinds, checksum in connection.execute(
                "SELECT segment, file, n_rows, kinds, checksum FROM segments ORDER BY segment"
            ).fetchall()
        ]


def place_of(connection: sqlite3.Connection, run: int, split: str, step: int) -> int:
    """The number of a place, a new one where it has none."""
    key = (run, split, step)
    connection.execute("INSERT OR IGNORE INTO places (run, split, step) VALUES (?, ?, ?)", key)
    [place] = connection.execute("SELECT place FROM places WHERE run = ? AND split = ? AND step = ?", key)
    return int(place[0])


def add_segment(connection: sqlite3.Connection, written: tuple[Path, int], table: pa.Table) -> int:
    """Names a file as a segment.

    Args:
        connection: a connection whose transaction the caller holds.
        written: the file, and the CRC-32 of its bytes.
        table: the rows in it.
    """
    path, checksum = written
    kinds = {column.name: kind_of(column.type) for column in table.schema}
    cursor = connection.execute(
        "INSERT INTO segments (file, n_rows, kinds, checksum) VALUES (?, ?, ?, ?)",
        (path.name, table.num_rows, orjson.dumps(kinds).decode(), checksum),
    )
    number = int(cursor.lastrowid or 0)
    connection.executemany(
        "INSERT INTO parts VALUES (?, ?, ?, ?, ?, 0)", [(number, *part) for part in _parts_of(table)]
    )
    return number


def remember_attempts(connection: sqlite3.Connection, table: pa.Table) -> None:
    """Notes the first step of each attempt in some rows."""
    if "attempt" not in table.column_names:
        return
    grouped = table.select(["run_no", "split", "attempt", "step"]).filter(table["attempt"].is_valid())
    keys = ["run_no", "split", "attempt"]
    first = grouped.group_by(keys).aggregate([("step", "min")]).select([*keys, "step_min"])
    connection.executemany(
        "INSERT INTO attempts VALUES (?, ?, ?, ?) ON CONFLICT (run, split, attempt)"
        " DO UPDATE SET first_step = min(first_step, excluded.first_step)",
        zip(*first.to_pydict().values(), strict=True),
    )


def _parts_of(table: pa.Table) -> Iterator[tuple[int, int, int, int]]:
    """Place, rows, rows of ledgers and traced rows of each place in a segment's rows."""
    counted = ("row", "from_ledger", "doc")
    names, unknown = table.column_names, pa.nulls(table.num_rows, pa.bool_())
    columns = {name: table[name] if name in names else unknown for name in ("place", *counted)}
    found = pa.table(columns).group_by("place").aggregate([(name, "count") for name in counted])
    order = ["place", *(f"{name}_count" for name in counted)]
    yield from zip(*found.select(order).to_pydict().values(), strict=True)


def replace_runs(connection: sqlite3.Connection, runs: Sequence[tuple[str, str, str, int]]) -> None:
    """Puts a source's runs in place of those that are known; those that have rows stay.

    Args:
        connection: a connection whose transaction the caller holds.
        runs: the values of `RUN` of each.
    """
    ids = orjson.dumps([run_id for run_id, *_ in runs]).decode()
    connection.execute(
        "DELETE FROM runs WHERE run_id NOT IN (SELECT value FROM json_each(?))"
        " AND run NOT IN (SELECT run FROM places JOIN parts USING (place) WHERE NOT dead)",
        (ids,),
    )
    connection.executemany(
        f"INSERT INTO runs ({RUN}) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (run_id) DO UPDATE SET name = excluded.name, started = excluded.started,"
        " last_step = excluded.last_step",
        runs,
    )


class ColumnNames:
    """The names of columns: two that differ in case alone cannot both be columns of one table.

    Args:
        connection: a connection whose transaction the caller holds.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._stored: dict[str, str | None] = dict(
            connection.execute("SELECT name, stored FROM columns").fetchall()
        )
        self._taken = {name.lower() for name in (*ALWAYS, *filter(None, self._stored.values()))}
        self.left_out: set[str] = set()

    def stored(self, name: str) -> str | None:
        """The column that a ledger's or a trace's name is stored in; None where it has none."""
        if name in ALWAYS:
            return name
        if name not in self._stored:
            self._stored[name] = self._new(name)
        return self._stored[name]

    def _new(self, name: str) -> str | None:
        column = stored_name(name)
        if column is None or column in ALWAYS:
            return column
        while column.lower() in self._taken:
            column += "_"
        if len(self._stored) >= MAX_COLUMNS:
            self.left_out.add(name)
            return None
        self._connection.execute("INSERT INTO columns VALUES (?, ?)", (name, column))
        self._taken.add(column.lower())
        return column


FEWEST_JOINED = 16
"""Neighbouring segments that become one together: fewer, and every step would write its neighbours' rows anew."""
SEGMENT_ROWS = 131_072
"""Rows up to which neighbouring segments become one, and after which a batch writes one; a step is never torn."""


def compact(connection: sqlite3.Connection, folder: Path, fewest: int = FEWEST_JOINED) -> list[Path]:
    """Joins neighbouring segments up to `SEGMENT_ROWS` rows, and rewrites those of which most rows are dead.

    Args:
        connection: a connection whose transaction the caller holds.
        folder: where the segments are.
        fewest: join no fewer together.

    Returns:
        Files that are no part of the table any more, to be removed once that is committed.
    """
    dead = dict(
        connection.execute("SELECT segment, sum(n_rows) FROM parts WHERE dead GROUP BY segment").fetchall()
    )
    runs: list[list[SegmentFile]] = [[]]
    for segment in segments(connection, folder):
        if sum(other.n_rows for other in runs[-1]) + segment.n_rows > SEGMENT_ROWS:
            runs.append([])
        runs[-1].append(segment)
    spoiled = ([s] for run in runs if len(run) < fewest for s in run if 2 * dead.get(s.number, 0) > s.n_rows)
    due = [*(run for run in runs if len(run) >= fewest), *spoiled]
    for run in due:
        _join(connection, folder, run)
    return [segment.path for run in due for segment in run]


def _join(connection: sqlite3.Connection, folder: Path, run: Sequence[SegmentFile]) -> None:
    joined = stacked([_living(segment) for segment in run])
    gone = [(segment.number,) for segment in run]
    for name in ("segments", "parts"):
        connection.executemany(f"DELETE FROM {name} WHERE segment = ?", gone)
    if not joined.num_rows:
        return
    number = add_segment(connection, write_segment(folder, joined), joined)
    # the rows stay where they were in the order of arrival
    for name in ("segments", "parts"):
        connection.execute(f"UPDATE {name} SET segment = ? WHERE segment = ?", (run[-1].number, number))


def _living(segment: SegmentFile) -> pa.Table:
    check_segment(segment)
    schema = pa.schema([(name, type_of(kind)) for name, kind in segment.kinds.items()])
    table = pq.read_table(segment.path, schema=schema)
    dead = pa.array(segment.dead, pa.int64())
    return table.filter(pc.invert(pc.is_in(table["place"], value_set=dead)))
