"""The files of an export. JSONL: an object a line, UTF-8; parquet: a column a metadata name, messages as a list of structs.

In JSONL unknown values are null, infinite ones "Infinity" and "-Infinity".
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from rollout_traces.errors import extra
from rollout_traces.model.plain_values import INT64_MAX, INT64_MIN, finite_or_text

ROW_GROUP = 500
"""Records in one row group, and in memory at once."""

_MESSAGE = ("role", "content", "name", "tool_call_id", "tool_calls", "is_error")


def write_parquet(path: Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Writes records; a column's type is the narrowest that holds all its values, else JSON as text.

    The types are known only at the end, so the records wait in a temporary file.

    Args:
        records: plain values.

    Returns:
        How many were written.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    with extra("reading", "parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    n = 0
    kinds: dict[str, set[str]] = {}
    with tempfile.TemporaryFile(dir=path.parent) as waiting:
        for record in records:
            flat = _flat(record)
            for name, value in flat.items():
                kinds.setdefault(name, set()).update(_kinds_of(value))
            stated = {name: finite_or_text(value) for name, value in flat.items()}
            waiting.write(orjson.dumps(stated, option=orjson.OPT_APPEND_NEWLINE, default=str))
            n += 1
        schema = pa.schema([(name, _type_of(name, found)) for name, found in kinds.items()])
        waiting.seek(0)
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for rows in _groups(waiting):
                columns = [
                    pa.array([_fit(row.get(field.name), field.type) for row in rows], field.type)
                    for field in schema
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return n


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    flat = dict(record)
    if isinstance(flat.get("messages"), list):
        flat["messages"] = [_message(message) for message in flat["messages"] if isinstance(message, Mapping)]
    return flat


def _message(message: Mapping[str, Any]) -> dict[str, str | None]:
    """The fields every data set viewer knows, and whether a call failed; what is no text becomes JSON."""
    return {name: _as_text(message.get(name)) for name in _MESSAGE}


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _kinds_of(value: Any) -> set[str]:
    if isinstance(value, list):
        return {"list", *(f"item {kind}" for item in value for kind in _kinds_of(item))}
    if value is None:
        return set()
    if isinstance(value, bool):
        return {"bool"}
    if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
        return {"int"}
    return {"float"} if isinstance(value, float) else {"text"}


def _type_of(name: str, kinds: set[str]) -> Any:
    import pyarrow as pa

    if name == "messages" and kinds != {"text"}:
        return pa.list_(pa.struct([(field, pa.string()) for field in _MESSAGE]))
    items = {kind.removeprefix("item ") for kind in kinds if kind.startswith("item ")}
    if "list" in kinds and kinds == {"list", *(f"item {kind}" for kind in items)}:
        return pa.list_(_scalar_type(items))
    return _scalar_type(kinds)


def _scalar_type(kinds: set[str]) -> Any:
    import pyarrow as pa

    known = {frozenset({"bool"}): pa.bool_(), frozenset({"int"}): pa.int64()}
    if kinds and kinds <= {"int", "float"}:
        return known.get(frozenset(kinds), pa.float64())
    return known.get(frozenset(kinds), pa.string())


def _fit(value: Any, kind: Any) -> Any:
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_string(kind):
        return _as_text(value)
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_list(kind) and not pa.types.is_struct(kind.value_type):
        return [_fit(item, kind.value_type) for item in value]
    return value


def _groups(lines: IO[bytes]) -> Iterator[list[dict[str, Any]]]:
    return iter(lambda: [orjson.loads(line) for line in itertools.islice(lines, ROW_GROUP)], [])


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Writes records.

    Args:
        records: plain values.

    Returns:
        How many were written.
    """
    n = 0
    with path.open("wb") as file:
        for record in records:
            stated = {name: finite_or_text(value) for name, value in record.items()}
            file.write(orjson.dumps(stated, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
            n += 1
    return n
