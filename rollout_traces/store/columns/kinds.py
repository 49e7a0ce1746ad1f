"""What a column of the table holds, and how columns of several segments become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import pyarrow as pa

from rollout_traces.ledger.columns import number_text

Kind = Literal["bool", "int", "float", "text", "tags", "mixed"]
"""`tags` are lists of names; `mixed` columns hold numbers and texts, all as text."""

_TYPES: dict[Kind, tuple[pa.DataType, str]] = {
    "bool": (pa.bool_(), "BOOLEAN"),
    "int": (pa.int64(), "BIGINT"),
    "float": (pa.float64(), "DOUBLE"),
    "text": (pa.string(), "VARCHAR"),
    "tags": (pa.list_(pa.string()), "VARCHAR[]"),
    "mixed": (pa.string(), "VARCHAR"),
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


def cast(column: pa.Array, kind: Kind) -> pa.Array:
    """A column as another kind that holds it."""
    wanted = type_of(kind)
    if column.type == wanted:
        return column
    if kind == "mixed":
        return column_of([tuple(v) if isinstance(v, list) else v for v in column.to_pylist()], kind)[1]
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


def column_of(values: Sequence[Any], kind: Kind | None = None) -> tuple[Kind, pa.Array]:
    """A column of plain values, None where unknown.

    Args:
        values: bools, ints, floats, texts, or tuples of texts, in any mixture.
        kind: what the column holds; the narrowest kind that holds the values when None.
    """
    types = {type(value) for value in values} - {type(None)}
    if kind is None and types <= {bool, int}:
        kind = "int"
    elif kind is None and types <= {bool, int, float}:
        kind = "float"
    elif kind is None and types <= {str}:
        kind = "text"
    found: Kind = kind or ("tags" if types == {tuple} else "mixed")
    if found in _PLAIN:
        values = [None if value is None else _PLAIN[found](value) for value in values]
    return found, pa.array(values, type_of(found))


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return number_text(value) if isinstance(value, (bool, int, float)) else str(value)


_PLAIN: dict[Kind, Callable[[Any], Any]] = {"int": int, "float": float, "mixed": _as_text}
