"""Segments: immutable parquet files of rows, written once under a name of their own."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_traces.errors import StoreError
from rollout_traces.store.columns.kinds import Kind

logger = logging.getLogger("rollout_traces")

SUFFIX = ".parquet"
ROW_GROUP = 8192
"""Rows that are decoded together where only some are wanted."""
UNIQUE = frozenset({"uid", "id", "trace_uid", "prompt", "reply", "timestamp", "answer", "parsed_answer"})
"""Texts that rarely occur twice, which a dictionary would only make larger."""
FEW_VALUES = 2000
"""Different values among the first `ROW_GROUP` rows up to which a column is stored as a dictionary of them: that is
small already, and is read faster when it is packed lightly."""


@dataclass(frozen=True)
class SegmentFile:
    """One file of rows.

    Attributes:
        number: its number in the manifest.
        path: the file.
        n_rows: rows in it.
        kinds: the kind of each of its columns.
        dead: places whose rows in it were replaced by another segment's.
    """

    number: int
    path: Path
    n_rows: int
    kinds: Mapping[str, Kind]
    dead: frozenset[int] = frozenset()


class DamagedSegment(StoreError):
    """A segment's file cannot be read.

    Args:
        segment: the segment.
        why: what went wrong.
    """

    def __init__(self, segment: SegmentFile, why: object) -> None:
        self.segment = segment
        super().__init__(f"{segment.path}: damaged ({why}); it is rebuilt at the next refresh.")


def write_segment(folder: Path, table: pa.Table) -> Path:
    """Writes rows to a new file that only its owner can read, and nobody finds before it is complete.

    Args:
        folder: where to.
        table: the rows.

    Returns:
        The file.
    """
    path = folder / f"{secrets.token_hex(8)}{SUFFIX}"
    unfinished = path.with_suffix(".unfinished")
    coded = _coded(table)
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
    return path


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
    """Several columns of a segment, see `read_column`."""
    here = [name for name in names if name in segment.kinds]
    coded = [name for name in here if segment.kinds[name] in ("text", "mixed") and name not in UNIQUE]
    try:
        footer = _footer(segment.path)
        with pq.ParquetFile(segment.path, metadata=footer, read_dictionary=coded) as file:
            if row_groups is None:
                table = file.read(columns=here, use_threads=True)
                if table.num_rows != segment.n_rows:
                    raise pa.ArrowInvalid(f"{table.num_rows} rows, expected {segment.n_rows}")
            else:
                table = file.read_row_groups(list(row_groups), columns=here, use_threads=True)
            n = table.num_rows if here else segment.n_rows
            table = table.unify_dictionaries().combine_chunks()
            found = {name: table[name] for name in here}
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DamagedSegment(segment, error) from error
    nulls = {name: pa.chunked_array([pa.nulls(n)]) for name in names if name not in found}
    return found | nulls


@lru_cache(maxsize=256)
def _footer(path: Path) -> pq.FileMetaData:
    """What a segment's file says of its row groups; a file never changes under its name."""
    return pq.read_metadata(path)


def alive_rows(segment: SegmentFile) -> np.ndarray | None:
    """Which rows of a segment were not replaced, bool [n_rows]; None for all of them."""
    if not segment.dead:
        return None
    places = read_column(segment, "place").to_numpy()
    return ~np.isin(places, np.fromiter(segment.dead, np.int64))


def remove_unknown(folder: Path, known: Sequence[Path]) -> None:
    """Removes the files of a folder that no manifest knows, left by a process that was killed."""
    kept = {path.name for path in known}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in (SUFFIX, ".unfinished") and path.name not in kept:
            with suppress(OSError):
                path.unlink()
