"""Rows of the index as plain rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.store import schema
from rollout_traces.store.rows import TraceRow
from rollout_traces.store.selection import KEYS


def load_rows(connection: sqlite3.Connection, table: str, keys: Sequence[int]) -> list[TraceRow]:
    """Rows of a table by key, in the order of the keys.

    Args:
        connection: the index.
        table: `traces` or `ledger`.
        keys: their primary keys.
    """
    if not keys:
        return []
    key = KEYS[table]
    joined = "JOIN heads h ON h.doc = t.doc" if table == "traces" else ""
    extra = ", ".join(f"h.{name}" for name in schema.HEAD) if table == "traces" else _traced_id(connection)
    cursor = connection.execute(
        f"SELECT r.run_id, r.name, {extra}, t.* FROM {table} t JOIN runs r ON r.run = t.run {joined}"
        f" WHERE t.{key} IN (SELECT value FROM json_each(?))",
        (orjson.dumps(list(keys)).decode(),),
    )
    places = {part[0]: at for at, part in enumerate(cursor.description)}
    shown = [(places[name], name, None) for name in ("kind", *schema.HEAD) if name in places and name != "id"]
    shown += [
        (places[f"m{slot}"], name, kind)
        for name, slot, kind in connection.execute(
            "SELECT name, slot, kind FROM columns WHERE tbl = ?", (table,)
        )
    ]
    at_id, at_run_id, at_run, at_split, at_step = (
        places[name] for name in ("id", "run_id", "name", "split", "step")
    )
    found = {
        stored[places[key]]: TraceRow(
            id=stored[at_id],
            run_id=stored[at_run_id],
            run=stored[at_run],
            split=stored[at_split],
            step=stored[at_step],
            values=_values(stored, shown),
        )
        for stored in cursor
    }
    return [found[k] for k in keys if k in found]


def find_trace(connection: sqlite3.Connection, wanted: str) -> str:
    """The id of the trace with an id or uid, or the only one that begins so.

    Args:
        connection: the index.
        wanted: the id, uid, or beginning of either.

    Raises:
        StoreError: there is none, or there are several.
    """
    uid_column = schema.queryable(connection, "traces")["uid"].sql
    exact = "h.id = ?1 OR {uid} = ?1"
    begins = "substr(h.id, 1, length(?1)) = ?1 OR substr({uid}, 1, length(?1)) = ?1"
    for test in (exact, begins):
        found = connection.execute(
            f"SELECT h.id, {uid_column} FROM traces t JOIN heads h ON h.doc = t.doc WHERE {test.format(uid=uid_column)} LIMIT 4",
            (wanted,),
        ).fetchall()
        if len(found) == 1 and wanted:
            return str(found[0][0])
        if len(found) > 1:
            some = ", ".join(
                f"{trace_id} (uid {uid})" if uid is not None else trace_id for trace_id, uid in found
            )
            raise StoreError(f"more than one trace begins with {wanted!r}: {some}. Give more of it.")
    raise StoreError(f"no trace {wanted!r}. `rollout-traces list` shows what there is.")


def _traced_id(connection: sqlite3.Connection) -> str:
    slots = dict(connection.execute("SELECT tbl, slot FROM columns WHERE name = 'uid'").fetchall())
    return (
        f"(SELECT h.id FROM traces u JOIN heads h ON h.doc = u.doc WHERE u.m{slots['traces']} = t.m{slots['ledger']}"
        " AND u.run = t.run) AS id"
    )


def _values(stored: Sequence[Any], shown: Sequence[tuple[int, str, str | None]]) -> dict[str, Any]:
    """Known values by name; `shown` has place, name and kind of each."""
    values = {}
    for at, name, kind in shown:
        value = stored[at]
        if value is None:
            continue
        if kind == "tags" or kind == "mixed":
            value = _untagged(value, kind)
        values[name] = value
    return values


def _untagged(value: Any, kind: str) -> Any:
    if not isinstance(value, str) or (kind == "mixed" and not value[:1] == value[-1:] == "|"):
        return value
    return tuple(value[1:-1].split("|")) if len(value) > 1 else ()
