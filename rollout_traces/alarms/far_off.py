"""Which logged numbers lie so far off at their last steps that a look is worth it, by two cheap screens."""

from __future__ import annotations

import numpy as np

from rollout_traces.analysis.noise import DEVIATION, SMALLEST_ERROR
from rollout_traces.analysis.scan import lengths
from rollout_traces.analysis.screen import FEWEST_STEPS
from rollout_traces.analysis.selections import NEIGHBOURS

TRAIL = 64
"""Steps that are remembered."""
REACH_OF_LOGGED = TRAIL // 2
"""Steps within which a movement of a logged number has to have begun: the other half of the trail says what was before."""
LENGTHS_OF_LOGGED = tuple(lengths(REACH_OF_LOGGED).tolist())
"""Steps of the windows of a logged number that are tried, and for which it is off when it is looked at again."""
BEYOND_MEMORY = 4.5
"""Errors by which the last steps of a logged number lie off for it to be looked at, against what each step takes from the one before: of jumps of five standard deviations two of 48 are lost, of eight none."""


def is_beyond_memory(values: np.ndarray) -> bool:
    """Tells whether the last steps of a number lie further off than it goes from one step to the next, by more than is worth a look.

    Least squares of each value on the one before it, with a leap and a level of the last steps and without them, against
    the median residual (Tsay 1988).

    Args:
        values: float [n].
    """
    n = len(values)
    values = values - np.median(values)
    at, now = np.arange(1, n), values[1:]
    usual = np.stack([np.ones(n - 1), values[:-1]], axis=1)
    rest = now - usual @ np.linalg.lstsq(usual, now)[0]
    floor = SMALLEST_ERROR * np.abs(values).max()
    for length in LENGTHS_OF_LOGGED:
        if n < length + FEWEST_STEPS - 1:
            break
        wider = np.column_stack([usual, at == n - length, at >= n - length])
        left = now - wider @ np.linalg.lstsq(wider, now)[0]
        scale = np.median(np.abs(left)) * DEVIATION + floor
        if rest @ rest - left @ left > (BEYOND_MEMORY * scale) ** 2:
            return True
    return False


def far_as_never(values_S_T: np.ndarray, seen: np.ndarray, ready: np.ndarray) -> dict[int, float]:
    """Finds the logged numbers whose last steps lie twice as far from the steps before them as any of the trail did, and how far.

    Args:
        values_S_T: float, the trail, the newest step last.
        seen: int [S], how many of its steps there were of each.
        ready: int [K], places of the numbers.
    """
    found: dict[int, float] = {}
    for n in np.unique(seen[ready]).tolist():
        at = ready[seen[ready] == n]
        values = values_S_T[at, TRAIL - n :]
        if n < NEIGHBOURS + 1:
            continue
        around = np.lib.stride_tricks.sliding_window_view(values, NEIGHBOURS, axis=1)
        before = np.partition(around, NEIGHBOURS // 2, axis=2)[..., NEIGHBOURS // 2]
        total = np.cumsum(values, axis=1)
        floor = SMALLEST_ERROR * np.abs(values).max(axis=1)
        for length in LENGTHS_OF_LOGGED:
            if n < FEWEST_STEPS + NEIGHBOURS + 2 * 2 * length:  # the longer, the more alike are neighbours
                break
            mean = (total[:, NEIGHBOURS + length - 1 :] - total[:, NEIGHBOURS - 1 : -length]) / length
            apart = mean - before[:, :-length]
            last, earlier = apart[:, -1], apart[:, :-length]
            beyond = (last > earlier.max(axis=1) + floor) | (last < earlier.min(axis=1) - floor)
            for i in np.flatnonzero(beyond).tolist():
                usual = np.median(earlier[i])
                if abs(last[i] - usual) > 2 * np.abs(earlier[i] - usual).max():
                    found.setdefault(int(at[i]), float(last[i] - usual))
    return found
