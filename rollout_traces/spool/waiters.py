"""Who waits for a run's worker: any number of processes hold one lock together, and their deaths release it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout_traces.spool.locks import SharedLock, is_locked

PATIENCE = 1.0
"""Seconds in which the lock is tried for; the worker holds it for some microseconds when it looks."""


class Waiters:
    """Those who wait until a run's records are stored.

    Args:
        path: the lock's file; it is made by the first who waits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __bool__(self) -> bool:
        """True while somebody waits."""
        return is_locked(self.path)

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Tells the worker that somebody waits. Where it cannot be told, the wait is only longer."""
        lock = SharedLock(self.path)
        deadline = time.monotonic() + PATIENCE
        try:
            while not lock.acquire() and time.monotonic() < deadline and self.path.exists():
                time.sleep(0.001)
            yield
        finally:
            lock.release()
