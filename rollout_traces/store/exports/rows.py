"""One parquet file of an export -> the columns of a segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.bounded_reading import on_disk, read, schema_of
from rollout_traces.store.columns.assemble import ROW_BITS
from rollout_traces.store.columns.kinds import Kind, kind_of_type, type_of
from rollout_traces.store.columns.schema import ALWAYS, PLACE, TRACE
from rollout_traces.store.exports import MESSAGES, NO_VALUE, TEXTS
from rollout_traces.store.reading import conversation_text, spaced
from rollout_traces.store.rows import NO_STEP

_DROPPED = frozenset({*TEXTS, "traced", "superseded", "position", "row", "place", "run_no", "doc"})
"""Columns that are computed anew, or read on request."""


@dataclass(frozen=True)
class FileRows:
    """The rows of a file.

    Attributes:
        columns: column name -> kind and values [N].
        messages: the conversations as JSON text [N], null where there is none; None without that column.
        n_rows: rows, N.
    """

    columns: dict[str, tuple[Kind, pa.Array]]
    messages: pa.Array | None
    n_rows: int

    def words(self, row: int) -> bytes:
        """A row's conversation as it is indexed."""
        said = None if self.messages is None else self.messages[row].as_py()
        return b"" if said is None else spaced(conversation_text(said))


def read_file(data: bytes, name: str) -> FileRows:
    """Reads a file of an export.

    Args:
        data: the file.
        name: its path below the address; folders `column=value` are columns.

    Raises:
        StoreError: it is damaged, too long, or its rows say no run and step.
    """
    with on_disk(data, name) as path:
        wanted = [c for c in schema_of(path).names if c not in TEXTS or c == MESSAGES]
        table = read(path, wanted)
    n = table.num_rows
    if n >= 1 << ROW_BITS:
        raise StoreError(f"{name}: {n} rows in one file; at most {(1 << ROW_BITS) - 1} are read.")
    columns = {c: found for c in table.column_names if c not in _DROPPED and (found := _column(table[c]))}
    columns |= _of_folders(name, n)
    if "step" not in columns or not {"run", "run_id"} & set(columns):
        raise StoreError(
            f"{name}: its columns say no run and step; expected what `export --partition-by` writes."
        )
    columns["step"] = ("int", columns["step"][1].cast(pa.int64(), safe=False).fill_null(NO_STEP))
    messages = table[MESSAGES] if MESSAGES in table.column_names else None
    if messages is not None and not pa.types.is_string(messages.type):
        messages = None
    return FileRows(columns, None if messages is None else _whole(messages), n)


def read_texts(data: bytes, rows: Sequence[int]) -> list[dict[str, str | None]]:
    """The JSON texts of some rows of a file, by column name.

    Args:
        data: the file.
        rows: which rows.
    """
    asked = sorted({int(row) for row in rows})
    with on_disk(data, "the file of the export") as path:
        found = dict(zip(asked, read(path, TEXTS, asked).to_pylist(), strict=True))
    return [found[int(row)] for row in rows]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _column(column: pa.ChunkedArray) -> tuple[Kind, pa.Array] | None:
    """A column in the kind that the table holds it; None for what it cannot hold."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        texts = pa.types.is_string(kind.value_type) or pa.types.is_null(kind.value_type)
        return ("tags", _whole(column.cast(type_of("tags")))) if texts else None
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind):
        return None
    found = kind_of_type(kind)
    return found, _whole(column.cast(type_of(found), safe=False))


def _of_folders(name: str, n: int) -> dict[str, tuple[Kind, pa.Array]]:
    """The columns that folders `column=value` say, the same for every row."""
    found: dict[str, tuple[Kind, pa.Array]] = {}
    for part in name.split("/")[:-1]:
        column, is_column, text = part.partition("=")
        if not is_column:
            continue
        column, value = unquote(column), _value(unquote(column), unquote(text))
        kind: Kind = "float" if isinstance(value, float) else "int" if isinstance(value, int) else "text"
        found[column] = (kind, pa.array([value] * n, type_of(kind)))
    return found


def _value(column: str, text: str) -> Any:
    if text == NO_VALUE:
        return None
    kind = {**ALWAYS, **PLACE, **TRACE, "run": "text", "run_id": "text"}.get(column)
    for number, kinds in ((int, ("int", None)), (float, ("float", None))):
        if kind in kinds:
            try:
                return number(text)
            except ValueError:
                continue
    return text
