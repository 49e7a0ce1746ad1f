"""The file: lines are added to its end under a lock, and go only with the rollouts that they are about."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from rollout_traces.errors import StoreError
from rollout_traces.model.private_files import open_file, take_folder, why_not_believed, write_file
from rollout_traces.store.labels.entry import Entry, read_entry

MOST_BYTES = 64 << 20
"""Bytes of a project's file."""
logger = logging.getLogger("rollout_traces")


class LabelLog:
    """The lines of one project's file.

    Args:
        path: the file; it is made with the first line, mode 0600, its folder 0700.

    Attributes:
        unreadable: lines that are no entry.
        problem: why the file is not read; empty where it is, or is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable = 0
        self.problem = ""
        self._read: tuple[int, int] | None = None
        self._offset = 0

    def append(self, entry: Entry) -> None:
        """Adds a line: one write, at the end, while nobody else writes; it is on the disk when this returns.

        Raises:
            StoreError: the folder is not this user's, the file is full, or it cannot be written.
        """
        line = entry.line()
        try:
            fd = self._locked()
        except OSError as error:
            raise StoreError(f"labels: {self.path} cannot be written ({error.strerror}).") from error
        try:
            size = os.fstat(fd).st_size
            if size + len(line) > MOST_BYTES:
                raise StoreError(f"labels: {self.path} has {size:,} bytes; at most {MOST_BYTES:,} are kept.")
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(fd, line) != len(line):
                os.ftruncate(fd, size)
                raise StoreError(f"labels: {self.path}: the disk is full; nothing was written.")
            os.fsync(fd)
        except OSError as error:
            raise StoreError(f"labels: {self.path} cannot be written ({error.strerror}).") from error
        finally:
            os.close(fd)

    def forget(self, rollouts: Collection[str]) -> int:
        """Takes every line about some rollouts out of the file, for good: nothing says that it was there.

        Args:
            rollouts: what their labels are kept under.

        Returns:
            How many lines went.

        Raises:
            StoreError: the file cannot be written; then it is as it was.
        """
        if not self.path.exists():
            return 0
        rest = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            fd = self._locked()
            try:
                lines = self.path.read_bytes().splitlines(keepends=True)
                kept = [
                    line for line in lines if (e := read_entry(line)) is None or e.rollout not in rollouts
                ]
                if len(kept) < len(lines):
                    write_file(rest, b"".join(kept))
                    rest.replace(self.path)
            finally:
                os.close(fd)
        except OSError as error:
            rest.unlink(missing_ok=True)
            raise StoreError(f"labels: {self.path} cannot be written ({error.strerror}).") from error
        return len(lines) - len(kept)

    def _locked(self) -> int:
        """The file, open for writing while nobody else writes; it is closed to unlock it."""
        take_folder(self.path.parent, self.path.parent)
        while True:
            fd = open_file(self.path, os.O_RDWR | os.O_APPEND)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(fd), self.path.stat()):
                        return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def news(self) -> tuple[bool, list[Entry]]:
        """The entries that came since the last time; none where the file cannot be read or believed.

        Returns:
            Whether it is another file than before, so that these are all there are; and the entries.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            known, self._read, self._offset = self._read, None, 0
            return known is not None, []
        except OSError as error:
            return self._not_read(f"{self.path} cannot be read ({error.strerror}).")
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            return self._not_read(f"{self.path} is no file.")
        with os.fdopen(fd, "rb") as file:
            identity = (found.st_dev, found.st_ino)
            anew = identity != self._read or found.st_size < self._offset
            if anew and self._read is not None:
                self._offset = self.unreadable = 0
            foreign = why_not_believed(self.path.parent, self.path.parent, (self.path,)) if anew else None
            if foreign is not None:
                return self._not_read(foreign)
            self._read, self.problem = identity, ""
            if found.st_size == self._offset:
                return anew, []
            file.seek(self._offset)
            data = file.read(min(found.st_size, MOST_BYTES) - self._offset)
        whole, _, _ = data.rpartition(b"\n")
        self._offset += len(whole) + 1 if whole or data.startswith(b"\n") else 0
        entries = [read_entry(line) for line in whole.split(b"\n") if line]
        self.unreadable += sum(entry is None for entry in entries)
        return anew, [entry for entry in entries if entry is not None]

    def _not_read(self, why: str) -> tuple[bool, list[Entry]]:
        """Says once why there are no labels; reading goes on without them."""
        if why != self.problem:
            logger.warning("rollout-traces: labels are left out: %s", why)
        known, self._read, self._offset, self.problem = self._read, None, 0, why
        return known is not None, []
