"""Rows of the table as plain rows, and the one trace that is meant by an id."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.store.columns.kinds import Kind
from rollout_traces.store.columns.schema import COMPUTED, INTERNAL, LABELLED
from rollout_traces.store.columns.table import Rows
from rollout_traces.store.query.names import Names
from rollout_traces.store.rows import TraceRow

PLACE = ("id", "run_id", "run", "split", "step")


def shown_columns(rows: Rows, wanted: Sequence[str] | None) -> list[str]:
    """The columns that a row is shown with: all that any row may know, or some of them.

    Args:
        rows: the table.
        wanted: some columns; all when None.

    Raises:
        StoreError: there is no column of a name.
    """
    known = {*rows.state.stored_names, "id", "split", "step", *COMPUTED, *rows.state.side_names}
    known |= LABELLED.keys() if rows.state.labelled.entries else set()
    names = [name for name in rows.kinds if name in known and name not in INTERNAL]
    if wanted is None:
        return names
    for name in wanted:
        if name not in rows.kinds or name in INTERNAL:
            raise StoreError(f"columns: no column {name!r}.{Names(rows.kinds).hint(name)}")
    return list(dict.fromkeys([*PLACE, *wanted]))


def plain_rows(rows: Rows, positions: np.ndarray, names: Sequence[str]) -> list[TraceRow]:
    """Rows of the table as plain ones.

    Args:
        rows: the table.
        positions: which, int [K], in this order.
        names: their columns, with those that say where each is.
    """
    columns = rows.values(positions, names)
    places = zip(*(columns.pop(name) for name in PLACE), strict=True)
    known = {name: _listed(values, rows.kinds[name]) for name, values in columns.items()}
    others = zip(*known.values(), strict=True) if known else [()] * len(positions)
    return [
        TraceRow(
            trace_id,
            run_id,
            run,
            split,
            step,
            {name: value for name, value in zip(known, row, strict=True) if value is not None},
        )
        for (trace_id, run_id, run, split, step), row in zip(places, others, strict=True)
    ]


def find_trace(connection: sqlite3.Connection, wanted: str) -> str:
    """The id of the trace with an id or uid, or the only one that begins so.

    Args:
        connection: the index.
        wanted: the id, uid, or beginning of either.

    Raises:
        StoreError: there is none, or there are several.
    """
    tests = ("?2 IS NOT NULL AND (id = ?1 OR uid = ?1)", "id >= ?1 AND id < ?2 OR uid >= ?1 AND uid < ?2")
    for test in tests:
        stored = connection.execute(
            f"SELECT id, uid, place FROM docs WHERE kind <> 'digest' AND ({test}) ORDER BY doc DESC LIMIT 8",
            (wanted, wanted + "\U0010ffff"),
        ).fetchall()
        newest: dict[Any, tuple[str, Any]] = {}
        for trace_id, uid, place in stored:
            newest.setdefault(trace_id if uid is None else (uid, place), (trace_id, uid))
        found = sorted(newest.values(), key=lambda each: str(each[1]))[:4]
        if len(found) == 1 and wanted:
            return str(found[0][0])
        if len(found) > 1:
            some = ", ".join(
                f"{trace_id} (uid {uid})" if uid is not None else trace_id for trace_id, uid in found
            )
            raise StoreError(f"more than one trace begins with {wanted!r}: {some}. Give more of it.")
    raise StoreError(f"no trace {wanted!r}. `rollout-traces list` shows what there is.")


def _listed(values: list[Any], kind: Kind) -> list[Any]:
    """Lists of names as tuples."""
    return [None if value is None else tuple(value) for value in values] if kind == "tags" else values
