"""The record that an imported rollout was read from, as its file has it today.

A trace says where that is, and a trace may have been made up by anyone: no file is read but one that this machine
imported into the same project.
"""

from __future__ import annotations

import re
import sqlite3
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.errors import FileRefused, StoreError
from rollout_traces.model.bounded_reading import read
from rollout_traces.model.text import MOST
from rollout_traces.sources.base import SQLITE, read_only
from rollout_traces.sources.formats.inspect_eval import unpacked
from rollout_traces.sources.lines import MAX_LINE, TooLong, head_of, is_no_lines, objects, opened
from rollout_traces.sources.state import imported_files

_PLACE = re.compile(r"(.+):([1-9][0-9]{0,17})", re.DOTALL)
_OF_PROGRAMS = (".pt", ".pkl", ".pickle")


def raw_record(folder: Path, project: str, origin: str) -> bytes:
    """Reads it.

    Args:
        folder: Trackio's folder.
        origin: what the ledger's column `origin` says of the rollout: `file:record`.

    Returns:
        Its text as it stands in the file; JSON of a row of parquet.

    Raises:
        StoreError: the file is none that was imported into the project here, or the record is not in it any more.
    """
    place = _PLACE.fullmatch(origin)
    if place is None:
        raise StoreError(f"origin: seen {origin[:MOST]!r}. Expected a file and a record, file:12.")
    name, number = place[1], int(place[2])
    known = imported_files(folder, project)
    if name not in known:
        raise StoreError(
            f"{origin}: this file was not imported into the project on this machine, so it is not read here."
        )
    path = Path(name)
    sealed = Path(f"{name}.zst")
    if not path.exists() and str(sealed) in known:
        path = sealed
    if path.suffix in _OF_PROGRAMS:
        raise StoreError(f"{origin}: a file of tensors, which has no text to show.")
    try:
        found = next(_records(path, number), None)
    except (
        OSError,
        EOFError,
        TooLong,
        FileRefused,
        zlib.error,
        zipfile.BadZipFile,
        NotImplementedError,
        sqlite3.Error,
    ) as error:
        raise StoreError(f"{origin}: cannot be read ({error}).") from error
    if found is None:
        raise StoreError(f"{origin}: the file has no such record any more.")
    return found


def _records(path: Path, number: int) -> Iterator[bytes]:
    """The record of a number, where there is one; the kind of file is known by its first bytes."""
    with path.open("rb") as file:
        begins = file.read(len(SQLITE))
    if begins.startswith(b"PAR1"):
        yield from (_as_json(row) for row in read(path, at=[number - 1]).to_pylist())
    elif begins == SQLITE:
        with read_only(path) as store:
            store.row_factory = sqlite3.Row
            found = store.execute("SELECT * FROM wire_rows WHERE cursor = ?", (number,)).fetchall()
            yield from (_as_json(dict(row)) for row in found)
    elif begins.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(path) as archive:
            samples = sorted(n for n in archive.namelist() if n.startswith("samples/"))
            yield from (unpacked(archive, archive.getinfo(name)) for name in samples[number - 1 : number])
    else:
        with opened(path) as file:
            many = (raw for _, raw in objects(file, MAX_LINE)) if is_no_lines(head_of(path)) else _lines(file)
            yield from _numbered(many, number)


def _numbered(records: Iterator[bytes], number: int) -> Iterator[bytes]:
    """The record of a number; where there is one alone, all rollouts are of it."""
    n, raw = 0, b""
    for n, raw in enumerate(records, 1):  # noqa: B007  used behind the loop
        if n == number:
            break
    if n in (number, 1):
        yield raw


def _lines(file: Any) -> Iterator[bytes]:
    while raw := file.readline(MAX_LINE):
        yield raw
        while len(raw) == MAX_LINE and not raw.endswith(b"\n") and (raw := file.readline(MAX_LINE)):
            pass


def _as_json(row: dict[str, Any]) -> bytes:
    return orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS)
