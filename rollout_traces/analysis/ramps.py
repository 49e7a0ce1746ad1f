"""Where a series begins to move from one level to another over some steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LENGTHS = (1, 2, 4, 6, 8, 12, 16, 20, 30)
"""Steps that a ramp may take."""

BETTER = 1.02
"""A longer ramp is taken where it explains more by this factor."""


@dataclass(frozen=True)
class Ramp:
    """The ramp that fits best.

    Attributes:
        at: position of its first step.
        length: steps that it takes.
        before: level before.
        after: level after.
        explained: share of the variance around the mean that it explains.
    """

    at: int
    length: int
    before: float
    after: float
    explained: float


def ramp(values: np.ndarray, longest: int = 20, weights: np.ndarray | None = None) -> Ramp | None:
    """The level, ramp, level curve with the least squared error.

    Args:
        values: float [n], n >= 12.
        longest: most steps of the ramp.
        weights: float [n]; equal ones by default.
    """
    n = len(values)
    if n < 12:
        return None
    w = np.ones(n) if weights is None else weights / weights.mean()
    mean = float(np.average(values, weights=w))
    total = float((w * (values - mean) ** 2).sum())
    if total == 0:
        return None
    starts = np.arange(3, n - 2)
    weight, moved = _from_here_on(w), _from_here_on(w * (values - mean))
    best: tuple[float, Ramp] | None = None
    for length in (each for each in LENGTHS if each <= longest):
        # a ramp is the mean of `length` jumps, one a step: sums over it are means of the sums after each
        places = np.minimum(starts[:, None] + np.arange(length), n)
        level = weight[places].mean(axis=1) / n
        square = weight[places] @ (2 * np.arange(length) + 1) / length**2
        power = square - n * level**2
        slope = (moved[places].mean(axis=1) - level * moved[0]) / np.maximum(power, 1e-12)
        gain = slope**2 * power
        i = int(np.argmax(gain))
        if best is None or gain[i] > best[0] * BETTER:
            before = float(mean - slope[i] * level[i])
            best = (
                float(gain[i]),
                Ramp(i + 3, length, before, before + float(slope[i]), float(gain[i]) / total),
            )
    return best[1] if best else None


def _from_here_on(values: np.ndarray) -> np.ndarray:
    """float [n + 1]: the sum from each place to the end; 0 after it."""
    return np.r_[np.cumsum(values[::-1])[::-1], 0.0]
