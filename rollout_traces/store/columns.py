"""The columns of the table of rollouts; how ledgers and traces of some steps become one Arrow table with a row a rollout;
and side tables: further columns of traced rollouts that somebody computed, joined by trace id.

A side table is a parquet file, or a folder of them, with a column `id` and any others. Those of a project lie
in `rollout-columns/<project>/` beside it, those of an export in its folder `_columns/`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_traces.errors import FileRefused
from rollout_traces.ledger.columns import COLUMNS, NULL_INT, Coded, number_text, unpack_coded
from rollout_traces.model.bounded_reading import read, schema_of
from rollout_traces.model.packed_arrays import damage_said

Kind = Literal["bool", "int", "float", "text", "tags", "mixed"]
"""`tags` are lists of names; `mixed` columns hold numbers and texts, all as text."""

_TYPES: dict[Kind, tuple[pa.DataType, str]] = {
    "bool": (pa.bool_(), "BOOLEAN"),
    "int": (pa.int64(), "BIGINT"),
    "float": (pa.float64(), "DOUBLE"),
    "text": (pa.string(), "VARCHAR"),
    "tags": (pa.list_(pa.string()), "VARCHAR[]"),
    "mixed": (pa.large_string(), "VARCHAR"),
}
_NUMBER_TEXT = """CASE WHEN isinf({0}) THEN CASE WHEN {0} < 0 THEN '-Infinity' ELSE 'Infinity' END
    WHEN {0} = trunc({0}) AND abs({0}) < 9007199254740992 THEN CAST(CAST({0} AS BIGINT) AS VARCHAR)
    ELSE CAST({0} AS VARCHAR) END"""
"""As `number_text`."""


def type_of(kind: Kind) -> pa.DataType:
    """The Arrow type of a kind."""
    return _TYPES[kind][0]


def sql_type(kind: Kind) -> str:
    """The SQL type of a kind."""
    return _TYPES[kind][1]


def kind_of(kind: pa.DataType) -> Kind:
    """The kind of a column that `column_of` or `cast` made, by its Arrow type."""
    return "mixed" if kind == type_of("mixed") else kind_of_type(kind)


def kind_of_type(kind: pa.DataType) -> Kind:
    """The kind that holds an Arrow type, of a file that anybody wrote."""
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_floating(kind):
        return "float"
    return "tags" if pa.types.is_list(kind) else "text"


def common_kind(kinds: Iterable[Kind]) -> Kind:
    """The narrowest kind that holds all of some kinds."""
    found = set(kinds)
    if len(found) == 1:
        return found.pop()
    if found <= {"bool", "int"}:
        return "int"
    return "float" if found <= {"bool", "int", "float"} else "mixed"


def cast(column: pa.Array, kind: Kind) -> pa.Array:
    """A column as another kind that holds it."""
    wanted = type_of(kind)
    if column.type == wanted:
        return column
    if kind == "mixed" and not pa.types.is_string(column.type):
        return column_of([tuple(v) if isinstance(v, list) else v for v in column.to_pylist()], kind)
    return column.cast(wanted, safe=False)


def sql_cast(column: str, held: Kind, kind: Kind) -> str:
    """The same in SQL.

    Args:
        column: SQL of the column.
        held: what it holds.
        kind: what it becomes.
    """
    if sql_type(held) == sql_type(kind):
        return column
    if kind == "mixed" and held == "tags":
        return f"CASE len({column}) WHEN 0 THEN '' ELSE array_to_string({column}, ', ') END"  # null in DuckDB 1.4
    return (
        _NUMBER_TEXT.format(column)
        if kind == "mixed" and held == "float"
        else f"CAST({column} AS {sql_type(kind)})"
    )


def column_of(values: Sequence[Any], kind: Kind | None = None) -> pa.Array:
    """A column of plain values, None where unknown.

    Args:
        values: bools, ints, floats, texts, or tuples of texts, in any mixture.
        kind: what the column holds; the narrowest kind that holds the values when None.
    """
    types = {type(value) for value in values} - {type(None)}
    found = kind or common_kind(_KINDS.get(each, "mixed") for each in types or {int})
    if found in _PLAIN:
        values = [None if value is None else _PLAIN[found](value) for value in values]
    return pa.array(values, type_of(found))


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return number_text(value) if isinstance(value, (bool, int, float)) else str(value)


_KINDS: dict[type, Kind] = {bool: "int", int: "int", float: "float", str: "text", tuple: "tags"}
_PLAIN: dict[Kind, Callable[[Any], Any]] = {"int": int, "float": float, "mixed": _as_text}


PLACE: Mapping[str, Kind] = {"row": "int", "place": "int", "run_no": "int", "split": "text", "step": "int"}
"""Stored of every row: `row` is unique and ascends with arrival; `place` is run, split and step as a number."""
TRACE: Mapping[str, Kind] = {
    "doc": "int",
    "id": "text",
    "kind": "text",
    "key": "text",
    "trace_index": "int",
    "timestamp": "text",
    "n_messages": "int",
    "prompt": "text",
    "reply": "text",
}
"""Known of traced rows alone; `doc` is the row's number in the text index."""
COMPUTED: Mapping[str, Kind] = {
    "run": "text",
    "run_id": "text",
    "traced": "bool",
    "superseded": "bool",
    "late": "bool",
}
"""Not stored in this form, and known of every row."""
LABELLED: Mapping[str, Kind] = {"labels": "tags", "notes": "text", "labelled_by": "tags"}
"""From the file of labels; known of the rows that somebody labelled."""
INTERNAL = frozenset({"row", "place", "run_no", "doc", "late_part", "from_ledger"})
"""Columns that the store needs, and that a query of the filter language cannot name."""
_OWN_PLACE = frozenset({*PLACE, "late", "equal_to", "origin"})
"""Columns of a ledger that the table has in another form, or for few runs alone."""
ALWAYS: Mapping[str, Kind] = {
    **{c.name: c.kind for c in COLUMNS if not c.name.endswith("/*") and c.name not in _OWN_PLACE},
    "n_tokens": "int",
    "train_version": "int",
    "tool_names": "tags",
    "error_signatures": "tags",
    "population": "int",
    "late_part": "int",
    "group_size": "int",
    "decoded_from": "text",
    "response_mask_from": "text",
    "status": "text",
    "parsed_answer": "text",
    "schema": "int",
    "unreadable": "int",
    "written_by": "text",
}
"""Columns that the table has although no row may know them yet."""
METRICS: Mapping[str, Kind] = {
    "run": "text",
    "run_id": "text",
    "split": "text",
    "step": "int",
    "key": "text",
    "value": "float",
    "attempt": "text",
    "superseded": "bool",
}
"""Columns of the relation `metrics`: logged scalars and step metrics, one number a row."""
MEANINGS: Mapping[str, str] = {
    "id": "Trackio's id of the trace",
    "run": "the run's name",
    "run_id": "Trackio's id of the run",
    "key": "the key the trace was logged under",
    "trace_index": "its place in the list it was logged in",
    "timestamp": "when Trackio stored it",
    "n_messages": "messages in the conversation",
    "prompt": "first words of the first user message",
    "reply": "first words of the last assistant message, its thinking left out",
    "traced": "1 when the rollout was kept as a trace",
    "superseded": "1 when a later attempt of the run began at this step or before it, whether it has come as far yet or not",
    "late": "1 when it came after its step was closed",
    "tool_names": "names of the tools that were called",
    "error_signatures": "what failed tool results say, digits and names replaced; known for traced rows",
    "labels": "labels that people put on it, on one of its turns or on some of its tokens",
    "notes": "notes that people wrote on it, a line each",
    "labelled_by": "who labelled it or wrote a note",
    "unreadable": "1 when its stored JSON is damaged, or its fields are not those of the trainer that wrote it",
    "written_by": "the trainer that wrote the trace, where it was not rollout-traces and its trainer is known",
}
"""Meanings of columns that neither a ledger nor a trace's metadata explains."""


def quoted(name: str) -> str:
    """A column's name inside SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text inside SQL."""
    return "'" + text.replace("'", "''") + "'"


def stored_name(name: str) -> str | None:
    """The name under which a ledger's or a trace's column is stored; None for names of the table's own."""
    name = name.replace("\x00", "")[:MOST_NAME]
    if name == "late":
        return "late_part"
    return None if name.lower() in _RESERVED or not name else name


MOST_NAME = 200
"""Characters of a column's name that count."""
_RESERVED = frozenset({*PLACE, *TRACE, *COMPUTED, *LABELLED, *INTERNAL})


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


logger = logging.getLogger("rollout_traces")
SIDE_KEY = "id"


@dataclass(frozen=True)
class SideColumns:
    """The columns of all side tables of a project at one moment.

    Attributes:
        stamp: changes with the files.
        files: column -> the files that hold it.
        kinds: column -> its kind.
        meanings: column -> what its field's metadata says under `meaning`.
    """

    stamp: tuple[tuple[str, int, int], ...] = ()
    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)

    def table(self, key: str, names: Sequence[str]) -> pa.Table:
        """Some columns by trace id, null where no side table speaks of a trace; the last file that speaks of it counts.

        Args:
            key: what the column of ids is called.
            names: the columns.
        """
        schema = pa.schema([(SIDE_KEY, pa.string()), *((name, type_of(self.kinds[name])) for name in names)])
        paths = sorted({path for name in names for path in self.files[name]})
        blocks = [block for path in paths if (block := self._block(path, names)) is not None]
        whole = pa.concat_tables([schema.empty_table(), *blocks], promote_options="default")
        known = whole.filter(pc.is_valid(whole[SIDE_KEY])).group_by(SIDE_KEY, use_threads=False)
        newest = known.aggregate([(name, "last") for name in names])
        return newest.select([SIDE_KEY, *(f"{name}_last" for name in names)]).rename_columns([key, *names])

    def _block(self, path: Path, names: Sequence[str]) -> pa.Table | None:
        """The columns of a file; None where it cannot be read."""
        mine = [name for name in names if path in self.files[name]]
        try:
            table = read(path, [SIDE_KEY, *mine])
            columns = {name: table[name].cast(type_of(self.kinds[name]), safe=False) for name in mine}
            return pa.table({SIDE_KEY: table[SIDE_KEY].cast(pa.string()), **columns})
        except (FileRefused, pa.ArrowException, OSError, KeyError, ValueError) as error:
            logger.warning("rollout-traces: the side table %s is left out: %s", path, error)
            return None


def read_side_columns(folder: Path, known: SideColumns) -> SideColumns:
    """Reads the side tables of a folder as they are now.

    Args:
        folder: where they lie; it may be missing.
        known: what was read before; given back where no file changed.
    """
    if not folder.is_dir():
        return known if not known.stamp else SideColumns()
    paths = sorted(p for p in folder.rglob("*.parquet") if not p.name.startswith((".", "_")))
    stamp = tuple((str(path), (at := path.stat()).st_mtime_ns, at.st_size) for path in paths)
    if stamp == known.stamp:
        return known
    files: dict[str, list[Path]] = {}
    kinds: dict[str, Kind] = {}
    meanings: dict[str, str] = {}
    for path in paths:
        try:
            schema = schema_of(path)
        except (FileRefused, OSError) as error:
            logger.warning("rollout-traces: the side table %s is left out: %s", path, error)
            continue
        if SIDE_KEY not in schema.names:
            logger.warning("rollout-traces: the side table %s is left out: it has no column id.", path)
            continue
        for column in schema:
            if column.name == SIDE_KEY or pa.types.is_nested(column.type) or pa.types.is_null(column.type):
                continue
            files.setdefault(column.name, []).append(path)
            kinds.setdefault(column.name, kind_of_type(column.type))
            meaning = (column.metadata or {}).get(b"meaning")
            if meaning:
                meanings[column.name] = meaning.decode("utf-8", "replace")
    return SideColumns(stamp, files, kinds, meanings)


def remove_rows(folder: Path, trace_ids: Collection[str]) -> None:
    """Takes the rows of some traces out of every side table of a folder.

    Args:
        folder: where they lie; it may be missing.
        trace_ids: whose rows.
    """
    ids = pa.array(sorted(trace_ids), pa.string())
    for path in sorted(folder.rglob("*.parquet")) if folder.is_dir() else ():
        table = read(path)
        if SIDE_KEY not in table.column_names:
            continue
        kept = table.filter(pc.invert(pc.is_in(table[SIDE_KEY].cast(pa.string()), value_set=ids)))
        if kept.num_rows < table.num_rows:
            unfinished = path.with_suffix(".unfinished")
            pq.write_table(kept, unfinished, compression="zstd")
            unfinished.replace(path)
