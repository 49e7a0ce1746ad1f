"""Templates that the scan found, and where one lies in a series: its kind, when it begins and ends, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rollout_traces.analysis.scan import GROWTH, SHORTEST_RAMP, Whitened, lengths

Kind = Literal["window", "level", "ramp"]
MASS = 0.9
"""Part of the posterior that an interval holds."""
MOST_LENGTHS = 32
"""Lengths around the best that are tried for the exact one."""
SPIKE = 3
"""Steps that a spike has at most."""


@dataclass(frozen=True)
class Template:
    """A shape at a place.

    Attributes:
        kind: window, level or ramp.
        start: position of the first step that differs.
        stop: position behind the last step of a window or of a ramp's rise; the number of steps for a level.
    """

    kind: Kind
    start: int
    stop: int

    def over(self, n_steps: int) -> np.ndarray:
        """float [T]: the template itself."""
        t = np.arange(n_steps)
        if self.kind == "ramp":
            return np.clip((t - self.start + 1) / (self.stop - self.start), 0.0, 1.0)
        return ((t >= self.start) & (t < self.stop)).astype(float)

    def inside(self, n_steps: int) -> np.ndarray:
        """bool [T]: the steps that differ."""
        t = np.arange(n_steps)
        return (t >= self.start) & ((t < self.stop) | (self.kind != "window"))


@dataclass(frozen=True)
class Located:
    """A template with the intervals of its ends, as positions.

    Attributes:
        template: the best one.
        onset: first and last position of the interval of its first step.
        end: of its last step; None where it lasts.
        z: its size.
    """

    template: Template
    onset: tuple[int, int]
    end: tuple[int, int] | None
    z: float


def evidence(sizes: np.ndarray, n_places: int, n_lengths: int = 1) -> np.ndarray:
    """Log evidence of templates: half the square of their size, less the log of how many there are of the kind."""
    return sizes**2 / 2 - np.log(n_places * n_lengths)


def locate(series: Whitened, kind: Kind, start: int, length: int) -> Located:
    """Finds the exact place of a template and the posterior of its ends.

    Args:
        series: one series, S = 1.
        kind: what the scan found.
        start: where.
        length: its length in the scan.
    """
    n = series.weight.shape[1]
    found = lengths(n)
    around = _around(length, n)
    tables: list[tuple[Kind, int, np.ndarray]] = []
    if kind == "window":
        tables += [
            ("window", int(each), _log(series.windows(int(each))[0], n, len(found))) for each in around
        ]
    else:
        tables.append(("level", n, _log(series.levels()[0], n)))
        ramps = around if kind == "ramp" else found
        tables += [
            ("ramp", int(each), _log(series.ramps(int(each))[0], n, len(found)))
            for each in ramps
            if each >= SHORTEST_RAMP
        ]
    same = [table for table in tables if table[0] == kind]
    near = _near(kind, start, length, n)
    best_kind, best_length, best = max(
        same, key=lambda table: np.max(table[2][near(len(table[2]))], initial=-np.inf)
    )
    places = near(len(best))
    at = int(places[np.argmax(best[places])])
    stop = n if best_kind == "level" else at + best_length
    top = max(np.max(values[near(len(values))], initial=-np.inf) for _, _, values in tables)
    onset, end = np.zeros(n), np.zeros(n + 1)
    for each, size, values in tables:
        chosen = near(len(values))
        mass = np.exp(values[chosen] - top)
        onset[chosen] += mass
        if each == "window":
            np.add.at(end, chosen + size, mass)
    template = Template(best_kind, at, stop)
    size_of = {"window": series.windows, "ramp": series.ramps}
    z = series.levels()[0, at] if best_kind == "level" else size_of[best_kind](best_length)[0, at]
    last = None if best_kind != "window" else _interval(end, stop)
    return Located(
        template, _interval(onset, at), None if last is None else (last[0] - 1, last[1] - 1), float(z)
    )


def _log(sizes: np.ndarray, n_places: int, n_lengths: int = 1) -> np.ndarray:
    found = evidence(sizes, n_places, n_lengths)
    found[0] = -np.inf
    return found


def _around(length: int, n_steps: int) -> np.ndarray:
    low, high = max(1, int(length / GROWTH)), min(n_steps - 1, int(np.ceil(length * GROWTH)))
    return np.unique(np.linspace(low, max(high, low), MOST_LENGTHS).astype(np.int64))


def _near(kind: Kind, start: int, length: int, n_steps: int):  # type: ignore[no-untyped-def]
    """Gives the positions that belong to the same movement: another one in the same series has its own place."""
    reach = max(SHORTEST_RAMP, length if kind != "level" else min(start, n_steps - start))
    low, high = max(1, start - reach), start + reach + 1

    def chosen(size: int) -> np.ndarray:
        return np.arange(low, min(high, size))

    return chosen


def _interval(mass: np.ndarray, at: int) -> tuple[int, int]:
    """The shortest run of positions around one that holds `MASS` of it all."""
    total = mass.sum()
    low = high = at
    held = mass[at]
    while held < MASS * total and (low > 0 or high < len(mass) - 1):
        before = mass[low - 1] if low > 0 else -1.0
        after = mass[high + 1] if high < len(mass) - 1 else -1.0
        if before >= after:
            low -= 1
            held += before
        else:
            high += 1
            held += after
    return low, high
