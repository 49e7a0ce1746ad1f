"""The state of imports into a run: how far each file was read, and which rollouts, so that each is there once.

It is kept beside Trackio's projects and speaks of one Trackio run: when that was deleted, it counts for nothing.
A step is marked as open before its first rollout is handed over. Where an import was killed, the marks that are
left tell from which step on a run has to be imported again, as a new attempt.

A trace says from where its record was read, and a trace may have been made up by anyone: no file is read again but one
that this machine imported into the same project.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.errors import ConfigError, FileRefused, StoreError
from rollout_traces.model.bounded_reading import read
from rollout_traces.model.private_files import FOLDER_MODE, FolderLock
from rollout_traces.model.text import MOST
from rollout_traces.sources.base import PATIENCE, SQLITE, read_only
from rollout_traces.sources.formats.inspect_eval import unpacked
from rollout_traces.sources.lines import MAX_LINE, TooLong, head_of, is_no_lines, objects, opened

FOLDER = "rollout-imports"
WRITE_S = 0.5
"""Seconds between two writes of how far files were read: the disk is waited for at each."""
_TABLES = """
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, stop INTEGER, line INTEGER, tail BLOB, last_step INTEGER);
CREATE TABLE IF NOT EXISTS rollouts (
    run TEXT, id BLOB, step INTEGER, n INTEGER, import INTEGER, seen INTEGER, PRIMARY KEY (run, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS open_steps (run TEXT, step INTEGER, split TEXT, PRIMARY KEY (run, step, split));
CREATE TABLE IF NOT EXISTS attempt (id TEXT);
CREATE TABLE IF NOT EXISTS project (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS imports (number INTEGER PRIMARY KEY);
"""


@dataclass(frozen=True)
class FileState:
    """The part of a file that was imported.

    Attributes:
        size: its bytes then.
        mtime_ns: when it had been changed last, then.
        stop: byte behind the last record that was read; 0 where the format has no lines.
        line: lines before that.
        tail: hash of the bytes before `stop`: a file that was written anew has others there.
        last_step: the latest step of its rollouts; None when it had none.
    """

    size: int
    mtime_ns: int
    stop: int = 0
    line: int = 0
    tail: bytes = b""
    last_step: int | None = None


class ImportState:
    """The state of imports into one run, or several that lie in the same files.

    Args:
        folder: Trackio's folder.
        run_id: Trackio's id of the run.
    """

    def __init__(self, folder: Path, project: str, run_id: str) -> None:
        self._connection = sqlite3.connect(_place(folder, project, run_id, ".sqlite3"), timeout=PATIENCE)
        self._written = time.monotonic()
        self._connection.executescript(_TABLES)
        with self._connection:
            self._connection.execute("INSERT OR IGNORE INTO project VALUES (?)", (project,))
            self._import = self._connection.execute("INSERT INTO imports DEFAULT VALUES").lastrowid

    def file(self, path: Path) -> FileState | None:
        """Looks up what is known of a file, None when nothing of it was imported."""
        row = self._connection.execute(
            "SELECT size, mtime_ns, stop, line, tail, last_step FROM files WHERE path = ?",
            (str(path.resolve()),),
        ).fetchone()
        return None if row is None else FileState(*row)

    def is_new(self, run: str, identity: bytes, step: int, *, repeats: bool) -> bool:
        """Notes that a rollout was read, and tells whether it was imported before.

        Args:
            identity: what it is known by.
            repeats: several rollouts may share the identity, which is their content: as many as an earlier
                import took are known. Otherwise the second one is the first again.
        """
        known = self._connection.execute(
            "SELECT n, import, seen FROM rollouts WHERE run = ? AND id = ?", (run, identity)
        ).fetchone()
        if known is not None and not repeats:
            return False
        n, seen = (known[0], known[2] + 1 if known[1] == self._import else 1) if known else (0, 1)
        self._connection.execute(
            "INSERT OR REPLACE INTO rollouts VALUES (?, ?, ?, ?, ?, ?)",
            (run, identity, step, max(n, seen), self._import, seen),
        )
        return seen > n

    def add_repeats(self, run: str, identity: bytes, step: int) -> bool:
        """Notes a rollout that no earlier import can have read, since it lies behind where they ended."""
        self._connection.execute(
            "INSERT INTO rollouts VALUES (?, ?, ?, 1, ?, 1)"
            " ON CONFLICT (run, id) DO UPDATE SET n = n + 1, seen = n + 1, import = excluded.import",
            (run, identity, step, self._import),
        )
        return True

    def open_step(self, run: str, step: int, split: str) -> None:
        """Marks a step as open, before any of its rollouts is handed over."""
        with self._connection:
            self._connection.execute("INSERT OR IGNORE INTO open_steps VALUES (?, ?, ?)", (run, step, split))

    def keep(self, files: Mapping[Path, FileState], run: str, open_keys: Iterable[tuple[int, str]]) -> None:
        """Keeps how far some files were read, and which steps of a run are still open, all or nothing.

        It is on the disk some time later, together with what comes until then: of an import that is killed before, the
        steps are still marked as open, and are imported again.
        """
        rows = [
            (str(p.resolve()), s.size, s.mtime_ns, s.stop, s.line, s.tail, s.last_step)
            for p, s in files.items()
        ]
        self._connection.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self._connection.execute("DELETE FROM open_steps WHERE run = ?", (run,))
        self._connection.executemany(
            "INSERT INTO open_steps VALUES (?, ?, ?)", [(run, *key) for key in open_keys]
        )
        if time.monotonic() - self._written > WRITE_S:
            self._connection.commit()
            self._written = time.monotonic()

    def begin(self, attempt: str) -> str:
        """The attempt that rollouts belong to: the first import's, and a new one where the last import was killed.

        What a killed import left open is forgotten from its earliest step on, to be imported again.

        Args:
            attempt: id of the attempt that would begin now.
        """
        with self._connection:
            [(first,)] = self._connection.execute("SELECT min(step) FROM open_steps")
            known = self._connection.execute("SELECT id FROM attempt").fetchone()
            if first is not None:
                self._connection.execute("DELETE FROM rollouts WHERE step >= ?", (first,))
                self._connection.execute("DELETE FROM files WHERE last_step >= ?", (first,))
                self._connection.execute("DELETE FROM open_steps")
            elif known is not None:
                return str(known[0])
            self._connection.execute("DELETE FROM attempt")
            self._connection.execute("INSERT INTO attempt VALUES (?)", (attempt,))
        return attempt

    def close(self) -> None:
        """Closes its file."""
        try:
            self._connection.commit()
        finally:
            self._connection.close()


def _place(folder: Path, project: str, run: str, suffix: str) -> Path:
    """A file of a run, in a folder that is made where it is missing."""
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    name = hashlib.sha256(f"{project}\0{run}".encode()).hexdigest()
    return place / f"{name}{suffix}"


def only_import_of(folder: Path, project: str, run: str) -> FolderLock:
    """A lock that one import at a time holds of a run, whatever process it is in.

    Args:
        folder: Trackio's folder.
        run: the run's name: a run that is new has no id yet.

    Raises:
        ConfigError: another import holds it.
    """
    lock = FolderLock(_place(folder, project, run, ".lock"))
    if not lock.acquire():
        raise ConfigError(
            f"run {run!r} of {project!r}: another import writes to it now. Start this one when that one has ended."
        )
    return lock


def imported_files(folder: Path, project: str) -> frozenset[str]:
    """The files that this machine imported into a project; nothing is written.

    Args:
        folder: Trackio's folder.
    """
    found: set[str] = set()
    for path in (folder / FOLDER).glob("*.sqlite3"):
        # damaged, or of an import that only began: no files
        with contextlib.suppress(sqlite3.DatabaseError), read_only(path) as state:
            if state.execute("SELECT 1 FROM project WHERE name = ?", (project,)).fetchone():
                found.update(name for (name,) in state.execute("SELECT path FROM files"))
    return frozenset(found)


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
