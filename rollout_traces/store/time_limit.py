"""A limit of time over everything that one question does: statements, searches, texts that are read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass

from rollout_traces.errors import StoreError

QUERY_SECONDS = 30.0
"""Seconds that a question of a page may take, by default."""
STEPS_BETWEEN_LOOKS = 100_000
"""Instructions of SQLite between two looks at the clock."""


@dataclass
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
StepAside = Callable[[], AbstractContextManager[None]]
_STEP_ASIDE: ContextVar[StepAside] = ContextVar("rollout_traces_step_aside", default=nullcontext)


@contextmanager
def time_limit(seconds: float) -> Iterator[TimeLimit]:
    """Stops what this thread asks of a store within the block after some seconds, with a StoreError."""
    limit = TimeLimit(seconds, time.monotonic() + seconds)
    token = _LIMIT.set(limit)
    try:
        yield limit
    finally:
        _LIMIT.reset(token)


@contextmanager
def stepping_aside(step_aside: StepAside) -> Iterator[None]:
    """Has what this thread waits for within the block wait inside another context.

    Args:
        step_aside: gives that context, as one in which other questions have this thread's place.
    """
    token = _STEP_ASIDE.set(step_aside)
    try:
        yield
    finally:
        _STEP_ASIDE.reset(token)


@contextmanager
def waiting_for_another() -> Iterator[None]:
    """What this thread waits for within the block is computed by another one: that costs none of its own time."""
    limit, begun = _LIMIT.get(), time.monotonic()
    try:
        with _STEP_ASIDE.get()():
            yield
    finally:
        if limit is not None:
            limit.deadline += time.monotonic() - begun


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
