"""A limit of time over everything that one question does: statements, searches, texts that are read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from rollout_traces.errors import StoreError

QUERY_SECONDS = 30.0
"""Seconds that a question of a page may take, by default."""
STEPS_BETWEEN_LOOKS = 100_000
"""Instructions of SQLite between two looks at the clock."""


@dataclass(frozen=True)
class TimeLimit:
    """Until when a question may take.

    Attributes:
        seconds: how long it may take in all.
        deadline: when it is over, of `time.monotonic`.
    """

    seconds: float
    deadline: float

    @property
    def seconds_left(self) -> float:
        """Seconds that are left; 0 when it is over."""
        return max(self.deadline - time.monotonic(), 0.0)

    def error(self) -> StoreError:
        """What is said of a question that was stopped."""
        return StoreError(
            f"This took longer than {self.seconds:g} seconds and was stopped. Ask for less (one run, fewer steps, "
            "a filter before a search for text), or start `rollout-traces show --query-seconds` with more."
        )


_LIMIT: ContextVar[TimeLimit | None] = ContextVar("rollout_traces_time_limit", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stops what this thread asks of a store within the block after some seconds, with a StoreError."""
    token = _LIMIT.set(TimeLimit(seconds, time.monotonic() + seconds))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def current_limit() -> TimeLimit | None:
    """The limit that holds for this thread now; None for none."""
    return _LIMIT.get()


def check_time() -> None:
    """Raises StoreError where the time is over."""
    limit = _LIMIT.get()
    if limit is not None and not limit.seconds_left:
        raise limit.error()


@contextmanager
def stopping(connection: sqlite3.Connection) -> Iterator[None]:
    """Ends statements of a SQLite connection when the time is over.

    Raises:
        StoreError: it was over.
    """
    limit = _LIMIT.get()
    if limit is None:
        yield
        return
    connection.set_progress_handler(lambda: int(not limit.seconds_left), STEPS_BETWEEN_LOOKS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise limit.error() from None
        raise
    finally:
        connection.set_progress_handler(None, 0)
