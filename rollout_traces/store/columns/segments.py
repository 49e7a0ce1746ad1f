"""Segments: immutable parquet files of rows, written once under a name of their own, with packed columns inside."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_traces.errors import StoreError
from rollout_traces.store.columns.kinds import Kind, type_of
from rollout_traces.store.columns.packed import PackedColumns, pack, read_packed, write_packed

logger = logging.getLogger("rollout_traces")

SUFFIX = ".parquet"
ROW_GROUP = 8192
"""Rows that are decoded together where only some are wanted."""
UNIQUE = frozenset(
    {"row", "uid", "id", "trace_uid", "prompt", "reply", "timestamp", "answer", "parsed_answer"}
)
"""Values that rarely occur twice, which a dictionary would only make larger."""
FEW_VALUES = 2000
"""Different values among the first `ROW_GROUP` rows up to which a column is stored as a dictionary of them: that is
small already, and is read faster when it is packed lightly."""
MANY_COLUMNS = 8
"""Columns from which on several threads read them: for fewer it costs more than it saves."""


@dataclass(frozen=True)
class SegmentFile:
    """One file of rows.

    Attributes:
        number: its number in the manifest.
        path: the file.
        n_rows: rows in it.
        kinds: the kind of each of its columns.
        dead: places whose rows in it were replaced by another segment's.
        packed: its columns of few values.
    """

    number: int
    path: Path
    n_rows: int
    kinds: Mapping[str, Kind]
    dead: frozenset[int] = frozenset()
    packed: PackedColumns = field(default_factory=dict)


class DamagedSegment(StoreError):
    """A segment's file cannot be read.

    Args:
        segment: the segment.
        why: what went wrong.
    """

    def __init__(self, segment: SegmentFile, why: object) -> None:
        self.segment = segment
        super().__init__(f"{segment.path}: damaged ({why}); it is rebuilt at the next refresh.")


def write_segment(folder: Path, table: pa.Table) -> tuple[Path, PackedColumns]:
    """Writes rows to a new file that only its owner can read, and nobody finds before it is complete.

    Args:
        folder: where to.
        table: the rows.

    Returns:
        The file, and its columns of few values.
    """
    path = folder / f"{secrets.token_hex(8)}{SUFFIX}"
    unfinished = path.with_suffix(".unfinished")
    coded = _coded(table)
    blocks = {name: found for name in coded if (found := pack(table[name])) is not None}
    parquet = _parquet(table.drop_columns([*blocks]), coded)
    footer = int.from_bytes(parquet[-8:-4], "little") + 8
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            # the footer comes last and says where its columns are, so that between them there may be other bytes
            file.write(parquet[:-footer])
            packed = {name: write_packed(file, *found) for name, found in blocks.items()}
            file.write(parquet[-footer:])
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path, packed


def _parquet(table: pa.Table, coded: Sequence[str]) -> memoryview:
    rows = _saying_what_is_known(table)
    buffer = pa.BufferOutputStream()
    pq.write_table(
        rows,
        buffer,
        compression={_leaf(field): "lz4" if field.name in coded else "zstd" for field in rows.schema},
        row_group_size=ROW_GROUP,
        use_dictionary=[name for name in coded if name in rows.column_names],
        write_statistics=False,
        store_schema=False,
    )
    return memoryview(buffer.getvalue())


def _saying_what_is_known(table: pa.Table) -> pa.Table:
    """Rows whose schema names the columns that are always known: they are read quicker."""
    fields = [
        pa.field(name, column.type, nullable=column.null_count > 0)
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.table(table.columns, schema=pa.schema(fields))


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
    """Several columns of a segment in this order, see `read_column`; those of few values are dictionaries of them."""
    here = [name for name in names if name in segment.kinds]
    packed = [name for name in here if name in segment.packed]
    try:
        found = _read_packed(segment, packed, row_groups)
        if len(packed) < len(here):
            found |= _read_parquet(segment, [name for name in here if name not in segment.packed], row_groups)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DamagedSegment(segment, error) from error
    n = len(found[here[0]]) if here else segment.n_rows
    return {name: found[name] if name in found else pa.chunked_array([pa.nulls(n)]) for name in names}


def _read_packed(
    segment: SegmentFile, names: Sequence[str], row_groups: Sequence[int] | None
) -> dict[str, pa.ChunkedArray]:
    if not names:
        return {}
    spans = None if row_groups is None else [(at * ROW_GROUP, (at + 1) * ROW_GROUP) for at in row_groups]
    with segment.path.open("rb") as file:
        found = {
            name: read_packed(file, segment.packed[name], segment.n_rows, type_of(segment.kinds[name]), spans)
            for name in names
        }
    return {name: pa.chunked_array([column]) for name, column in found.items()}


def _read_parquet(
    segment: SegmentFile, names: Sequence[str], row_groups: Sequence[int] | None
) -> dict[str, pa.ChunkedArray]:
    coded = [name for name in names if segment.kinds[name] in ("text", "mixed") and name not in UNIQUE]
    threads = len(names) >= MANY_COLUMNS
    with pq.ParquetFile(segment.path, metadata=_footer(segment.path), read_dictionary=coded) as file:
        if row_groups is None:
            table = file.read(columns=list(names), use_threads=threads)
            if table.num_rows != segment.n_rows:
                raise pa.ArrowInvalid(f"{table.num_rows} rows, expected {segment.n_rows}")
        else:
            table = file.read_row_groups(list(row_groups), columns=list(names), use_threads=threads)
        table = table.unify_dictionaries().combine_chunks()
        return {name: table[name] for name in names}


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
