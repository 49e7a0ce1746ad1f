"""Small records, appended to one file after another: a file of its own costs a record more than its bytes do.

A segment begins with its schema and with a mark of its own, 8 random bytes. Each record follows a head: the mark, the
record's name and size, a checksum of these, and whether the record was removed. What a rollout says cannot look like
a head, since nobody knows the mark beforehand. A record is there once all its bytes are; what a killed writer left
at the end is torn. It is removed by one byte in its head. A segment goes when nothing in it waits and a newer one is
there: its writer adds to the newest alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollout_traces.model.private_files import FILE_MODE, write_file
from rollout_traces.spool.record import RecordError

log = logging.getLogger(__name__)

SEGMENT = ".segment"
SMALL = 1 << 16
"""Bytes below which a record is appended to a segment."""
SEGMENT_BYTES = 1 << 18
"""Bytes from which on a segment is not added to."""
SCHEMA_VERSION = 1
MAGIC = b"RTsg"
_BEGINNING = struct.Struct("<4sHH8s")
"""magic, schema, reserved, mark."""
_NAMED = struct.Struct("<8sQI")
"""mark, name, size of the record: what the head's checksum is of."""
_HEAD = struct.Struct("<8sQIIB7x")
"""The same, its CRC, and whether the record was removed."""
FRAME_HEAD = _HEAD.size
"""Bytes before a record."""
_REMOVED_AT = 24
"""The place in a head that says that the record was removed."""
SETTLED = 100_000_000
"""Nanoseconds after which a file's time tells all changes: two that are closer may have the same one."""


class Frame(NamedTuple):
    """The place of a record.

    Attributes:
        segment: the segment's file.
        at: where its head begins.
        size: bytes of the record.
        is_damaged: its head cannot be read; `size` reaches up to the next head that can.
    """

    segment: Path
    at: int
    size: int
    is_damaged: bool = False


class SegmentWriter:
    """Appends small records to a folder's segments.

    Args:
        folder: the spool's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._mark = b""

    def append(self, name: str, buffers: Sequence[Any]) -> None:
        """Appends a record; it is complete when the call returns.

        Args:
            name: its name, digits that sort after those before.
            buffers: its bytes.

        Raises:
            OSError: the disk refused; nothing of the record stays.
        """
        fd = self._fd
        if fd is None or (stat := os.fstat(fd)).st_size >= SEGMENT_BYTES or not stat.st_nlink:
            self._fd = fd = self._begun(name)
            stat = os.fstat(fd)
        data = b"".join(buffers)
        frame = _head(self._mark, int(name), len(data)) + data
        try:
            _write(fd, frame)
        except BaseException:
            self._cut_off(fd, stat.st_size, len(frame))
            raise

    def close(self) -> None:
        """Closes the newest segment; a later record begins another."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def _begun(self, name: str) -> int:
        """A new segment that is named after its first record."""
        self.close()
        path = self._folder / f"{name}{SEGMENT}"
        self._mark = secrets.token_bytes(8)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            _write(fd, _BEGINNING.pack(MAGIC, SCHEMA_VERSION, 0, self._mark))
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return fd

    def _cut_off(self, fd: int, at: int, size: int) -> None:
        """Cuts off a part of a record; a whole one may have been read, and stays.

        Where the disk refuses, the next record begins another segment.
        """
        try:
            if os.fstat(fd).st_size < at + size:
                os.ftruncate(fd, at)
        except OSError:
            self.close()


class SpoolSegments:
    """The segments of a folder, as they were looked at last.

    Args:
        folder: the spool's folder.

    Attributes:
        waiting: name -> where it lies, of the records that wait.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, _Segment] = {}
        self._lock = threading.Lock()
        self.waiting: dict[str, Frame] = {}

    def refresh(self, files: Iterable[str]) -> None:
        """Looks at the segments again, at those that were written to since.

        Args:
            files: names of the folder's files.
        """
        with self._lock:
            names = sorted(file for file in files if file.endswith(SEGMENT))
            known = {name: self._known.get(name) or _Segment(self._folder / name) for name in names}
            changed = [segment.refresh() for segment in known.values()]
            if any(changed) or known.keys() != self._known.keys():
                self.waiting = {
                    name: frame for segment in known.values() for name, frame in segment.waiting.items()
                }
            self._known = known

    @property
    def last(self) -> str:
        """The name of the newest record, removed or not; empty where there is none."""
        return next((segment.last for segment in reversed(self._known.values())), "")

    def read(self, frame: Frame) -> bytes:
        """A record's bytes.

        Raises:
            FileNotFoundError: it was removed.
            RecordError: its head is damaged.
        """
        if frame.is_damaged:
            raise RecordError(f"record: damaged, its head in {frame.segment.name} cannot be read.")
        data = _read(frame.segment, frame.at, _HEAD.size + frame.size)
        if len(data) <= _REMOVED_AT or data[_REMOVED_AT]:
            raise FileNotFoundError(f"a record of {frame.segment} is not there any more")
        return data[_HEAD.size :]

    def holds(self, frame: Frame) -> bool:
        """True while the record was not removed."""
        try:
            return _read(frame.segment, frame.at + _REMOVED_AT, 1) == b"\0"
        except FileNotFoundError:
            return False

    def remove(self, name: str) -> None:
        """Marks a record as removed, and removes the segments that nothing waits in and that are not added to."""
        with self._lock:
            frame = self.waiting.pop(name)
            segment = self._known[frame.segment.name]
            segment.remove(name)
            if not segment.waiting:
                self._unlink_emptied()

    def _unlink_emptied(self) -> None:
        for name, segment in list(self._known.items())[:-1]:
            if segment.is_emptied:
                segment.path.unlink(missing_ok=True)
                del self._known[name]

    def set_aside(self, name: str, path: Path) -> None:
        """Copies a damaged record to a file, head included, and removes it; a file that is no segment becomes that file."""
        frame = self.waiting[name]
        if not frame.at:
            with contextlib.suppress(FileNotFoundError):
                frame.segment.rename(path)
            return
        try:
            path.unlink(missing_ok=True)
            write_file(path, _read(frame.segment, frame.at, _HEAD.size + frame.size))
        except OSError as error:
            path.unlink(missing_ok=True)
            log.warning("a record that cannot be processed is not kept in %s: %s", path, error)
        self.remove(name)

    def cut_torn(self) -> int:
        """Counts the segments that end in something incomplete, and cuts that off. For ownerless spools."""
        torn = [segment for segment in self._known.values() if segment.is_torn]
        for segment in torn:
            with contextlib.suppress(FileNotFoundError):
                os.truncate(segment.path, segment.end)
        return len(torn)


class _Segment:
    """One segment, read up to `end`; what was read does not change but for the removals."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: dict[str, Frame] = {}
        self.end = 0
        self._size = 0
        self._mark = b""
        self.last = path.name.removesuffix(SEGMENT)
        self._settled: tuple[int, int] | None = None

    @property
    def is_torn(self) -> bool:
        """True when something incomplete is at its end."""
        return self._size > self.end

    @property
    def is_emptied(self) -> bool:
        """True when all that it holds was removed."""
        return not self.waiting and not self.is_torn

    def refresh(self) -> bool:
        """Reads what came, and what was removed.

        Returns:
            False where nothing changed.
        """
        try:
            stat = self.path.stat()
            version = (stat.st_size, stat.st_mtime_ns)
            if version == self._settled:
                return False
            is_settled = time.time_ns() - stat.st_mtime_ns > SETTLED
            data = self.path.read_bytes()
        except FileNotFoundError:
            self.waiting = {}
            return True
        self._settled = version if is_settled else None
        self._size = len(data)
        self.waiting = {name: frame for name, frame in self.waiting.items() if self._waits(frame, data)}
        self._read_new(data)
        return True

    def remove(self, name: str) -> None:
        """Marks a record as removed."""
        frame = self.waiting.pop(name)
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(frame.segment, os.O_WRONLY | os.O_CLOEXEC)
            try:
                if frame.is_damaged:
                    os.pwrite(fd, _head(self._mark, 0, frame.size, removed=True), frame.at)
                else:
                    os.pwrite(fd, b"\1", frame.at + _REMOVED_AT)
            finally:
                os.close(fd)

    def _waits(self, frame: Frame, data: bytes) -> bool:
        """Tells whether a record that waited before was not removed since, be it by another process."""
        if not frame.is_damaged:
            return not data[frame.at + _REMOVED_AT]
        return not frame.at or self._head_at(data, frame.at) is None

    def _read_new(self, data: bytes) -> None:
        if not self.end and not self._begin(data):
            return
        while self.end + _HEAD.size <= len(data):
            at = self.end
            head = self._head_at(data, at)
            if head is None:
                stop = self._next_head(data, at + _HEAD.size)
                if stop is None:
                    return
                frame = Frame(self.path, at, stop - at - _HEAD.size, is_damaged=True)
                self.waiting[f"{self.last}-{at:06d}"] = frame
            else:
                number, size, removed = head
                stop = at + _HEAD.size + size
                if stop > len(data):
                    return
                if number:
                    self.last = f"{number:020d}"
                if not removed:
                    self.waiting[self.last] = Frame(self.path, at, size)
            self.end = stop

    def _begin(self, data: bytes) -> bool:
        """Reads the beginning; a file that does not begin as a segment is one damaged record."""
        if len(data) < _BEGINNING.size:
            return False
        magic, schema, _, self._mark = _BEGINNING.unpack_from(data)
        if magic != MAGIC or schema != SCHEMA_VERSION:
            self.waiting = {self.last: Frame(self.path, 0, len(data), is_damaged=True)}
            self.end = len(data)
            return False
        self.end = _BEGINNING.size
        return True

    def _head_at(self, data: bytes, at: int) -> tuple[int, int, int] | None:
        """Number, size, and whether it was removed; None where no head can be read."""
        mark, number, size, crc, removed = _HEAD.unpack_from(data, at)
        is_whole = mark == self._mark and crc == zlib.crc32(data[at : at + _NAMED.size])
        return (number, size, removed) if is_whole else None

    def _next_head(self, data: bytes, start: int) -> int | None:
        at = data.find(self._mark, start)
        while 0 <= at <= len(data) - _HEAD.size:
            if self._head_at(data, at) is not None:
                return at
            at = data.find(self._mark, at + 1)
        return None


def _head(mark: bytes, name: int, size: int, *, removed: bool = False) -> bytes:
    return _HEAD.pack(mark, name, size, zlib.crc32(_NAMED.pack(mark, name, size)), removed)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view) :]


def _read(path: Path, at: int, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, at)
    finally:
        os.close(fd)
