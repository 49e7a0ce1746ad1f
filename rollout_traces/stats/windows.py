"""Averages of scalars over the time between two commits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_NOT_AVERAGED = re.compile(
    r"""(?:^|[/_])(?:
        min | max | minimum | maximum | median | p\d{1,3} | q\d{1,3}
      | step | steps | epoch | iteration | version | count | total | samples | n
    )$""",
    re.VERBOSE,
)


def is_averaged(key: str) -> bool:
    """Whether a mean of the key's values means anything.

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
