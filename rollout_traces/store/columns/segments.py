"""Segments: immutable parquet files of rows, written once under a name of their own."""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_traces.errors import StoreError
from rollout_traces.store.columns.kinds import Kind, type_of

logger = logging.getLogger("rollout_traces")

SUFFIX = ".parquet"
ROW_GROUP = 8192
"""Rows that are decoded together where only some are wanted."""
UNIQUE = frozenset({"uid", "id", "trace_uid", "prompt", "reply", "timestamp", "answer", "parsed_answer"})
"""Texts that rarely occur twice, which a dictionary would only make larger."""
FEW_VALUES = 2000
"""Different values among the first `ROW_GROUP` rows up to which a column is stored as a dictionary of them: that is
small already, and is read faster when it is packed lightly."""
IN_A_BYTE = 127
"""Different values of a whole segment up to which a column is stored as their numbers, a byte each: that is read in
half the time, and takes an eighth of the memory."""
MOST_LETTERS = 10_000
"""Characters that such values have together."""
MANY_COLUMNS = 8
"""Columns from which on several threads read them: for fewer it costs more than it saves."""

Few = Mapping[str, Sequence[Any]]
"""Column -> the values that it has, in the order of their numbers, for columns of few values."""


@dataclass(frozen=True)
class SegmentFile:
    """One file of rows.

    Attributes:
        number: its number in the manifest.
        path: the file.
        n_rows: rows in it.
        kinds: the kind of each of its columns.
        dead: places whose rows in it were replaced by another segment's.
        few: the values of its columns that are stored as numbers of them.
    """

    number: int
    path: Path
    n_rows: int
    kinds: Mapping[str, Kind]
    dead: frozenset[int] = frozenset()
    few: Few = field(default_factory=dict)


class DamagedSegment(StoreError):
    """A segment's file cannot be read.

    Args:
        segment: the segment.
        why: what went wrong.
    """

    def __init__(self, segment: SegmentFile, why: object) -> None:
        self.segment = segment
        super().__init__(f"{segment.path}: damaged ({why}); it is rebuilt at the next refresh.")


def write_segment(folder: Path, table: pa.Table) -> tuple[Path, Few]:
    """Writes rows to a new file that only its owner can read, and nobody finds before it is complete.

    Args:
        folder: where to.
        table: the rows.

    Returns:
        The file, and the values of the columns that it holds as numbers of them.
    """
    path = folder / f"{secrets.token_hex(8)}{SUFFIX}"
    unfinished = path.with_suffix(".unfinished")
    coded = _coded(table)
    table, few = _numbered(table, coded)
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            pq.write_table(
                table,
                file,
                compression={
                    _leaf(field): "lz4" if field.name in coded else "zstd" for field in table.schema
                },
                row_group_size=ROW_GROUP,
                use_dictionary=coded,
                write_statistics=False,
                store_schema=False,
            )
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path, few


def _numbered(table: pa.Table, coded: Sequence[str]) -> tuple[pa.Table, Few]:
    """Rows with the numbers of their values in columns of few; which values are always known is in the schema."""
    columns = dict(zip(table.column_names, table.columns, strict=True))
    few: dict[str, list[Any]] = {}
    for name in coded:
        encoded = columns[name].combine_chunks().dictionary_encode()
        values = encoded.dictionary.to_pylist()
        if len(values) <= IN_A_BYTE and _are_plain(values):
            few[name] = values
            columns[name] = encoded.indices.cast(pa.int8())
    # columns without unknown values are read quicker when they say so
    schema = pa.schema([pa.field(name, c.type, nullable=c.null_count > 0) for name, c in columns.items()])
    return pa.table([*columns.values()], schema=schema), few


def _are_plain(values: Sequence[Any]) -> bool:
    """Whether values of one column are the same again once they were JSON."""
    if all(isinstance(value, str) for value in values):
        return sum(map(len, values)) <= MOST_LETTERS
    numbers = not any(isinstance(value, bool | str) for value in values)
    return numbers and all(math.isfinite(value) for value in values)


def _coded(table: pa.Table) -> list[str]:
    """The columns of few different values."""
    first = table.slice(0, ROW_GROUP)
    return [
        field.name
        for field in table.schema
        if not pa.types.is_list(field.type)
        and field.name not in UNIQUE
        and pc.count_distinct(first[field.name]).as_py() <= FEW_VALUES
    ]


def _leaf(field: pa.Field) -> str:
    """What parquet calls the column that holds a field's values."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name


def read_column(segment: SegmentFile, name: str, row_groups: Sequence[int] | None = None) -> pa.ChunkedArray:
    """One column of a segment; nulls where the segment does not have it.

    Args:
        segment: the segment.
        name: the column.
        row_groups: read these alone.

    Raises:
        FileNotFoundError: another process has replaced the segment.
        DamagedSegment: the file cannot be read.
    """
    return read_columns(segment, [name], row_groups)[name]


def read_columns(
    segment: SegmentFile, names: Sequence[str], row_groups: Sequence[int] | None = None
) -> dict[str, pa.ChunkedArray]:
    """Several columns of a segment, see `read_column`; those of few values are dictionaries of them."""
    here = [name for name in names if name in segment.kinds]
    texts = [name for name in here if segment.kinds[name] in ("text", "mixed")]
    coded = [name for name in texts if name not in UNIQUE and name not in segment.few]
    threads = len(here) >= MANY_COLUMNS
    try:
        footer = _footer(segment.path)
        with pq.ParquetFile(segment.path, metadata=footer, read_dictionary=coded) as file:
            if row_groups is None:
                table = file.read(columns=here, use_threads=threads)
                if table.num_rows != segment.n_rows:
                    raise pa.ArrowInvalid(f"{table.num_rows} rows, expected {segment.n_rows}")
            else:
                table = file.read_row_groups(list(row_groups), columns=here, use_threads=threads)
            n = table.num_rows if here else segment.n_rows
            table = table.unify_dictionaries().combine_chunks()
            found = {name: _valued(segment, name, table[name]) for name in here}
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DamagedSegment(segment, error) from error
    nulls = {name: pa.chunked_array([pa.nulls(n)]) for name in names if name not in found}
    return found | nulls


def _valued(segment: SegmentFile, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as read, with its values in place of their numbers."""
    if name not in segment.few:
        return column
    values = _array(segment.few[name], type_of(segment.kinds[name]))
    kind = pa.dictionary(pa.int8(), values.type)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(c, values) for c in column.chunks], kind)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Known values as an array, by its buffers: `pyarrow.array` imports all of pandas first, where that is there."""
    if kind == pa.string():
        texts = [value.encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return pa.Array.from_buffers(
            kind, len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
        )
    numbers = np.array(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


@lru_cache(maxsize=256)
def _footer(path: Path) -> pq.FileMetaData:
    """What a segment's file says of its row groups; a file never changes under its name."""
    return pq.read_metadata(path)


def alive_rows(segment: SegmentFile) -> np.ndarray | None:
    """Which rows of a segment were not replaced, bool [n_rows]; None for all of them."""
    if not segment.dead:
        return None
    places = read_column(segment, "place").cast(pa.int64()).to_numpy()
    return ~np.isin(places, np.fromiter(segment.dead, np.int64))


def remove_unknown(folder: Path, known: Sequence[Path]) -> None:
    """Removes the files of a folder that no manifest knows, left by a process that was killed."""
    kept = {path.name for path in known}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in (SUFFIX, ".unfinished") and path.name not in kept:
            with suppress(OSError):
                path.unlink()
