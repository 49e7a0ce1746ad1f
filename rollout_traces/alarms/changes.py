"""A step against the 20 steps before it.

A share changed when the lower end of its 95 % interval is above the highest it was in 19 of 20 steps, and above
their mean by a minimum effect. A mean changed when it is more than `LEVEL_SPREADS` robust standard deviations
(1.4826 times the median absolute deviation of the steps' means, around the line through them) away from where that
line would be, and away by a minimum effect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from rollout_traces.alarms.counts import Counts

ROLLING = 20
"""Steps that a step is compared with."""
FEWEST = 5
"""Steps that are enough for that."""
SHARE_EFFECT = 0.1
"""A share has to rise by this much of all units."""
LEVEL_SPREADS = 5.0


def changed_share(now: Counts, before: Sequence[Counts], *, sure: bool = True) -> float | None:
    """Whether a share rose.

    Args:
        now: the step, or a few small ones.
        before: the steps before, oldest first.
        sure: the lower end of the interval has to be above; otherwise the share itself.

    Returns:
        What it passed; None where it did not.
    """
    if len(before) < FEWEST:
        return None
    known = _share(before)
    risen = known + max(SHARE_EFFECT, known / 2)
    if now.share <= risen:  # and so is the lower end
        return None
    limit = max(risen, float(np.quantile([counts.share for counts in before], 0.95)))
    return limit if (now.lower() if sure else now.share) > limit else None


def changed_level(
    now: float, before: Sequence[float], direction: Literal["up", "both"], effect: float
) -> float | None:
    """Whether a mean moved.

    Args:
        now: the step's.
        before: those of the steps before, oldest first.
        direction: whether a fall counts.
        effect: the part of what it was by which it has to move.

    Returns:
        What it passed; None where it did not.
    """
    if len(before) < FEWEST:
        return None
    at = np.arange(len(before), dtype=np.float64)
    values = np.asarray(before, np.float64)
    slope, start = _robust_line(at, values)
    expected = start + slope * len(before)
    spread = 1.4826 * _median(np.abs(values - start - slope * at))
    away = max(LEVEL_SPREADS * spread, effect * abs(_median(values)))
    if not math.isfinite(now) or not away:
        return None
    if now > expected + away:
        return expected + away
    return expected - away if direction == "both" and now < expected - away else None


def _share(before: Sequence[Counts]) -> float:
    n = sum(one.n for one in before)
    return sum(one.hits for one in before) / n if n else 0.0


def _robust_line(at: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Slope and start of the line with the median slope of all pairs (Theil 1950, Sen 1968)."""
    one, two = _pairs(len(at))
    slope = _median((values[two] - values[one]) / (at[two] - at[one]))
    return slope, _median(values - slope * at)


@lru_cache(ROLLING)
def _pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of n places, the smaller one first."""
    one, two = np.triu_indices(n, 1)
    return one, two


def _median(values: np.ndarray) -> float:
    """As `np.median`, which takes ten times as long for a few values."""
    ordered = np.sort(values)
    middle = len(ordered) // 2
    if math.isnan(ordered[-1]):
        return math.nan
    return float(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)
