"""The one place that counts what went wrong and was contained, and warns of it."""

from __future__ import annotations

import logging
import math
import re
import time
from collections import Counter

from rollout_traces.errors import text_of
from rollout_traces.model.units import MINUTE

log = logging.getLogger("rollout_traces")

WARN_EVERY = MINUTE
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
