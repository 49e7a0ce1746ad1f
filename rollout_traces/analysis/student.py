"""Tails: that of Student's t, and which one series have; in numpy alone: a worker beside a trainer judges steps where scipy may not be installed."""

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


FREEDOMS = (3.0, 4.0, 6.0, 10.0, 20.0, 60.0)
"""Degrees of freedom of Student's t among which the tails of a series are chosen."""


def weighed_together(likely: np.ndarray) -> np.ndarray:
    """float [S, F]: how likely each choice is for each series, where how often each occurs among them is found too.

    Empirical Bayes by expectation and maximisation (Efron 2010), with one series' worth of even chances beside them.

    Args:
        likely: float [S, F], log likelihoods.
    """
    density = np.exp(likely - likely.max(axis=1, keepdims=True))
    n_series, n_choices = density.shape
    often = np.full(n_choices, 1 / n_choices)
    weight = density
    for _ in range(ROUNDS):
        weight = density * often
        weight /= weight.sum(axis=1, keepdims=True)
        often = (weight.sum(axis=0) + 1 / n_choices) / (n_series + 1)
    return weight


ROUNDS = 50
"""Rounds of expectation and maximisation, of a few choices and series."""


def likelihood_of_tails(size: np.ndarray, n_outermost: int = 0) -> np.ndarray:
    """float [S, F]: log likelihood of each of `FREEDOMS`; of too few differences none is likelier.

    Args:
        size: float [S, N], how far some differences are from their middle, on any scale.
        n_outermost: of so many of the furthest only that they are far is used.
    """
    if size.shape[1] < 2 * n_outermost - 1:
        return np.zeros((len(size), len(FREEDOMS)))
    size = np.sort(size, axis=1)
    inner, edge = size[:, : size.shape[1] - n_outermost], size[:, -n_outermost]
    scale = np.maximum(np.median(inner, axis=1), LEAST_SCALE)
    likelihoods = []
    for nu in FREEDOMS:
        quarter, constant = shape(nu)
        factors = quarter / scale * SCALES[:, None]
        squares = np.log1p((inner * factors[..., None]) ** 2 / nu).sum(axis=2)
        beyond = n_outermost * log_tail(edge * factors, nu)
        tried = inner.shape[1] * (constant + np.log(factors)) - (nu + 1) / 2 * squares + beyond
        likelihoods.append(tried.max(axis=0) * NEW)
    return np.stack(likelihoods, axis=1)


SCALES = np.geomspace(1 / 1.4, 1.4, 7)
"""Scales beside that of the median that are tried for each of the tails."""
LEAST_SCALE = CLOSE
"""Scale of differences of which most are 0."""
NEW = 1 / 2
"""Part of the differences from neighbours that are new: each shares its neighbours with the next ones'."""
