"""Ledgers and traces of some steps -> one Arrow table with a row a rollout."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollout_traces.ledger.columns import NULL_INT, Coded, unpack_coded
from rollout_traces.model.packed_arrays import damage_said
from rollout_traces.store.columns.schema import PLACE, Kind, cast, column_of, common_kind, kind_of, type_of

ROW_BITS = 22
"""A row's number is the rowid of what it was read from, and below it its place inside, in so many bits."""
_PLACED = ("split", "step", "run")
"""Columns of a ledger that its place says already."""


def assemble(ledgers: Sequence[pa.Table], traces: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Joins ledgers and traces; a newer row of a rollout replaces the older.

    Args:
        ledgers: the ledgers in order of arrival, each with the columns of `PLACE`.
        traces: the columns of each trace in order of arrival, those of `PLACE` among them; lists of names as tuples.

    Returns:
        One row a rollout: those of ledgers, each with what its trace knows, and the traces without one. Columns of
        which no row knows anything are left out.
    """
    below, above = _newest(stacked(ledgers)), _newest(_of_traces(traces))
    n_ledger = below.num_rows
    row_of = {rollout: row for row, rollout in enumerate(_rollouts(below))}
    target = np.array([row_of.get(rollout, -1) for rollout in _rollouts(above)], np.int64)
    alone = np.flatnonzero(target < 0)
    target[alone] = n_ledger + np.arange(len(alone))
    above = _with_flags_of(below, above, target)
    lower = stacked([below, above.take(alone)])
    traced = np.full(lower.num_rows, -1, np.int64)
    traced[target] = np.arange(above.num_rows)
    pick = pa.array(traced, mask=traced < 0)
    found = {name: lower[name] for name in lower.column_names}
    for name in above.column_names:
        if name != "row":  # a row that a ledger knows keeps the ledger's number
            over = cast(above[name], kind_of(found[name].type)).take(pick)
            found[name] = pc.coalesce(over, found[name])
    known = {
        name: column for name, column in found.items() if name in PLACE or column.null_count < len(column)
    }
    return pa.table(known)


def stacked(blocks: Sequence[pa.Table]) -> pa.Table:
    """Tables of rows as one; a column is of the kind that holds all its values, null where a table lacks it.

    Args:
        blocks: the tables, each with the columns of `PLACE`.
    """
    kinds: dict[str, set[Kind]] = {name: {kind} for name, kind in PLACE.items()}
    for block in blocks:
        for column in block.schema:
            kinds.setdefault(column.name, set()).add(kind_of(column.type))
    schema = pa.schema([(name, type_of(common_kind(found))) for name, found in kinds.items()])
    return pa.concat_tables(
        [schema.empty_table(), *(_as(block, schema) for block in blocks)]
    ).combine_chunks()


def _as(block: pa.Table, schema: pa.Schema) -> pa.Table:
    there = set(block.column_names)
    columns = [
        cast(block[name], kind_of(kind)) if name in there else pa.nulls(block.num_rows, kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _rollouts(rows: pa.Table) -> list[Hashable]:
    """The rollout that each row is of: a uid within a place; the row itself where it has no uid."""
    numbers = rows["row"].to_pylist()
    if "uid" not in rows.column_names:
        return numbers
    uids = cast(rows["uid"], "mixed").to_pylist()
    return [
        number if uid is None else (place, uid)
        for number, place, uid in zip(numbers, rows["place"].to_pylist(), uids, strict=True)
    ]


def _newest(rows: pa.Table) -> pa.Table:
    """The newest row of each rollout."""
    newest = {rollout: row for row, rollout in enumerate(_rollouts(rows))}
    return rows if len(newest) == rows.num_rows else rows.take(sorted(newest.values()))


def _of_traces(traces: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = dict.fromkeys(name for fields in traces for name, value in fields.items() if value is not None)
    columns = {name: column_of([fields.get(name) for fields in traces]) for name in names}
    return stacked([pa.table(columns)] if columns else [])


def _with_flags_of(below: pa.Table, above: pa.Table, target: np.ndarray) -> pa.Table:
    """The traces' rows, each with its own flags and after them what its ledger's row has besides."""
    inside = np.flatnonzero(target < below.num_rows)
    if not len(inside) or "flags" not in below.column_names or kind_of(below["flags"].type) != "tags":
        return above
    known = below["flags"].take(target[inside]).to_pylist()
    own = above["flags"].to_pylist() if "flags" in above.column_names else [None] * above.num_rows
    flags = [tuple(value) if isinstance(value, list) else value for value in own]
    for at, others in zip(inside.tolist(), known, strict=True):
        mine = flags[at] if isinstance(flags[at], tuple) else ()
        flags[at] = tuple(dict.fromkeys((*mine, *(others or ()))))
    rest = above.drop_columns(["flags"]) if "flags" in above.column_names else above
    return rest.append_column("flags", column_of(flags))


def read_ledger(packed: bytes) -> tuple[int, dict[str, pa.Array]]:
    """Unpacks a ledger, without a Python object a row.

    Args:
        packed: what `ledger.columns.pack` made.

    Returns:
        Number of rows B, and the columns [B] with nulls where unknown.

    Raises:
        StoreError: the bytes are damaged or of a newer schema.
    """
    with damage_said("ledger"):
        n, columns = unpack_coded(packed)
        found = {str(name): _array(column) for name, column in columns.items() if name not in _PLACED}
        if any(len(column) != n for column in found.values()):
            raise ValueError("columns of different lengths")
        return n, found


def _array(column: np.ndarray | Coded) -> pa.Array:
    if isinstance(column, Coded):
        return _texts(column.values).take(pa.array(column.codes))
    if column.dtype.kind == "f":
        return pa.array(column, mask=np.isnan(column))
    return pa.array(column, mask=column == NULL_INT)


def _texts(values: Any) -> pa.Array:
    if any(isinstance(value, tuple) for value in values):
        return pa.array([None if v is None else list(map(str, v)) for v in values], pa.list_(pa.string()))
    return pa.array([None if v is None else str(v) for v in values], pa.string())
