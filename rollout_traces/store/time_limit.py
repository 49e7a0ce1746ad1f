"""A limit of time over everything that one question does: statements, searches, texts that are read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field

from rollout_traces.errors import StoreError

QUERY_SECONDS = 30.0
"""Seconds that a question of a page may take, by default."""
STEPS_BETWEEN_LOOKS = 100_000
"""Instructions of SQLite between two looks at the clock."""


@dataclass
class TimeLimit:
    """The limit on a question's time: its statements by the clock, what lies between them by the processor time of its thread.

    A thread that waits for the processor, as one of many on a busy machine does, is not what takes long.

    Attributes:
        seconds: how long it may take in all.
        in_statements: seconds by the clock of its statements, less the processor time that its thread had in them.
    """

    seconds: float
    in_statements: float = 0.0
    _began: float = field(default_factory=time.thread_time)
    _statement: float | None = None

    @property
    def seconds_left(self) -> float:
        """Seconds that are left; 0 when it is over."""
        waits = 0.0 if self._statement is None else self._ahead() - self._statement
        return max(self.seconds - (time.thread_time() - self._began) - self.in_statements - waits, 0.0)

    @contextmanager
    def statement(self) -> Iterator[None]:
        """Counts what is run within the block by the clock."""
        if self._statement is not None:
            yield
            return
        self._statement = self._ahead()
        try:
            yield
        finally:
            self.in_statements += self._ahead() - self._statement
            self._statement = None

    @staticmethod
    def _ahead() -> float:
        """By how much the clock is ahead of this thread's processor time."""
        return time.monotonic() - time.thread_time()

    def error(self) -> StoreError:
        """Makes the error of a question that was stopped."""
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
    limit = TimeLimit(seconds)
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
    """Marks a block within which this thread waits for what another one computes."""
    with _STEP_ASIDE.get()():
        yield


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
        with limit.statement():
            yield
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise limit.error() from None
        raise
    finally:
        connection.set_progress_handler(None, 0)
