"""The index of an export: its files become segments and words in the user's cache, file by file."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.private_files import make_folder
from rollout_traces.store import manifest
from rollout_traces.store.columns.assemble import ROW_BITS, stacked
from rollout_traces.store.columns.kinds import Kind, type_of
from rollout_traces.store.columns.schema import TRACE
from rollout_traces.store.columns.segments import write_segment
from rollout_traces.store.exports.address import FoundFile
from rollout_traces.store.exports.layout import SIDE
from rollout_traces.store.exports.rows import FileRows, read_file
from rollout_traces.store.exports.source import ExportSource
from rollout_traces.store.index import Index, Progress, logger
from rollout_traces.store.indexing import parts_of, remember_attempts
from rollout_traces.store.reading import conversation_text, spaced

AT_ONCE = 4
"""Files that are fetched ahead."""
SEGMENT_ROWS = 65_536
"""Rows after which a segment is written; a file is never torn."""


class ExportIndex(Index):
    """An index of an export.

    Args:
        source: the export.
        folder: the index's folder; by default in the user's cache.
    """

    def __init__(self, source: ExportSource, folder: Path | None = None) -> None:
        super().__init__(source, folder)
        self.export = source
        source.locations = self

    def of_ids(self, trace_ids: Sequence[str]) -> dict[str, int]:
        """id -> number of its row."""
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT id, src FROM docs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY doc",
                (orjson.dumps(list(trace_ids)).decode(),),
            )
            return dict(rows.fetchall())

    def path_of(self, file: int) -> str:
        """The path of a file by its number."""
        with self.reading() as connection:
            found = connection.execute("SELECT path FROM files WHERE file = ?", (file,)).fetchone()
        if found is None:
            raise StoreError(f"{self.export.label} changed; refresh and ask again.")
        return str(found[0])

    def side_folder(self) -> Path:
        """In the export where it is of this machine, else where a refresh copied the side tables to."""
        return Path(self.export.side_folder()) if self.export.folder.is_local else self.folder / SIDE

    def _copy_side_tables(self) -> None:
        if self.export.folder.is_local:
            return
        folder = self.side_folder()
        there = {file.name: file for file in self.export.folder.files(".parquet", SIDE)}
        for name, file in there.items():
            copy = folder / name
            if not copy.resolve().is_relative_to(folder.resolve()):
                continue
            stamp = copy.with_suffix(".stamp")
            if copy.exists() and stamp.exists() and stamp.read_text() == file.stamp:
                continue
            make_folder(copy.parent)
            unfinished = copy.with_suffix(".unfinished")
            unfinished.write_bytes(self.export.folder.read(file.path))
            unfinished.replace(copy)
            stamp.write_text(file.stamp)
        for copy in folder.rglob("*.parquet") if folder.is_dir() else ():
            if copy.relative_to(folder).as_posix() not in there:
                copy.unlink(missing_ok=True)

    def _refresh(self, progress: Progress | None) -> int:
        self._rebuild_damaged()
        self._copy_side_tables()
        found = self.export.files()
        with self.reading() as connection:
            known = {
                path: (size, stamp)
                for path, size, stamp in connection.execute("SELECT path, size, stamp FROM files")
            }
        there = {file.path: (file.size, file.stamp) for file in found}
        if any(there.get(path) != what for path, what in known.items()):
            logger.warning("rollout-traces: files of %s changed; its index is built anew.", self.export.label)
            with self._transaction() as connection:
                self._make_tables(connection)
            known = {}
        new = [file for file in found if file.path not in known]
        if not new:
            return 0
        self.export.forget()
        added = done = 0
        for batch in self._read(new):
            with self._transaction() as connection:
                added += _Writer(connection, self.export, self.segments).add(batch)
                manifest.changed(connection)
            done += len(batch)
            if progress is not None:
                progress(done, len(new))
        with self._transaction() as connection:
            _store_attempts(connection, self.export)
        self._compact()
        self._copy_runs()
        return added

    def _read(self, files: Sequence[FoundFile]) -> Iterator[list[tuple[FoundFile, FileRows | None]]]:
        """The files in order, as many together as make a segment; None for those that are damaged."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rollout-traces-read") as readers:
            coming: deque[tuple[FoundFile, Future[FileRows | None]]] = deque()
            waiting = iter(files)
            batch: list[tuple[FoundFile, FileRows | None]] = []
            n = 0
            while True:
                while len(coming) < 2 * AT_ONCE and (file := next(waiting, None)) is not None:
                    coming.append((file, readers.submit(self._one, file)))
                if not coming:
                    break
                file, reading = coming.popleft()
                rows = reading.result()
                batch.append((file, rows))
                # conversations count as rows by their size, so that a batch of texts stays small
                n += 0 if rows is None else rows.n_rows + (file.size >> 9)
                if n >= SEGMENT_ROWS:
                    yield batch
                    batch, n = [], 0
            if batch:
                yield batch

    def _one(self, file: FoundFile) -> FileRows | None:
        data = self.export.folder.read(file.path)
        try:
            return read_file(data, file.name)
        except StoreError as error:
            logger.warning("rollout-traces: %s: left out: %s", self.export.label, error)
            return None

    def _copy_runs(self) -> None:
        runs = self.export.runs()
        with self._transaction() as connection:
            for run in runs:
                connection.execute(
                    "UPDATE runs SET name = ?, started = ?, last_step = ? WHERE run_id = ?",
                    (run.name, run.started, run.last_step, run.run_id),
                )
            manifest.changed(connection)

    def _rebuild_damaged(self) -> None:
        """An export is indexed again as a whole: its files are read once anyway."""
        if self._damaged:
            logger.warning("rollout-traces: a segment of %s is damaged; it is rebuilt.", self.folder)
            with self._transaction() as connection:
                self._make_tables(connection)
            self._damaged.clear()
            self._rows = None


class _Writer:
    """Adds files to an index on a connection whose transaction the caller holds."""

    def __init__(self, connection: sqlite3.Connection, source: ExportSource, folder: Path) -> None:
        self._connection = connection
        self._source = source
        self._folder = folder
        self._names = manifest.ColumnNames(connection)
        self._runs: dict[str, int] = dict(connection.execute("SELECT run_id, run FROM runs").fetchall())
        self._next_doc = int(connection.execute("SELECT coalesce(max(doc), 0) FROM docs").fetchone()[0]) + 1

    def add(self, batch: Sequence[tuple[FoundFile, FileRows | None]]) -> int:
        """Adds files; returns the number of their traces."""
        first = self._next_doc
        blocks = []
        for file, rows in batch:
            cursor = self._connection.execute(
                "INSERT OR IGNORE INTO files (path, size, stamp) VALUES (?, ?, ?)",
                (file.path, file.size, file.stamp),
            )
            if cursor.rowcount and rows is not None and rows.n_rows:
                blocks.append(self._block(int(cursor.lastrowid or 0), rows))
        if blocks:
            columns = stacked(blocks)
            table = pa.table({name: column for name, (_, column) in columns.items()})
            written = write_segment(self._folder, table)
            kinds = {name: kind for name, (kind, _) in columns.items()}
            manifest.add_segment(self._connection, written, table.num_rows, kinds, parts_of(table))
            if not self._source.attempts():
                remember_attempts(self._connection, table)
        return self._next_doc - first

    def _block(self, file: int, rows: FileRows) -> dict[str, pa.Array]:
        given, n = rows.columns, rows.n_rows
        run_ids = _texts(given, "run_id", _texts(given, "run", [""] * n))
        names = _texts(given, "run", run_ids)
        splits = _texts(given, "split", ["rollout"] * n)
        steps = given["step"][1].to_pylist()
        run_numbers = [self._run_no(i, name) for i, name in zip(run_ids, names, strict=True)]
        of_place: dict[tuple[int, str, int], int] = {}
        places = []
        for key in zip(run_numbers, splits, steps, strict=True):
            if key not in of_place:
                of_place[key] = manifest.place_of(self._connection, *key)
            places.append(of_place[key])
        block: dict[str, pa.Array] = {}
        for name, (_, column) in given.items():
            stored = name if name in TRACE else self._names.stored(name)
            if stored is not None and stored not in block and column.null_count < n:
                block[stored] = column
        numbers = (file << ROW_BITS) + np.arange(n, dtype=np.int64)
        kinds = _texts(given, "kind", [""] * n)
        block |= {
            "row": pa.array(numbers),
            "place": pa.array(places, pa.int64()),
            "run_no": pa.array(run_numbers, pa.int64()),
            "split": pa.array(splits, pa.string()),
            "step": pa.array(steps, pa.int64()),
            "from_ledger": pa.array([kind in ("", "rollout") or None for kind in kinds], pa.bool_()),
            "doc": self._docs(numbers, places, rows),
        }
        if "late" in given:
            block["late_part"] = given["late"][1].cast(pa.int64())
        return block

    def _docs(self, numbers: np.ndarray, places: Sequence[int], rows: FileRows) -> pa.Array:
        """Notes the traced rows and their words; their numbers [N], null where a row was not traced."""
        n = rows.n_rows
        ids = _texts(rows.columns, "id", None) if "id" in rows.columns else [None] * n
        uids = _texts(rows.columns, "uid", None) if "uid" in rows.columns else [None] * n
        kinds = _texts(rows.columns, "kind", ["rollout"] * n)
        docs: list[int | None] = []
        noted, words = [], []
        for row, trace_id in enumerate(ids):
            if trace_id is None:
                docs.append(None)
                continue
            doc = self._next_doc
            self._next_doc += 1
            docs.append(doc)
            noted.append((doc, int(numbers[row]), trace_id, uids[row], places[row], kinds[row]))
            said = None if rows.messages is None else rows.messages[row].as_py()
            words.append((doc, b"" if said is None else spaced(conversation_text(said))))
        self._connection.executemany(
            "INSERT INTO docs (doc, src, id, uid, place, kind) VALUES (?, ?, ?, ?, ?, ?)", noted
        )
        self._connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", words)
        return pa.array(docs, pa.int64())

    def _run_no(self, run_id: str, name: str) -> int:
        if run_id not in self._runs:
            cursor = self._connection.execute(
                "INSERT INTO runs (run_id, name, started, last_step) VALUES (?, ?, '', 0)", (run_id, name)
            )
            self._runs[run_id] = int(cursor.lastrowid or 0)
        return self._runs[run_id]


def _texts(columns: dict[str, tuple[Kind, pa.Array]], name: str, otherwise: list | None) -> list:
    """A column as texts, unknown ones replaced by those of another list where it is given."""
    if name not in columns:
        return list(otherwise or [])
    values = columns[name][1].cast(type_of("text")).to_pylist()
    if otherwise is None:
        return values
    return [value if value is not None else other for value, other in zip(values, otherwise, strict=True)]


def _store_attempts(connection: sqlite3.Connection, source: ExportSource) -> None:
    for run_id, split, attempt, first in source.attempts():
        connection.execute(
            "INSERT OR REPLACE INTO attempts SELECT run, ?, ?, ? FROM runs WHERE run_id = ?",
            (split, attempt, first, run_id),
        )
