"""Interrupts work that takes too long: one thread watches over all of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupter:
    """Calls back where a piece of work is not done in time.

    A thread for each piece would cost more than most statements do. Its thread is started with the first piece, and
    sleeps until the first deadline that it knew of: work that ends in time wakes nobody.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[int, tuple[float, Callable[[], None]]] = {}
        self._next = 0
        self._sleeps_until: float | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def after(self, seconds: float | None, interrupt: Callable[[], None]) -> Iterator[None]:
        """Interrupts the block once it takes too long.

        Args:
            seconds: how long it may take; None for as long as it wants.
            interrupt: is called from another thread, and never after the block.
        """
        if seconds is None:
            yield
            return
        number = self._add(time.monotonic() + seconds, interrupt)
        try:
            yield
        finally:
            with self._changed:
                self._due.pop(number, None)

    def _add(self, deadline: float, interrupt: Callable[[], None]) -> int:
        with self._changed:
            self._next += 1
            self._due[self._next] = (deadline, interrupt)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="rollout-traces-limit", daemon=True)
                self._thread.start()
            elif self._sleeps_until is None or deadline < self._sleeps_until:
                self._changed.notify()
            return self._next

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for number in [number for number, (deadline, _) in self._due.items() if deadline <= now]:
                    self._due.pop(number)[1]()
                self._sleeps_until = min((deadline for deadline, _ in self._due.values()), default=None)
                self._changed.wait(None if self._sleeps_until is None else self._sleeps_until - now)
