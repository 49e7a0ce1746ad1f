"""Advisory locks that say who owns a folder and who waits for its worker; their holders' deaths release them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from rollout_traces.model.private_files import FILE_MODE

PATIENCE = 1.0
"""Seconds in which one who waits tries for the lock; the worker holds it for some microseconds when it looks."""
_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """An exclusive `flock` on a file.

    A child that is forked while the lock is held gives up its copy at once, so that the lock dies with
    its holder and not with the holder's last data-loading worker.

    Args:
        path: the lock's file; it is made when missing.
    """

    _how = fcntl.LOCK_EX

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Takes the lock without waiting.

        Returns:
            False when another process, or another holder in this one, has it or the folder is gone.
        """
        if self._fd is not None:
            return True
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, self._how | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        _held.add(self)
        return True

    def release(self) -> None:
        """Releases the lock; does nothing when it is not held."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Closes this process's copy; a process that shares it keeps the lock."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


class SharedLock(FolderLock):
    """The same, held by any number at once, and by none while a `FolderLock` of the file is held."""

    _how = fcntl.LOCK_SH


def is_locked(path: Path) -> bool:
    """True while somebody holds the lock, alone or with others."""
    if not path.exists():
        return False
    probe = FolderLock(path)
    if not probe.acquire():
        return True
    probe.release()
    return False


class Waiters:
    """The lock of processes that wait until a run's records are stored.

    Args:
        path: the lock's file; it is made by the first who waits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __bool__(self) -> bool:
        """True while somebody waits."""
        return is_locked(self.path)

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        """Tells the worker that somebody waits. Where that fails, the wait is only longer."""
        lock = SharedLock(self.path)
        deadline = time.monotonic() + PATIENCE
        try:
            while not lock.acquire() and time.monotonic() < deadline and self.path.exists():
                time.sleep(0.001)
            yield
        finally:
            lock.release()


def _let_go_in_child() -> None:
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.forget()


os.register_at_fork(after_in_child=_let_go_in_child)
