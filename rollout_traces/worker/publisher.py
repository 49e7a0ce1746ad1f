"""Writes down what a worker counted, for whoever asks and for the worker after it."""

from __future__ import annotations

import os
import time
from collections import Counter

from rollout_traces.spool.run_folder import RunFolder

PUBLISH_EVERY = 0.2
"""Seconds between two writes of the status."""


class Publisher:
    """Writes the status from time to time.

    Args:
        folder: the run's folder.
        counters: what is written.
    """

    def __init__(self, folder: RunFolder, counters: Counter[str]) -> None:
        self._folder = folder
        self._counters = counters
        self._last: dict[str, int] = {}
        self._at = 0.0

    def __call__(self) -> None:
        """Writes when something changed and the last time is long enough ago."""
        if time.monotonic() - self._at >= PUBLISH_EVERY and dict(self._counters) != self._last:
            self.now()

    def now(self) -> None:
        """Writes."""
        self._at = time.monotonic()
        self._last = dict(self._counters)
        self._folder.write_status({"counters": self._last, "pid": os.getpid(), "at": time.time()})
