"""Commits: the step that each is logged at, never back, and averages over those that are not logged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

REMEMBERED = 64
"""Global steps whose log step is remembered."""


class StepRule:
    """`log_step = max(global_step, last + 1)`, reserved by whoever asks first for a global step.

    A global step that is committed a second time, as after a restart from an earlier checkpoint within one
    process, gets a new log step, so that nothing is written over.
    """

    def __init__(self) -> None:
        self._last = -1
        self._steps: dict[int, int] = {}
        self._committed: set[int] = set()

    def log_step(self, global_step: int) -> int:
        """The step that scalars and traces of a global step are logged at."""
        if global_step not in self._steps:
            self._reserve(global_step)
        return self._steps[global_step]

    def commit(self, global_step: int, n: int = 1) -> int:
        """Takes the log step of a global step for scalars.

        Args:
            global_step: the trainer's.
            n: consecutive steps to take, one a dict.

        Returns:
            The first of them.
        """
        if global_step in self._committed:
            del self._steps[global_step]
        step = self.log_step(global_step)
        self._committed.add(global_step)
        self._last = max(self._last, step + n - 1)
        return step

    def state_dict(self) -> dict[str, Any]:
        """Gives what a checkpoint needs; the key is AReaL's."""
        return {"last_commit_step": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after the last step of a checkpoint."""
        self._last = int(state["last_commit_step"])
        self._steps.clear()
        self._committed.clear()

    def _reserve(self, global_step: int) -> None:
        self._last = self._steps[global_step] = max(int(global_step), self._last + 1)
        while len(self._steps) > REMEMBERED:
            oldest = next(iter(self._steps))
            del self._steps[oldest]
            self._committed.discard(oldest)


_NOT_AVERAGED = re.compile(
    r"""(?:^|[/_])(?:
        min | max | minimum | maximum | median | p\d{1,3} | q\d{1,3}
      | step | steps | epoch | iteration | version | count | total | samples | n
    )$""",
    re.VERBOSE,
)


def is_averaged(key: str) -> bool:
    """Tells whether a mean of the key's values means anything.

    Step counters, counts, minima, maxima and quantiles are recognised by the end of their key (`/max`, `_count`,
    `/p95`, `global_step`); of these the latest value is kept.
    """
    return _NOT_AVERAGED.search(key) is None and not key.startswith("count/") and "/count/" not in key


class WindowedAverages:
    """Per-key sum and count of finite numbers since the last flush."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._latest: dict[str, float] = {}

    def add(self, values: Mapping[str, float]) -> int:
        """Adds one set of values.

        Returns:
            How many were NaN or infinite, and left out.
        """
        lost = 0
        for key, value in values.items():
            if not math.isfinite(value):
                lost += 1
            elif is_averaged(key):
                self._sums[key] = self._sums.get(key, 0.0) + value
                self._counts[key] = self._counts.get(key, 0) + 1
            else:
                self._latest[key] = value
        return lost

    def flush(self) -> dict[str, float]:
        """The averages, and the latest of what is not averaged; starts a new window."""
        averages = {key: total / self._counts[key] for key, total in self._sums.items()}
        result = averages | self._latest
        self._sums, self._counts, self._latest = {}, {}, {}
        return result
