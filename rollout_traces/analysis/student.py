"""The tail of Student's t, in numpy alone: a worker beside a trainer judges steps where scipy may not be installed."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

TERMS = 300
"""Terms of the continued fraction at most."""
CLOSE = 1e-12
"""Relative change of a term that ends it."""
TINY = np.finfo(float).tiny


def log_tail(x: np.ndarray, freedom: np.ndarray | float) -> np.ndarray:
    """Log of the chance that a t variable exceeds x.

    Args:
        x: float [...], not negative.
        freedom: degrees of freedom, of a shape that broadcasts; infinite for a normal distribution.
    """
    x, freedom = np.broadcast_arrays(np.asarray(x, float), np.minimum(np.asarray(freedom, float), MOST))
    # half of the regularised incomplete beta function at f / (f + x^2), with f / 2 and 1 / 2
    a, b = freedom / 2, 1 / 2
    y = freedom / (freedom + x**2)
    swap = y > (a + 1) / (a + b + 2)
    p, q = np.where(swap, b, a), np.where(swap, a, b)
    z = np.where(swap, x**2 / (freedom + x**2), y)
    front = (
        p * np.log(np.maximum(z, TINY))
        + q * np.log(np.maximum(1 - z, TINY))
        - np.log(p)
        + _log_gamma(p + q)
        - _log_gamma(p)
        - _log_gamma(q)
    )
    found = front + np.log(_fraction(p, q, z))
    return np.where(swap, np.log1p(-np.minimum(np.exp(found), 1 - CLOSE)), found) - math.log(2.0)


MOST = 1e6
"""Degrees of freedom from which on a distribution is as good as normal."""


def quartile(freedom: float) -> float:
    """Returns the upper quartile of the distribution."""
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        above = float(log_tail(np.asarray(middle), freedom)) > math.log(0.25)
        low, high = (middle, high) if above else (low, middle)
    return (low + high) / 2


@cache
def shape(freedom: float) -> tuple[float, float]:
    """Returns the median of the variable's absolute value, and the log of the constant of its density."""
    whole = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return quartile(freedom), whole - math.log(freedom * math.pi) / 2


def _log_gamma(values: np.ndarray) -> np.ndarray:
    distinct, at = np.unique(values, return_inverse=True)
    return np.asarray([math.lgamma(each) for each in distinct.tolist()])[at].reshape(values.shape)


def _fraction(p: np.ndarray, q: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The continued fraction of the incomplete beta function (Lentz 1976; Press et al. 2007, section 6.4)."""
    c = np.ones_like(z)
    d = 1 / _away(1 - (p + q) * z / (p + 1))
    total = d
    for m in range(1, TERMS):
        for top in (
            m * (q - m) * z / ((p + 2 * m - 1) * (p + 2 * m)),
            -(p + m) * (p + q + m) * z / ((p + 2 * m) * (p + 2 * m + 1)),
        ):
            d, c = 1 / _away(1 + top * d), _away(1 + top / c)
            step = c * d
            total = total * step
        if np.all(np.abs(step - 1) < CLOSE):
            break
    return total


def _away(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < TINY, TINY, values)
