"""The index of an export: its files become segments and words in the user's cache, file by file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.bounded_reading import MOST_IDLE, on_disk, read, schema_of
from rollout_traces.model.plain_values import of_folders
from rollout_traces.model.private_files import make_folder, replace_file
from rollout_traces.store import manifest
from rollout_traces.store.columns import (
    ALWAYS,
    PLACE,
    ROW_BITS,
    TRACE,
    column_of,
    kind_of_type,
    stacked,
    type_of,
)
from rollout_traces.store.export_source import MESSAGES, SIDE, TEXTS, ExportSource, FoundFile
from rollout_traces.store.index import Index, Progress, logger
from rollout_traces.store.indexing import IndexWriter
from rollout_traces.store.reading import conversation_text, spaced
from rollout_traces.store.rows import NO_STEP

AT_ONCE = 8
"""Files that are fetched, and indexed, together."""
_decoding = threading.BoundedSemaphore(MOST_IDLE)
"""As many files are decoded at the same time: a child beyond them would be started for one file alone."""


class ExportIndex(Index):
    """An index of an export.

    Args:
        folder: the index's folder; by default in the user's cache.
    """

    def __init__(self, source: ExportSource, folder: Path | None = None) -> None:
        super().__init__(source, folder)
        self.export = source
        source.reading = self.reading
        if not source.folder.is_local:  # a refresh copies the side tables there
            self.side_folder = self.folder / SIDE

    def _copy_side_tables(self) -> None:
        if self.export.folder.is_local:
            return
        folder = self.side_folder
        there = {file.name: file for file in self.export.folder.files(SIDE)}
        for name, file in there.items():
            copy = folder / name
            if not copy.resolve().is_relative_to(folder.resolve()):
                continue
            stamp = copy.with_suffix(".stamp")
            if copy.exists() and stamp.exists() and stamp.read_text() == file.stamp:
                continue
            make_folder(copy.parent)
            replace_file(copy, self.export.folder.read(file.path))
            stamp.write_text(file.stamp)
        for copy in folder.rglob("*.parquet") if folder.is_dir() else ():
            if copy.relative_to(folder).as_posix() not in there:
                copy.unlink(missing_ok=True)

    def _refresh(self, progress: Progress | None) -> int:
        self._copy_side_tables()
        found = self.export.files()
        with self.reading() as connection:
            files = connection.execute("SELECT path, size, stamp FROM files").fetchall()
        known = {path: (size, stamp) for path, size, stamp in files}
        there = {file.path: (file.size, file.stamp) for file in found}
        if any(there.get(path) != what for path, what in known.items()):
            self._empty(f"files of {self.export.label} changed")
            known = {}
        new = [file for file in found if file.path not in known]
        if not new:
            return 0
        self.export.forget()
        added = 0
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rollout-traces-read") as readers:
            for at in range(0, len(new), AT_ONCE):
                batch = new[at : at + AT_ONCE]
                read = list(readers.map(self._one, batch))
                with self._transaction() as connection:
                    added += _add(connection, self.segments, list(zip(batch, read, strict=True)))
                    manifest.changed(connection)
                if progress is not None:
                    progress(at + len(batch), len(new))
        with self._transaction() as connection:
            _replace_attempts(connection, self.export)
        self._compact(fewest=2)
        self._copy_runs()
        return added

    def _one(self, file: FoundFile) -> pa.Table | None:
        data = self.export.folder.read(file.path)
        try:
            with _decoding:
                return read_file(data, file.name)
        except StoreError as error:
            logger.warning("rollout-traces: %s: left out: %s", self.export.label, error)
            return None


def _add(
    connection: sqlite3.Connection, folder: Path, batch: Sequence[tuple[FoundFile, pa.Table | None]]
) -> int:
    """Adds files on a connection whose transaction the caller holds; returns the number of their traces."""
    writer = IndexWriter(connection, folder)
    blocks, n_traces = [], 0
    for file, rows in batch:
        cursor = connection.execute(
            "INSERT OR IGNORE INTO files (path, size, stamp) VALUES (?, ?, ?)",
            (file.path, file.size, file.stamp),
        )
        if cursor.rowcount and rows is not None and rows.num_rows:
            block, traced = _block(writer, int(cursor.lastrowid or 0), rows)
            blocks.append(block)
            n_traces += traced
    writer.add_segment(stacked(blocks))
    writer.say_left_out()
    return n_traces


def _block(writer: IndexWriter, file: int, given: pa.Table) -> tuple[pa.Table, int]:
    """The rows of a file as a segment has them, and how many of them are traced."""
    n = given.num_rows
    run_ids = _texts(given, "run_id", _texts(given, "run", [""] * n))
    names = _texts(given, "run", run_ids)
    splits = _texts(given, "split", ["rollout"] * n)
    steps = given["step"].to_pylist()
    kinds = _texts(given, "kind", [""] * n)
    run_nos = [writer.run_no(i, name) for i, name in zip(run_ids, names, strict=True)]
    places = [writer.place(*each) for each in zip(run_nos, splits, steps, strict=True)]
    numbers = range(file << ROW_BITS, (file << ROW_BITS) + n)
    unknown = [None] * n
    ids, uids, said = (_texts(given, name, unknown) for name in ("id", "uid", MESSAGES))
    traced = [row for row, trace_id in enumerate(ids) if trace_id is not None]
    docs: list[int | None] = [None] * n
    added = writer.add_docs(
        [(numbers[row], ids[row], uids[row], places[row], kinds[row] or "rollout") for row in traced],
        (b"" if said[row] is None else spaced(conversation_text(said[row])) for row in traced),
    )
    for row, doc in zip(traced, added, strict=True):
        docs[row] = doc
    block: dict[str, Any] = {}
    for name in given.column_names:
        stored = name if name in TRACE else writer.names.stored(name)
        if name != MESSAGES and stored is not None and stored not in block and given[name].null_count < n:
            block[stored] = given[name]
    block |= {
        "row": pa.array(numbers, pa.int64()),
        "place": pa.array(places, pa.int64()),
        "run_no": pa.array(run_nos, pa.int64()),
        "split": pa.array(splits, pa.string()),
        "step": given["step"],
        "from_ledger": pa.array([kind in ("", "rollout") or None for kind in kinds], pa.bool_()),
        "doc": pa.array(docs, pa.int64()),
    }
    if "late" in given.column_names:
        block["late_part"] = given["late"].cast(pa.int64())
    return pa.table(block), len(traced)


def _texts(given: pa.Table, name: str, otherwise: list[Any]) -> list[Any]:
    """A column as texts, those of another list where it is unknown."""
    if name not in given.column_names:
        return otherwise
    values = given[name].cast(pa.string()).to_pylist()
    return [other if value is None else value for value, other in zip(values, otherwise, strict=True)]


def _replace_attempts(connection: sqlite3.Connection, source: ExportSource) -> None:
    """Takes the export's word for what each attempt wrote first, where it says that: it may hold a part of a run."""
    attempts = source.attempts()
    if attempts:
        connection.execute("DELETE FROM attempts")
    for run_id, split, attempt, first in attempts:
        connection.execute(
            "INSERT OR REPLACE INTO attempts SELECT run, ?, ?, ? FROM runs WHERE run_id = ?",
            (split, attempt, first, run_id),
        )


_DROPPED = frozenset({*TEXTS, "traced", "superseded", "position", "row", "place", "run_no", "doc"})
"""Columns that are computed anew, or read on request."""


def read_file(data: bytes, name: str) -> pa.Table:
    """Reads a file of an export.

    Args:
        name: its path below the address; folders `column=value` are columns.

    Returns:
        Its columns [N] as the table holds them, and the conversations as JSON text under `MESSAGES`.

    Raises:
        StoreError: it is damaged, too long, or its rows say no run and step.
    """
    with on_disk(data, name) as path:
        wanted = [c for c in schema_of(path).names if c not in TEXTS or c == MESSAGES]
        table = read(path, wanted)
    n = table.num_rows
    if n >= 1 << ROW_BITS:
        raise StoreError(f"{name}: {n} rows in one file; at most {(1 << ROW_BITS) - 1} are read.")
    read_as = {c: _column(table[c]) for c in table.column_names if c not in _DROPPED}
    columns = {c: column for c, column in read_as.items() if column is not None}
    for column, text in of_folders(name.split("/")[:-1]).items():
        columns[column] = column_of([_value(column, text)] * n)
    if "step" not in columns or not {"run", "run_id"} & set(columns):
        raise StoreError(
            f"{name}: its columns say no run and step; expected what `export --partition-by` writes."
        )
    columns["step"] = columns["step"].cast(pa.int64(), safe=False).fill_null(NO_STEP)
    if MESSAGES in table.column_names and pa.types.is_string(table[MESSAGES].type):
        columns[MESSAGES] = table[MESSAGES]
    return pa.table(columns)


def _column(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """A column in the kind that the table holds it; None for what it cannot hold."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        texts = pa.types.is_string(kind.value_type) or pa.types.is_null(kind.value_type)
        return column.cast(type_of("tags")) if texts else None
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind):
        return None
    return column.cast(type_of(kind_of_type(kind)), safe=False)


def _value(column: str, text: str | None) -> Any:
    if text is None:
        return None
    kind = {**ALWAYS, **PLACE, **TRACE, "run": "text", "run_id": "text"}.get(column)
    for number, kinds in ((int, ("int", None)), (float, ("float", None))):
        if kind in kinds:
            try:
                return number(text)
            except ValueError:
                continue
    return text
