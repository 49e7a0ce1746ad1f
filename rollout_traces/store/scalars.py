"""A run's logged scalars by key, read on from where the last reading ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import StoreError, extra
from rollout_traces.model.plain_values import NOT_FINITE, from_json
from rollout_traces.store.source import Source
from rollout_traces.trace.conversion import ATTEMPT_KEY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = dict[str, tuple[list[int], list[float]]]
"""Key -> steps and values, in order of arrival; of a step that was logged several times, the newest value."""
Attempts = Sequence[tuple[str, int]]
"""Attempts of a run, oldest first, each with the first step that it trained."""
UNKNOWN = ""
"""The attempt of what carries none: the trainer logged it to Trackio itself."""
GLOBAL_STEP = "train/global_step"
"""The trainer's step of a row, as transformers' `Trainer` says it: it logs without a step, and Trackio then counts the calls."""
PLOTTED = "reward/mean"
"""The number that is drawn where nothing is named, of every split."""

_LOG = logging.getLogger("rollout_traces")


@dataclass
class _Read:
    """The numbers that were read of one run: attempt -> key -> step -> its newest value, and the id of the last row."""

    values: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    last_id: int = 0

    def names(self) -> list[str]:
        return list(dict.fromkeys(key for values in self.values.values() for key in values))

    def newest(self, key: str) -> dict[int, tuple[float, str]]:
        """Step -> value and attempt, in order of arrival; of a step that several attempts logged, the newest's."""
        found: dict[int, tuple[float, str]] = {}
        for attempt in sorted(self.values):
            for step, value in self.values[attempt].get(key, {}).items():
                found.pop(step, None)
                found[step] = (value, attempt)
        return found

    def first_steps(self) -> dict[str, int]:
        """Attempt -> the first step that it logged a number of."""
        return {
            attempt: min(min(steps) for steps in values.values())
            for attempt, values in self.values.items()
            if attempt != UNKNOWN
        }


@dataclass(frozen=True)
class Logged:
    """The numbers of one key, in order of arrival, each step once.

    Attributes:
        steps: the trainer's global step of each.
        values: each number.
        attempts: the attempt that logged each; None where unknown.
        superseded: the steps that only an older attempt has, past where a newer one began.
    """

    steps: list[int]
    values: list[float]
    attempts: list[str | None]
    superseded: frozenset[int] = frozenset()


class Scalars:
    """The scalars of a project's runs; each row is read once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._runs: dict[str, _Read] = {}
        self._lock = threading.Lock()

    def of(self, run_id: str) -> Series:
        """Every number a run has logged so far; a step that a later attempt logged anew has its values."""
        with self._lock:
            read = self._read_on(run_id)
            newest = {key: read.newest(key) for key in read.names()}
            return {
                key: (list(found), [value for value, _ in found.values()]) for key, found in newest.items()
            }

    def by_attempt(self, run_id: str, attempts: Attempts) -> dict[str, Logged]:
        """The same with the attempt of each number, and the steps that a newer attempt superseded.

        Args:
            attempts: the attempts of its training rollouts.
        """
        with self._lock:
            read = self._read_on(run_id)
            begins = {name: first + 1 for name, first in read.first_steps().items()} | dict(attempts)
            resumed = [step for _, step in attempts[1:]]
            return {key: _logged(read.newest(key), begins, resumed) for key in read.names()}

    def _read_on(self, run_id: str) -> _Read:
        read = self._runs.setdefault(run_id, _Read())
        while rows := self._source.metrics(run_id, read.last_id):
            for row_id, step, _, text in rows:
                if not _add(read.values, step, text):
                    _LOG.warning("%s: metrics row %d is damaged and left out", self._source.label, row_id)
            read.last_id = rows[-1][0]
        return read


def superseded_steps(steps: Sequence[int], begins: Sequence[int]) -> set[int]:
    """The steps of numbers without an attempt that only an older attempt has, past where a newer one began.

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


def _logged(
    newest: Mapping[int, tuple[float, str]], begins: Mapping[str, int], resumed: Sequence[int]
) -> Logged:
    """The numbers of a key.

    Args:
        newest: step -> value and attempt.
        begins: attempt -> the step from which it supersedes older ones.
        resumed: the first step of every attempt but the first.
    """
    steps, names = list(newest), {attempt for _, attempt in newest.values()}
    if names == {UNKNOWN}:
        superseded = superseded_steps(steps, resumed) if resumed else set()
    else:
        marked = {name: begin for name, begin in begins.items() if name != UNKNOWN}
        ends = {name: min((b for other, b in marked.items() if other > name), default=None) for name in names}
        superseded = {
            step
            for step, (_, attempt) in newest.items()
            if (end := ends[attempt]) is not None and step >= end
        }
    values = [value for value, _ in newest.values()]
    return Logged(steps, values, [attempt or None for _, attempt in newest.values()], frozenset(superseded))


def _add(values: dict[str, dict[str, dict[int, float]]], step: int, text: str | bytes) -> bool:
    """Adds the numbers of one row; False when it is damaged."""
    logged = from_json(text)
    if type(step) is not int or not isinstance(logged, dict):
        return False
    said = logged.get(GLOBAL_STEP)
    step = int(said) if isinstance(said, int | float) and said == said // 1 else step
    attempt = logged.get(ATTEMPT_KEY)
    series = values.setdefault(attempt if isinstance(attempt, str) else UNKNOWN, {})
    for key, value in logged.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int | float) or (isinstance(value, str) and value in NOT_FINITE):
            found = series.setdefault(key, {})
            found.pop(step, None)
            found[step] = float(value)
    return True


def draw_curves(series: Mapping[str, Any], run: str, keys: Sequence[str], ax: Axes | None) -> Axes:
    """Draws scalars over steps.

    Args:
        series: name -> steps and values.
        run: what stands above.
        keys: which of them; all mean rewards when there are none.
        ax: where; a new figure when None.

    Raises:
        MissingExtra: matplotlib is not installed.
        StoreError: a name that is not there.
    """
    with extra("plot", "store.plot"):
        import matplotlib.pyplot as plt
    wanted = list(keys) or [key for key in series if key.partition("/")[2] == PLOTTED]
    unknown = [key for key in wanted if key not in series]
    if unknown or not wanted:
        near = [each for key in unknown for each in get_close_matches(key, series, cutoff=0.3)]
        raise StoreError(
            f"no scalar {', '.join(map(repr, unknown)) or 'of a mean reward'}; there is, among {len(series)}: "
            f"{', '.join(near or sorted(series)[:5]) or 'none'}."
        )
    axes = plt.subplots()[1] if ax is None else ax
    for key in wanted:
        steps, values = series[key]
        axes.plot(steps, values, marker=".", label=key)
    axes.set_xlabel("step")
    axes.set_title(run)
    axes.legend()
    return axes
