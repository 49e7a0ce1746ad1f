"""Ledgers and traces of some steps -> one Arrow table with a row a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_traces.ledger.columns import NULL_INT, Coded, unpack_coded
from rollout_traces.model.packed_arrays import damage_said
from rollout_traces.store.columns.schema import Kind, cast, column_of, common_kind, kind_of_type, type_of

ROW_BITS = 22
"""A row's number is the rowid of what it was read from, and below it its place inside, in so many bits."""
_PLACED = ("split", "step", "run")
"""Columns of a ledger that its place says already."""


@dataclass(frozen=True)
class TracePart:
    """One stored trace.

    Attributes:
        src: its rowid in Trackio's table.
        fields: the columns it knows; lists of names as tuples.
    """

    src: int
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class LedgerPart:
    """One ledger.

    Attributes:
        src: the rowid of its step summary in Trackio's table.
        n_rows: rollouts, B.
        columns: its columns [B].
    """

    src: int
    n_rows: int
    columns: Mapping[str, pa.Array]


@dataclass
class PlaceParts:
    """All that is stored of one step of a split of a run.

    Attributes:
        place: the place's number.
        run_no: the run's number.
        split: the split.
        step: the step.
        traces: its traces, in order of arrival.
        ledgers: its ledgers, in order of arrival.
    """

    place: int
    run_no: int
    split: str
    step: int
    traces: list[TracePart] = field(default_factory=list)
    ledgers: list[LedgerPart] = field(default_factory=list)


@dataclass(frozen=True)
class Assembled:
    """Rows that become a segment.

    Attributes:
        table: the rows [N].
        kinds: the kind of each column.
    """

    table: pa.Table
    kinds: Mapping[str, Kind]


def assemble(places: Sequence[PlaceParts]) -> Assembled:
    """Joins ledgers and traces of some places; a newer row of a rollout replaces the older.

    Args:
        places: the places.

    Returns:
        One row a rollout: those of ledgers, each with what its trace knows, and the traces without one.
    """
    ledger, rows_of = _ledger_rows(places)
    traces, homes, rows = _newest_traces(places)
    n_ledger = len(ledger["row"][1])
    target = np.array([rows_of.get(home, -1) for home in homes], np.int64).reshape(len(homes))
    alone = target < 0
    target[alone] = n_ledger + np.arange(int(alone.sum()))
    n = n_ledger + int(alone.sum())
    from_trace = _trace_columns(traces, rows)
    from_trace["flags"] = _joined_flags(ledger.get("flags"), traces, target, n_ledger)
    picked = np.full(n, -1, np.int64)
    picked[target] = np.arange(len(traces))
    pick = pa.array(picked, mask=picked < 0)
    columns: dict[str, pa.Array] = {}
    kinds: dict[str, Kind] = {}
    for name in [*ledger, *(name for name in from_trace if name not in ledger)]:
        column, kind = _overlaid(ledger.get(name), from_trace.get(name), pick, n - n_ledger)
        if name in ("row", "place") or column.null_count < len(column):
            columns[name], kinds[name] = column, kind
    # a row that a ledger knows keeps the ledger's number
    if n_ledger and len(traces):
        columns["row"] = _padded(ledger["row"][1], n - n_ledger).fill_null(columns["row"])
    return Assembled(pa.table(columns), kinds)


def _ledger_rows(
    places: Sequence[PlaceParts],
) -> tuple[dict[str, tuple[Kind, pa.Array]], dict[tuple[int, Any], int]]:
    """The rows of all ledgers as columns, and where a rollout of a place with traces is among them."""
    blocks: list[dict[str, pa.Array]] = []
    rows_of: dict[tuple[int, Any], int] = {}
    n = 0
    for place in places:
        known: dict[Any, int] = {}
        first = n
        replaced: set[int] = set()
        for part in place.ledgers:
            blocks.append(_block(place, part))
            if place.traces or len(place.ledgers) > 1:
                uids = part.columns["uid"].to_pylist() if "uid" in part.columns else [None] * part.n_rows
                for row, uid in enumerate(uids, n):
                    if uid is not None and uid in known:
                        replaced.add(known[uid])
                    if uid is not None:
                        known[uid] = row
            n += part.n_rows
        if replaced:
            n = _without(blocks, first, n, replaced, len(place.ledgers), known)
        rows_of.update({(place.place, uid): row for uid, row in known.items()} if place.traces else {})
    return stacked(blocks), rows_of


def _without(
    blocks: list[dict[str, pa.Array]],
    first: int,
    last: int,
    replaced: set[int],
    n_blocks: int,
    known: dict[Any, int],
) -> int:
    """Takes replaced rows out of a place's blocks; returns the number of rows there are now."""
    kept = np.array([row for row in range(first, last) if row not in replaced], np.int64)
    moved = {int(row): first + at for at, row in enumerate(kept)}
    known.update({uid: moved[row] for uid, row in known.items()})
    at = first
    for b in range(len(blocks) - n_blocks, len(blocks)):
        size = len(blocks[b]["row"])
        inside = kept[(kept >= at) & (kept < at + size)] - at
        blocks[b] = {name: column.take(pa.array(inside)) for name, column in blocks[b].items()}
        at += size
    return first + len(kept)


def _block(place: PlaceParts, part: LedgerPart) -> dict[str, pa.Array]:
    n = part.n_rows
    return {
        **part.columns,
        "row": pa.array((part.src << ROW_BITS) + np.arange(n, dtype=np.int64)),
        "place": pa.array(np.full(n, place.place, np.int64)),
        "run_no": pa.array(np.full(n, place.run_no, np.int64)),
        "split": pa.repeat(place.split, n),
        "step": pa.array(np.full(n, place.step, np.int64)),
        "from_ledger": pa.array(np.ones(n, bool)),
    }


def stacked(blocks: Sequence[Mapping[str, pa.Array]]) -> dict[str, tuple[Kind, pa.Array]]:
    """Blocks of rows as one; a column is of the kind that holds all its blocks, null where a block lacks it."""
    names = list(dict.fromkeys(name for block in blocks for name in block))
    found: dict[str, tuple[Kind, pa.Array]] = {}
    for name in names:
        kinds = {kind_of_type(block[name].type) for block in blocks if name in block}
        kind = common_kind(kinds)
        parts = [
            cast(block[name], kind) if name in block else pa.nulls(len(block["row"]), type_of(kind))
            for block in blocks
        ]
        found[name] = (kind, pa.concat_arrays(parts))
    return found or {"row": ("int", pa.array([], pa.int64()))}


def _newest_traces(
    places: Sequence[PlaceParts],
) -> tuple[list[TracePart], list[tuple[int, Any]], list[PlaceParts]]:
    """The traces, the newest of each rollout; the rollout each is of, and its place."""
    traces: list[TracePart] = []
    homes: list[tuple[int, Any]] = []
    rows: list[PlaceParts] = []
    for place in places:
        newest: dict[Any, TracePart] = {}
        for part in place.traces:
            uid = part.fields.get("uid")
            newest[("src", part.src) if uid is None else uid] = part
        for key, part in newest.items():
            traces.append(part)
            homes.append((place.place, key))
            rows.append(place)
    return traces, homes, rows


def _trace_columns(
    traces: Sequence[TracePart], places: Sequence[PlaceParts]
) -> dict[str, tuple[Kind, pa.Array]]:
    names = list(dict.fromkeys(name for part in traces for name in part.fields))
    found = {name: column_of([part.fields.get(name) for part in traces]) for name in names}
    return found | {
        "row": column_of([part.src << ROW_BITS for part in traces]),
        "place": column_of([place.place for place in places]),
        "run_no": column_of([place.run_no for place in places]),
        "split": column_of([place.split for place in places]),
        "step": column_of([place.step for place in places]),
    }


def _joined_flags(
    ledger: tuple[Kind, pa.Array] | None, traces: Sequence[TracePart], target: np.ndarray, n_ledger: int
) -> tuple[Kind, pa.Array]:
    """Flags of a trace, and after them what its ledger's row has besides."""
    values: list[Any] = [part.fields.get("flags") for part in traces]
    inside = np.flatnonzero(target < n_ledger)
    if ledger is not None and ledger[0] == "tags" and len(inside):
        known = ledger[1].take(pa.array(target[inside])).to_pylist()
        for at, flags in zip(inside.tolist(), known, strict=True):
            own = values[at] if isinstance(values[at], tuple) else ()
            values[at] = tuple(dict.fromkeys((*own, *(flags or ()))))
    return column_of(values)


def _overlaid(
    below: tuple[Kind, pa.Array] | None, above: tuple[Kind, pa.Array] | None, pick: pa.Array, n_more: int
) -> tuple[pa.Array, Kind]:
    """A ledger's column with the values of the traces over it."""
    if above is None or above[1].null_count == len(above[1]):
        assert below is not None or above is not None
        kind, column = below if below is not None else above  # type: ignore[misc]
        if below is None:
            return pa.nulls(len(pick), type_of(kind)), kind
        return _padded(column, n_more), kind
    if below is None:
        return above[1].take(pick), above[0]
    kind = common_kind({below[0], above[0]})
    taken = cast(above[1], kind).take(pick)
    return taken.fill_null(_padded(cast(below[1], kind), n_more)), kind


def _padded(column: pa.Array, n_more: int) -> pa.Array:
    return pa.concat_arrays([column, pa.nulls(n_more, column.type)]) if n_more else column


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
