"""A run's logged scalars by key, read on from where the last reading ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from rollout_traces.store.source import Source

Series = dict[str, tuple[list[int], list[float]]]
"""Key -> steps and values, in order of arrival; of a step that was logged several times, the newest value."""

_LOG = logging.getLogger("rollout_traces")
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass
class _Read:
    """What was read of one run: key -> step -> its newest value, and the id of the last row."""

    series: dict[str, dict[int, float]] = field(default_factory=dict)
    last_id: int = 0


class Scalars:
    """The scalars of a project's runs; each row is read once.

    Args:
        source: the project.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._runs: dict[str, _Read] = {}
        self._lock = threading.Lock()

    def of(self, run_id: str) -> Series:
        """Every number a run has logged so far; a step that a later attempt logged anew has its values.

        Args:
            run_id: the run.
        """
        with self._lock:
            read = self._runs.setdefault(run_id, _Read())
            while rows := self._source.metrics(run_id, read.last_id):
                for row_id, step, _, text in rows:
                    if not _add(read.series, step, text):
                        _LOG.warning("%s: metrics row %d is damaged and left out", self._source.label, row_id)
                read.last_id = rows[-1][0]
            return {key: (list(values), list(values.values())) for key, values in read.series.items()}


def superseded_steps(steps: Sequence[int], begins: Sequence[int]) -> set[int]:
    """The steps of a series that only an older attempt has, past where a newer one began.

    A newer attempt's first value comes after all those of the older ones; what came before it and lies further on
    belongs to weights that were thrown away.

    Args:
        steps: in order of arrival, each once, at its newest value.
        begins: the first step of every attempt but the first.
    """
    superseded: set[int] = set()
    for begin in begins:
        first = min((step for step in steps if step >= begin), default=None)
        if first is not None:
            superseded.update(step for step in steps[: steps.index(first)] if step > first)
    return superseded


def _add(series: dict[str, dict[int, float]], step: int, text: str | bytes) -> bool:
    """Adds the numbers of one row; False when it is damaged."""
    try:
        logged = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    if type(step) is not int or not isinstance(logged, dict):
        return False
    for key, value in logged.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int | float) or value in _NOT_FINITE:
            values = series.setdefault(key, {})
            values.pop(step, None)
            values[step] = float(value)
    return True
