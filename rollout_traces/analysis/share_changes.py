"""Shares that change from one step to the next: what is suddenly frequent."""

from __future__ import annotations

import numpy as np

LEAST_SHARE = 0.1
"""Share of the rollouts of the steps after that have it ..."""
TIMES = 4.0
"""... which is so many times the share before, over ten steps and over three: learning is not so sudden."""
LEAST_GAIN = 25.0
"""Gain in log-likelihood of two shares over one; chance gives this to one series in some billions."""
FEWEST_STEPS = 5
"""Steps before and after."""
EXPECTED = 8.0
"""Rollouts with it that a window after is expected to hold: of what is seldom seen, windows are wider."""


def begins(
    n: np.ndarray,
    of: np.ndarray,
    most_before: float = 1.0,
    least: float = LEAST_SHARE,
    least_gain: float = LEAST_GAIN,
    widest: int = 10,
) -> tuple[int | None, float]:
    """Position from which something is suddenly frequent, and the gain in log-likelihood of it.

    Args:
        n: float [T], rollouts of each step that have it.
        of: float [T], those that are counted.
        most_before: largest share that it may have before.
        least: smallest share that it has after.
        least_gain: gain from which it is sure.
        widest: most steps of a window.

    Returns:
        None for the position where it is not sudden, or not sure, or the steps are too few to know.
    """
    if len(n) < 2 * FEWEST_STEPS:
        return None, 0.0
    a, b = np.cumsum(n)[:-1], np.cumsum(of)[:-1]
    gains = (
        share_likelihood(a, b)
        + share_likelihood(n.sum() - a, of.sum() - b)
        - share_likelihood(n.sum(), of.sum())
    )
    inner = slice(FEWEST_STEPS - 1, len(n) - FEWEST_STEPS)
    at = int(np.argmax(gains[inner])) + FEWEST_STEPS
    gain = float(gains[at - 1])
    for shortest in (10, 3):
        width = min(_wide_enough(n[at:], of[at:], shortest), max(widest, shortest))
        before = _share(n[max(0, at - width) : at], of[max(0, at - width) : at])
        after = _share(n[at : at + width], of[at : at + width])
        if not (after >= least and after >= TIMES * before and before <= most_before):
            return None, gain
    return (at, gain) if gain >= least_gain else (None, gain)


def _wide_enough(n: np.ndarray, of: np.ndarray, shortest: int) -> int:
    """Steps in which `EXPECTED` rollouts are expected at the share of all steps; `shortest` at least."""
    counted = np.cumsum(of) * float(_share(n, of))
    return max(shortest, int(np.searchsorted(counted, EXPECTED)) + 1)


def share_likelihood(hits: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Largest log-likelihood of a share."""
    hits, of = np.asarray(hits, float), np.asarray(of, float)
    miss = of - hits
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(hits > 0, hits * np.log(hits / of), 0.0) + np.where(
            miss > 0, miss * np.log(miss / of), 0.0
        )


def _share(n: np.ndarray, of: np.ndarray) -> float:
    return float(n.sum() / of.sum()) if of.sum() else 0.0
