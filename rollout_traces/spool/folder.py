"""A spool on disk: one folder with a file for each large record, and segments of small ones. And one in memory.

A large record is written to `<name>.writing` and renamed to `<name>.record` when complete, so what a killed
writer leaves is never taken for a record. One that was stored becomes a file in `free/` that the next one is
written into: its blocks are reserved and its pages warm. Small records are appended to `<name>.segment`. Files are
written with plain calls, so that a full disk is an error and never a signal.

The writer's death releases `owner.lock`; the worker holds another lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollout_traces.model.private_files import FILE_MODE, FolderLock, is_locked, make_folder
from rollout_traces.model.text import fresh_name
from rollout_traces.model.units import MB
from rollout_traces.spool.record import PREFIX_BYTES, Record, RecordError, Said, decode, said_by
from rollout_traces.spool.segments import FRAME_HEAD, SEGMENT, SMALL, Frame, SegmentWriter, SpoolSegments

RECORD = ".record"
WRITING = ".writing"
FREE = "free"
DAMAGED = ".damaged"
KEEP_FREE = 2
"""Free files kept for the next records."""
WORTH_KEEPING = MB
"""Bytes from which a file is kept."""
FOR_TOKENS = 7 / 8
"""Share of a spool's limit that tokens may fill; the rest is for the scalars of the steps after."""


class SpoolFull(Exception):
    """The spool's own limit leaves no room for a record."""


class DiskFull(SpoolFull):
    """The disk leaves no room for a record."""


class SpoolWriter:
    """The side that hands over: appends records in order.

    Args:
        folder: the writer's own folder; it is made.
        max_bytes: bytes of records that may wait at most.

    Raises:
        OSError: the folder cannot be made or its lock is taken.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        make_folder(folder)
        self._lock = FolderLock(folder / "owner.lock")
        if not self._lock.acquire():
            raise OSError(errno.EBUSY, f"spool {folder} has another owner")
        self._free = folder / FREE
        make_folder(self._free)
        self._segment = SegmentWriter(folder)
        self._newest = SpoolSegments(folder)
        self._waiting = 0
        self._last_size = 0
        self.count_waiting()
        self._last_name = self._newest_name()

    def append(self, buffers: Sequence[Any]) -> str:
        """Writes a record; it is complete when the call returns.

        Args:
            buffers: the record's bytes, as `record.encode` gives them.

        Returns:
            The record's name; names sort in the order of appending.

        Raises:
            SpoolFull: there is no room for it; `DiskFull` when it is the disk's.
            OSError: the disk refused.
        """
        size = sum(map(len, buffers))
        if self._waiting + size > self.max_bytes:
            raise SpoolFull(f"spool {self.folder}: {size} bytes more would exceed its {self.max_bytes}.")
        self._last_name = max(time.time_ns(), self._last_name + 1)
        name = f"{self._last_name:020d}"
        try:
            if size < SMALL:
                self._segment.append(name, buffers)
            else:
                self._write_file(name, buffers, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._drop_free()
                raise DiskFull(f"spool {self.folder}: the disk has no room for {size} bytes.") from error
            raise
        self._waiting += size
        return name

    def room(self) -> int:
        """Bytes of tokens that there is room for, by the last count of the waiting records."""
        return max(int(self.max_bytes * FOR_TOKENS) - self._waiting, 0)

    def count_waiting(self) -> int:
        """Counts the bytes of the records that wait to be stored; call it from time to time, on another thread."""
        sizes = dict(_sizes(self.folder))
        newest = max((file for file in sizes if file.endswith(SEGMENT)), default=None)
        if newest is not None:
            self._newest.refresh([newest])
            sizes[newest] = sum(frame.size for frame in self._newest.waiting.values())
        self._waiting = sum(size for file, size in sizes.items() if file.endswith((RECORD, SEGMENT)))
        return self._waiting

    def prepare(self, n_bytes: int) -> None:
        """Makes a free file of that size ahead of the first record, its pages in memory.

        Raises:
            OSError: the disk refused.
        """
        path = self.folder / f"{fresh_name()}{WRITING}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.posix_fallocate(fd, 0, n_bytes)
            zeros = bytes(MB)
            for at in range(0, n_bytes, len(zeros)):
                os.pwrite(fd, zeros[: n_bytes - at], at)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        path.rename(self._free / path.stem)

    def keep_ahead(self) -> None:
        """Makes free files for the next large records, as large as the last one; call it from another thread.

        It is for speed alone: where the disk refuses, the next record makes its own file.
        """
        have = sum(size >= self._last_size for _, size in _sizes(self._free))
        if self._last_size >= WORTH_KEEPING:
            with contextlib.suppress(OSError):
                for _ in range(KEEP_FREE - have):
                    self.prepare(int(self._last_size * 1.125))

    def close(self) -> None:
        """Releases the folder; the records that wait in it stay."""
        self._segment.close()
        self._drop_free()
        self._lock.release()

    def _newest_name(self) -> int:
        """The name of the newest record, as a number: what an earlier writer left comes first, whatever the clock says."""
        names = [*_large(os.listdir(self.folder)), self._newest.last]  # noqa: PTH208  as in `SpoolReader`
        return max((int(name) for name in names if name.isdigit()), default=0)

    def _write_file(self, name: str, buffers: Sequence[Any], size: int) -> None:
        writing = self._open_file(name, size)
        try:
            _write(writing, buffers, size)
            writing.rename(self.folder / f"{name}{RECORD}")
        except OSError:
            writing.unlink(missing_ok=True)
            raise
        self._last_size = size

    def _open_file(self, name: str, size: int) -> Path:
        """A free file with room for the record where there is one, else a name for a new file."""
        writing = self.folder / f"{name}{WRITING}"
        if size < WORTH_KEEPING:
            return writing
        for have, file in sorted((have, file) for file, have in _sizes(self._free)):
            if have >= size:
                with contextlib.suppress(FileNotFoundError):
                    (self._free / file).rename(writing)
                    break
        return writing

    def _drop_free(self) -> None:
        for file, _ in _sizes(self._free):
            (self._free / file).unlink(missing_ok=True)


class SpoolReader:
    """The side that processes: reads records in order and removes them once they are stored.

    Args:
        folder: a `SpoolWriter`'s folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = folder.name
        self._segments = SpoolSegments(folder)

    @property
    def owner_is_gone(self) -> bool:
        """True when the writer closed its spool or died."""
        return not is_locked(self.folder / "owner.lock")

    def names(self) -> list[str]:
        """The complete records, oldest first, and none without those before it."""
        files = self._files()
        self._segments.refresh(files)
        small = list(self._segments.waiting)
        large = set(_large(files))
        if small and small[-1] > max(large, default=""):
            # a large one may have come between the two looks, and a small one after it
            large |= {name for name in _large(self._files()) if name < small[-1]}
        return sorted([*small, *large])

    def has(self, name: str) -> bool:
        """True while a record is there."""
        frame = self._frame(name)
        return self._file(name).exists() if frame is None else self._segments.holds(frame)

    def read(self, name: str) -> Record:
        """Reads a record.

        Raises:
            RecordError: it is torn, damaged or of a newer schema.
        """
        return decode(self.read_bytes(name))

    def read_bytes(self, name: str) -> bytes:
        """Reads a record, and what may follow it in its file.

        Raises:
            FileNotFoundError: it was removed.
            RecordError: what says how long it is is damaged.
        """
        frame = self._frame(name)
        if frame is not None:
            return self._segments.read(frame)
        fd = os.open(self._file(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            data = os.read(fd, size)
            if len(data) == size:
                return data
            with open(fd, "rb", buffering=0, closefd=False) as rest:
                return data + rest.readall()
        finally:
            os.close(fd)

    def said_by(self, name: str) -> Said | None:
        """Reads a waiting record's prefix, without reading the whole record."""
        frame = self._frame(name)
        path, at = (self._file(name), 0) if frame is None else (frame.segment, frame.at + FRAME_HEAD)
        return _said_in(path, at)

    def set_aside_ones(self) -> list[Said | None]:
        """Reads the prefixes of the damaged records that were set aside; None where nothing can be read."""
        paths = [self.folder / file for file in self._files() if file.endswith(DAMAGED)]
        return [_said_in(path, 0) or _said_in(path, FRAME_HEAD) for path in paths]

    def remove(self, name: str) -> None:
        """Removes a stored record; a large one's file is kept for the next one where few are free."""
        if self._frame(name) is not None:
            self._segments.remove(name)
            return
        path = self._file(name)
        free = self.folder / FREE
        with contextlib.suppress(FileNotFoundError):
            large = path.stat().st_size >= WORTH_KEEPING
            if large and len(_sizes(free)) < KEEP_FREE and not self.owner_is_gone:
                path.rename(free / name)
            else:
                path.unlink()

    def set_aside(self, name: str) -> Path:
        """Puts a damaged record where it is not read again and can be examined."""
        aside = self.folder / f"{name}{DAMAGED}"
        if self._frame(name) is not None:
            self._segments.set_aside(name, aside)
            return aside
        with contextlib.suppress(FileNotFoundError):
            self._file(name).rename(aside)
        return aside

    def count_torn(self) -> int:
        """Counts and removes records that are incomplete because their writer was killed. For ownerless spools."""
        files = self._files()
        torn = [file for file in files if file.endswith(WRITING)]
        for file in torn:
            (self.folder / file).unlink(missing_ok=True)
        self._segments.refresh(files)
        return len(torn) + self._segments.cut_torn()

    def records(self) -> Iterator[tuple[str, Record | RecordError]]:
        """Every waiting record, or its error, oldest first."""
        for name in self.names():
            try:
                yield name, self.read(name)
            except RecordError as error:
                yield name, error
            except FileNotFoundError:
                continue

    def _file(self, name: str) -> Path:
        """The file of a large record."""
        return self.folder / f"{name}{RECORD}"

    def _frame(self, name: str) -> Frame | None:
        """Finds the place of a small record; None for what is not waiting in a segment."""
        frame = self._segments.waiting.get(name)
        if frame is None and not self._file(name).exists():
            self._segments.refresh(self._files())
            frame = self._segments.waiting.get(name)
        return frame

    def _files(self) -> list[str]:
        try:
            return os.listdir(self.folder)  # noqa: PTH208  thousands of names, without a Path for each
        except FileNotFoundError:
            return []


def _said_in(path: Path, at: int) -> Said | None:
    try:
        with path.open("rb") as file:
            file.seek(at)
            return said_by(file.read(PREFIX_BYTES))
    except OSError:
        return None


def _large(files: Sequence[str]) -> list[str]:
    """The names of large records, each of which is a file."""
    return [file.removesuffix(RECORD) for file in files if file.endswith(RECORD)]


def _write(path: Path, buffers: Sequence[Any], size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        if os.fstat(fd).st_size < size:
            os.posix_fallocate(fd, 0, size)
        at = 0
        for buffer in buffers:
            view = memoryview(buffer)
            while len(view):
                written = os.pwrite(fd, view, at)
                at += written
                view = view[written:]
    finally:
        os.close(fd)


def _sizes(folder: Path) -> list[tuple[str, int]]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.name, entry.stat().st_size))
    except FileNotFoundError:
        return []
    return found


class MemorySpool:
    """Writer and reader in one, which never touches the disk: for runs whose text must not be written there.

    It is lost with its process.

    Args:
        max_bytes: bytes of records that may wait at most.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.owner_is_gone = False
        self.spool = "memory"
        self._lock = threading.Lock()
        self._records: dict[str, bytes] = {}
        self._waiting = 0
        self._last_name = 0

    def append(self, buffers: Sequence[Any]) -> str:
        """Keeps a record.

        Raises:
            SpoolFull: there is no room for it.
        """
        data = b"".join(buffers)
        with self._lock:
            if self._waiting + len(data) > self.max_bytes:
                raise SpoolFull(f"spool in memory: {len(data)} bytes more would exceed its {self.max_bytes}.")
            self._last_name = max(time.time_ns(), self._last_name + 1)
            name = f"{self._last_name:020d}"
            self._records[name] = data
            self._waiting += len(data)
        return name

    def room(self) -> int:
        """Bytes of tokens that there is room for."""
        return max(int(self.max_bytes * FOR_TOKENS) - self._waiting, 0)

    def count_waiting(self) -> int:
        """Bytes of the records that wait."""
        return self._waiting

    def keep_ahead(self) -> None:
        """Does nothing: memory needs no files made ahead."""

    def close(self) -> None:
        """No more records will come."""
        self.owner_is_gone = True

    def names(self) -> list[str]:
        """The records that wait, oldest first."""
        with self._lock:
            return list(self._records)

    def has(self, name: str) -> bool:
        """True while a record waits."""
        return name in self._records

    def read(self, name: str) -> Record:
        """Reads a record."""
        data = self._records.get(name)
        if data is None:
            raise FileNotFoundError(f"record {name} is not there any more")
        return decode(data)

    def remove(self, name: str) -> None:
        """Removes a stored record."""
        with self._lock:
            self._waiting -= len(self._records.pop(name, b""))

    def take_all(self) -> list[Record]:
        """Removes every record that still waits."""
        with self._lock:
            records, self._records, self._waiting = self._records, {}, 0
        return [decode(data) for data in records.values()]

    def set_aside(self, name: str) -> None:
        """Removes a record that cannot be processed."""
        self.remove(name)
