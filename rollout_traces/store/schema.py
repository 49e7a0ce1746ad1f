"""The index file: its tables, its version, and the columns it has grown."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollout_traces.store.reading import SIGNS, Tags

INDEX_VERSION = 4
"""Another version in a file means that the file is built anew."""
MAX_COLUMNS = 1000
"""Metadata names that get a column; further ones stay in the trace alone and are counted."""

WORDS_IN_MEMORY = 32 << 20
"""Bytes of the full-text index that are gathered before they are written: fewer pieces to merge later."""

Table = Literal["traces", "ledger"]
Kind = Literal["number", "text", "tags", "mixed"]

FIXED: Mapping[Table, tuple[str, ...]] = {
    "traces": ("run", "split", "step", "kind"),
    "ledger": ("run", "split", "step"),
}
"""Columns with a name of their own; all others are `m0`, `m1`, ... and found in the registry."""
HEAD = ("id", "key", "trace_index", "timestamp", "n_messages", "prompt", "reply")
"""Columns of `heads`: what a list shows of a trace beside its numbers."""

_FIRST_OF_BOTH = (
    "group",
    "sample",
    "reward",
    "advantage",
    "n_sampled",
    "n_turns",
    "staleness_max",
    "version_min",
    "version_max",
    "flags",
    "stop_reason",
    "discard_reason",
    "trained",
    "prompt_key",
    "uid",
)
FIRST: Mapping[Table, tuple[str, ...]] = {
    "traces": (*_FIRST_OF_BOTH, "n_tokens"),
    "ledger": (*_FIRST_OF_BOTH, "trace_uid", "selected_by"),
}
"""Names that get the first columns, where SQLite reaches them soonest."""
SORTED = ("reward", "advantage", "n_sampled")
"""Names that rows are mostly sorted by: an index of each within a run."""

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE columns (tbl TEXT, name TEXT, slot INTEGER, kind TEXT, PRIMARY KEY (tbl, name)) WITHOUT ROWID;
CREATE TABLE runs (run INTEGER PRIMARY KEY, run_id TEXT UNIQUE, name TEXT, started TEXT, last_step INTEGER);
CREATE TABLE traces (
    doc INTEGER PRIMARY KEY AUTOINCREMENT, src INTEGER, run INTEGER, split TEXT, step INTEGER, kind TEXT);
CREATE INDEX traces_place ON traces (run, split, step);
CREATE INDEX traces_newest ON traces (step, run, split);
CREATE INDEX traces_src ON traces (src);
CREATE TABLE heads (
    doc INTEGER PRIMARY KEY, id TEXT, key TEXT, trace_index INTEGER, timestamp TEXT, n_messages INTEGER,
    prompt TEXT, reply TEXT);
CREATE INDEX heads_id ON heads (id);
CREATE TABLE digests (
    digest INTEGER PRIMARY KEY AUTOINCREMENT, src INTEGER, id TEXT, run INTEGER, split TEXT, step INTEGER,
    n_rows INTEGER, fields TEXT, packed BLOB);
CREATE INDEX digests_place ON digests (run, split, step);
CREATE TABLE ledger (
    row INTEGER PRIMARY KEY, digest INTEGER, run INTEGER, split TEXT, step INTEGER);
CREATE INDEX ledger_place ON ledger (run, split, step);
CREATE INDEX ledger_newest ON ledger (step, run, split);
CREATE INDEX ledger_digest ON ledger (digest);
"""
_SIGNS = SIGNS.replace("'", "''")
_WORDS = (
    "CREATE VIRTUAL TABLE words USING fts5("
    f"""text, content='', tokenize="unicode61 remove_diacritics 2 tokenchars '{_SIGNS}'")"""
)


@dataclass(frozen=True)
class Column:
    """One column of a table that a query can name.

    Attributes:
        name: its name in queries.
        kind: what its values are: `number`, `text`, `tags` (lists of names), or `mixed`.
        sql: the SQL expression that reads it.
    """

    name: str
    kind: Kind
    sql: str


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
    connection.execute("INSERT INTO words (words, rank) VALUES ('hashsize', ?)", (WORDS_IN_MEMORY,))
    for table, names in FIRST.items():
        registry = Registry(connection, table)
        slots = {name: registry.slot(name, None) for name in names}
        for name in ("uid", "prompt_key"):
            connection.execute(f"CREATE INDEX {table}_{name} ON {table} (m{slots[name]}, run)")
        for name in SORTED:
            connection.execute(f"CREATE INDEX {table}_{name} ON {table} (run, m{slots[name]})")
    connection.execute("INSERT INTO meta VALUES ('version', ?)", (INDEX_VERSION,))


class Registry:
    """The grown columns of one table, for writing inside a transaction.

    Args:
        connection: the writer's connection.
        table: the table.
    """

    def __init__(self, connection: sqlite3.Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        self._known: dict[str, tuple[int, str | None]] = {
            name: (slot, kind)
            for name, slot, kind in connection.execute(
                "SELECT name, slot, kind FROM columns WHERE tbl = ?", (table,)
            )
        }
        self.left_out: set[str] = set()

    def slot(self, name: str, value: Any) -> int | None:
        """The column number of a name, made when new; None when there are too many.

        Args:
            name: the name.
            value: a value it takes, which tells its kind.
        """
        known = self._known.get(name)
        kind = _kind_of(value)
        if known is None:
            if len(self._known) >= MAX_COLUMNS:
                self.left_out.add(name)
                return None
            known = (len(self._known), kind)
            self._connection.execute(f"ALTER TABLE {self._table} ADD COLUMN m{known[0]}")
            self._connection.execute(
                "INSERT INTO columns VALUES (?, ?, ?, ?)", (self._table, name, known[0], kind)
            )
            self._known[name] = known
        elif kind is not None and known[1] != kind and known[1] != "mixed":
            merged = kind if known[1] is None else "mixed"
            self._connection.execute(
                "UPDATE columns SET kind = ? WHERE tbl = ? AND name = ?", (merged, self._table, name)
            )
            known = self._known[name] = (known[0], merged)
        return known[0]


def queryable(connection: sqlite3.Connection, table: Table) -> dict[str, Column]:
    """The columns that a query on a table can name.

    Args:
        connection: any connection to the index.
        table: which rows are asked for.
    """
    columns = {
        "run": Column("run", "text", "(SELECT r.name FROM runs r WHERE r.run = t.run)"),
        "run_id": Column("run_id", "text", "(SELECT r.run_id FROM runs r WHERE r.run = t.run)"),
        "split": Column("split", "text", "t.split"),
        "step": Column("step", "number", "t.step"),
    }
    if table == "traces":
        columns["kind"] = Column("kind", "text", "t.kind")
        for name in HEAD:
            kind: Kind = "number" if name in ("trace_index", "n_messages") else "text"
            columns[name] = Column(name, kind, f"(SELECT h.{name} FROM heads h WHERE h.doc = t.doc)")
    for name, slot, stored in connection.execute(
        "SELECT name, slot, kind FROM columns WHERE tbl = ? ORDER BY slot", (table,)
    ):
        columns.setdefault(name, Column(name, stored or "mixed", f"t.m{slot}"))
    return columns


def _kind_of(value: Any) -> str | None:
    if isinstance(value, Tags):
        return "tags"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None
