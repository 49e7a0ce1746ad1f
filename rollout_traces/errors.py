"""Errors that this package raises on purpose, among them a package that is missing; and the one place that counts what
went wrong and was contained, and warns of it."""

from __future__ import annotations

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


def text_of(value: object) -> str:
    """`str(value)`, also of what has no text: a hostile `__str__` must not raise into training."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  the text says so
        return f"[{type(value).__name__} whose text failed: {type(error).__name__}]"


class RolloutTracesError(Exception):
    """Base of every error raised on purpose."""


class BatchError(RolloutTracesError, ValueError):
    """A batch cannot be understood. The text names the key, what was seen and what was expected."""


class ConfigError(RolloutTracesError, ValueError):
    """A setting cannot be understood. The text names it, its value and what was expected."""


class DecodeError(RolloutTracesError, ValueError):
    """Arrays handed to a decoder by hand cannot belong to one rollout."""


class StoreError(RolloutTracesError):
    """Stored data cannot be read, or does not hold what was asked for."""


class QueryError(StoreError, ValueError):
    """A query cannot be understood; the text points at the place.

    Args:
        what: what is wrong and what was expected.
        text: the query.
        start: first character of the bad token.
        stop: one past its last.

    Attributes:
        what: as given.
        text: as given.
        start: as given.
        stop: as given.
    """

    def __init__(self, what: str, text: str, start: int, stop: int) -> None:
        self.what, self.text, self.start, self.stop = what, text, start, max(stop, start + 1)
        shown = "".join(" " if c in "\r\n\t" else c for c in text)
        super().__init__(f"{what}\n  {shown}\n  {' ' * start}{'^' * (self.stop - self.start)}")


class FileRefused(StoreError):
    """A file from outside is damaged, or takes more memory than its size accounts for. The text names it."""


class NotWritten(RolloutTracesError, OSError):
    """What was asked for cannot be written. The text names the place and why."""


class MissingExtra(ImportError, ConfigError):
    """A package is not installed. The text names it, what needs it, and the extra that brings it."""


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Imports made inside come with an extra.

    Args:
        name: the extra, as in `rollout-traces[name]`.
        what: what needs it, as the subject of a sentence.

    Raises:
        MissingExtra: a package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise MissingExtra(
            f"{what} needs {package}: pip install 'rollout-traces[{name}]'.", name=error.name
        ) from error


log = logging.getLogger("rollout_traces")

WARN_EVERY = 60.0
"""Seconds between two warnings of one kind; what happened between them is counted."""
KIND_LENGTH = 40
"""Characters at a warning's beginning that show its kind, beside its counter: they name the key."""
MAX_KINDS = 100
"""Kinds that are distinguished; further ones count as one."""
_NUMBER = re.compile(r"\d+")


class Warnings:
    """One warning a minute and kind, and a count of all.

    Args:
        counters: where they are counted.
    """

    def __init__(self, counters: Counter[str]) -> None:
        self.counters = counters
        self._warned: dict[tuple[str, str], float] = {}

    def count(self, counter: str, what: object, n: int = 1, *, with_traceback: bool = False) -> None:
        """Counts, and warns when the last warning of the kind is long enough ago.

        Args:
            counter: the counter's name.
            what: what happened, or the error.
            n: how many.
            with_traceback: log where the error that is being handled was raised.
        """
        self._count(counter, what, n, WARN_EVERY, with_traceback)

    def count_once(self, counter: str, what: object, n: int = 1) -> None:
        """As `count`, with one warning of a kind for all time: of what is alike at every step.

        Args:
            counter: the counter's name.
            what: what happened.
            n: how many.
        """
        self._count(counter, what, n, math.inf, with_traceback=False)

    def _count(self, counter: str, what: object, n: int, every: float, with_traceback: bool) -> None:
        self.counters[counter] += n
        now, text = time.monotonic(), text_of(what)
        kind = (counter, _NUMBER.sub("#", text)[:KIND_LENGTH] if len(self._warned) < MAX_KINDS else "")
        if kind not in self._warned or now - self._warned[kind] >= every:
            self._warned[kind] = now
            log.warning(
                "%s (%d so far), training goes on: %s",
                counter,
                self.counters[counter],
                text,
                exc_info=with_traceback,
            )
