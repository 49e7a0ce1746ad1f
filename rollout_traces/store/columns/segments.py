"""Segments: immutable parquet files of rows, written once under a name of their own; any program reads them."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_traces.errors import StoreError
from rollout_traces.model.private_files import write_file
from rollout_traces.store.columns.schema import Kind

SUFFIX = ".parquet"
ROW_GROUP = 122_880
"""Rows that one of DuckDB's threads scans together; its own number."""


@dataclass(frozen=True)
class SegmentFile:
    """One file of rows.

    Attributes:
        number: its number in the manifest.
        n_rows: rows in it.
        kinds: the kind of each of its columns.
        checksum: CRC-32 of its bytes.
        dead: places whose rows in it were replaced by another segment's.
    """

    number: int
    path: Path
    n_rows: int
    kinds: Mapping[str, Kind]
    checksum: int
    dead: frozenset[int] = frozenset()


class DamagedSegment(StoreError):
    """A segment's file cannot be read, or is not what was written.

    Args:
        why: what went wrong.
    """

    def __init__(self, segment: SegmentFile, why: object) -> None:
        self.segment = segment
        super().__init__(f"{segment.path}: damaged ({why}); it is rebuilt at the next refresh.")


def write_segment(folder: Path, table: pa.Table) -> tuple[Path, int]:
    """Writes rows to a new file that only its owner can read, and nobody finds before it is complete.

    Args:
        folder: where to.
        table: the rows.

    Returns:
        The file, and the CRC-32 of its bytes.
    """
    path = folder / f"{secrets.token_hex(8)}{SUFFIX}"
    unfinished = path.with_suffix(".unfinished")
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", row_group_size=ROW_GROUP, store_schema=False)
    content = buffer.getvalue().to_pybytes()
    try:
        write_file(unfinished, content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path, zlib.crc32(content)


def check_segment(segment: SegmentFile) -> None:
    """Looks whether a segment's file is what was written.

    Raises:
        FileNotFoundError: another process has replaced the segment.
        DamagedSegment: it is not.
    """
    try:
        found = zlib.crc32(segment.path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedSegment(segment, error) from error
    if found != segment.checksum:
        raise DamagedSegment(segment, f"its checksum is {found}, expected {segment.checksum}")


def remove_unknown(folder: Path, known: Sequence[Path]) -> None:
    """Removes the files of a folder that no manifest knows, left by a process that was killed."""
    kept = {path.name for path in known}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in (SUFFIX, ".unfinished") and path.name not in kept:
            with suppress(OSError):
                path.unlink()
