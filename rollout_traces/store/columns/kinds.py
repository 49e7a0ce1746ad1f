"""What a column of the table holds, and how columns of several segments become one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from rollout_traces.ledger.columns import number_text

BYTES_OF_A_VALUE = 8
"""What a value takes in memory, at most where it is a number, and roughly where it is a text."""
Kind = Literal["bool", "int", "float", "text", "tags", "mixed"]
"""`tags` are lists of names; `mixed` columns hold numbers and texts, all as text."""

_TYPES: dict[Kind, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "tags": pa.list_(pa.string()),
    "mixed": pa.string(),
}


def type_of(kind: Kind) -> pa.DataType:
    """The Arrow type of a kind."""
    return _TYPES[kind]


def kind_of_type(kind: pa.DataType) -> Kind:
    """The kind of an Arrow type that this package writes."""
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


def cast(column: pa.Array | pa.ChunkedArray, kind: Kind) -> pa.Array | pa.ChunkedArray:
    """A column as another kind that holds it; a dictionary of values of that kind stays one."""
    wanted = type_of(kind)
    if pa.types.is_null(column.type):
        found = unknown(len(column), kind)
        return pa.chunked_array([found]) if isinstance(column, pa.ChunkedArray) else found
    if pa.types.is_dictionary(column.type) and column.type.value_type != wanted:
        column = column.cast(column.type.value_type)
    if column.type == wanted or pa.types.is_dictionary(column.type):
        return column
    if pa.types.is_list(column.type):
        return pc.binary_join(column, ", ")
    if kind == "mixed" and pa.types.is_floating(column.type):
        signed = pc.if_else(pc.less(column, 0), "-Infinity", "Infinity")
        return pc.if_else(pc.is_inf(column), signed, pc.cast(column, wanted))
    return pc.cast(column, wanted, safe=False)


def unknown(n: int, kind: Kind) -> pa.Array:
    """A column without any value [n]; all of them share their zeros."""
    wanted = type_of(kind)
    zeros = _zeros(((n + 1) * BYTES_OF_A_VALUE - 1).bit_length())
    if wanted == pa.string():
        return pa.Array.from_buffers(wanted, n, [zeros, zeros, pa.py_buffer(b"")], n)
    children = [pa.array([], pa.string())] if pa.types.is_list(wanted) else None
    return pa.Array.from_buffers(wanted, n, [zeros, zeros], n, children=children)


@cache
def _zeros(bits: int) -> pa.Buffer:
    """2 ** bits bytes of zeros."""
    return pa.py_buffer(bytes(1 << bits))


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, tuple):
        return ", ".join(value)
    return number_text(value) if isinstance(value, (bool, int, float)) else str(value)


def column_of(values: Sequence[Any]) -> tuple[Kind, pa.Array]:
    """A column of plain values, None where unknown.

    Args:
        values: bools, ints, floats, texts, or tuples of texts, in any mixture.
    """
    types = {type(value) for value in values} - {type(None)}
    kind: Kind
    if types <= {bool, int}:
        kind = "int"
    elif types <= {bool, int, float}:
        kind = "float"
    elif types <= {str}:
        kind = "text"
    else:
        kind = "tags" if types == {tuple} else "mixed"
    if kind == "mixed":
        values = [_as_text(value) for value in values]
    elif kind == "float":
        values = [None if v is None else float(v) for v in values]
    elif kind == "int":
        values = [None if v is None else int(v) for v in values]
    return kind, pa.array(values, type_of(kind))
