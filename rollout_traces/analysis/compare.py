"""Tests of A against B: numbers by Cliff's delta on group means, shares with groups as clusters, steps as clusters.

Sources: Cliff 1993 (delta), Mann and Whitney 1947 with tie correction, Wilcoxon 1945 for pairs, the
ratio estimator's linearized variance over clusters (Cochran 1977, chapter 6), Fisher's exact test on groups
for values that one side does not have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_DELTA = 0.2
"""An effect on a number below this is not shown."""
LEAST_SHARE = 0.02
"""A difference of shares below this is not shown."""
FEWEST_STEPS = 3
"""Steps of B that are needed to know the spread between steps."""


@dataclass(frozen=True)
class Effect:
    """The result of one comparison.

    Attributes:
        effect: Cliff's delta, P(a > b) - P(a < b); for shares their difference, which is the same on rows.
        low: lower end of the effect's 95 % interval.
        high: upper end.
        p: two-sided p, the larger of that between groups and that between steps.
        paired: whether differences were taken inside groups or prompts.
    """

    effect: float
    low: float
    high: float
    p: float
    paired: bool = False


def cliffs_delta(a: np.ndarray, b: np.ndarray) -> Effect:
    """Cliff's delta of group means, with Mann-Whitney's p under tie correction.

    The interval is Cliff's, asymmetric, from the variance of the dominance (Cliff 1996, equation 6.12 with
    the consistent estimate).

    Args:
        a: float [G_a], finite, G_a >= 1.
        b: float [G_b], finite, G_b >= 1.
    """
    from scipy.stats import norm

    n, m = len(a), len(b)
    ordered_a, ordered_b = np.sort(a), np.sort(b)
    below = np.searchsorted(ordered_b, ordered_a, "left")
    upto = np.searchsorted(ordered_b, ordered_a, "right")
    of_a = (below - (m - upto)) / m
    delta = float(of_a.mean())
    of_b = _dominance(ordered_b, ordered_a)
    total = n + m
    ties = _tie_sum(ordered_a, ordered_b)
    variance = n * m / 12 * ((total + 1) - ties / max(total * (total - 1), 1))
    u = (delta + 1) / 2 * n * m
    z = 0.0 if variance <= 0 else max(abs(u - n * m / 2) - 0.5, 0) / np.sqrt(variance)
    p = float(2 * norm.sf(z))
    s = (of_a.var(ddof=1) / n if n > 1 else 0.0) + (of_b.var(ddof=1) / m if m > 1 else 0.0)
    low, high = _cliffs_interval(delta, float(s))
    return Effect(delta, low, high, min(p, 1.0))


def _dominance(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each value how much the sorted others dominate it, in [-1, 1]."""
    below = np.searchsorted(others, values, "left")
    upto = np.searchsorted(others, values, "right")
    return ((len(others) - upto) - below) / len(others)


def _tie_sum(a: np.ndarray, b: np.ndarray) -> float:
    _, counts = np.unique(np.concatenate([a, b]), return_counts=True)
    return float((counts.astype(float) ** 3 - counts).sum())


def _cliffs_interval(delta: float, variance: float) -> tuple[float, float]:
    z = 1.959964
    if variance <= 0 or abs(delta) >= 1:
        return max(delta, -1.0), min(delta, 1.0)
    root = np.sqrt(variance * ((1 - delta**2) ** 2 + z**2 * variance)) * z
    scale = 1 - delta**2 + z**2 * variance
    low, high = (delta - delta**3 - root) / scale, (delta - delta**3 + root) / scale
    return float(max(low, -1)), float(min(high, 1))


def paired(differences: np.ndarray) -> Effect:
    """Wilcoxon's signed rank on differences inside pairs; the effect is the rank-biserial correlation (Kerby 2014).

    Args:
        differences: float [K], A minus B.
    """
    from scipy.stats import rankdata, wilcoxon

    other = differences[differences != 0]
    if len(other) < 2:
        return Effect(0.0, 0.0, 0.0, 1.0, True)
    p = float(
        wilcoxon(differences, zero_method="wilcox", method="approx" if len(other) > 25 else "auto").pvalue
    )
    ranks = rankdata(np.abs(other))
    effect = float((ranks[other > 0].sum() - ranks[other < 0].sum()) / ranks.sum())
    effect *= len(other) / len(differences)
    error = np.sqrt((2 * len(other) + 1) / (3 * len(other) * (len(other) + 1) / 2) / 2)
    return Effect(
        effect, max(-1.0, effect - 1.96 * float(error)), min(1.0, effect + 1.96 * float(error)), p, True
    )


def between_steps(values: np.ndarray, weights: np.ndarray, side: np.ndarray, within: float) -> float | None:
    """p of the difference of two sides against the spread between their steps.

    Each step's mean has the variance `tau^2 + within / weight`; tau^2 is the moment estimate from the steps
    of each side (DerSimonian and Laird's form), and the t distribution has the steps' degrees of freedom.

    Args:
        values: float [T], a mean for each step.
        weights: float [T], groups of each step.
        side: int [T], 0 for A and 1 for B.
        within: variance of a group's mean inside a step.

    Returns:
        None where there are too few steps to know the spread.
    """
    from scipy.stats import t as student

    freedom, squares, expected = 0, 0.0, 0.0
    for which in (0, 1):
        here = side == which
        if here.sum() >= 2:
            spread = values[here] - np.average(values[here])
            squares += float((spread**2).sum())
            freedom += int(here.sum()) - 1
            expected += float((within / weights[here]).mean()) * (int(here.sum()) - 1)
    if freedom < FEWEST_STEPS - 1:
        return None
    tau = max(squares / freedom - expected / freedom, 0.0)
    means, errors = [], []
    for which in (0, 1):
        here = side == which
        precision = 1 / np.maximum(tau + within / weights[here], 1e-300)
        means.append(float(np.average(values[here], weights=precision)))
        errors.append(1 / float(precision.sum()))
    error = np.sqrt(sum(errors))
    if error < 1e-150:
        return 1.0 if means[0] == means[1] else 0.0
    return float(2 * student.sf(abs(means[0] - means[1]) / error, freedom))


def shares(hits_a: np.ndarray, n_a: np.ndarray, hits_b: np.ndarray, n_b: np.ndarray) -> Effect:
    """The difference of two shares, each a ratio of sums over clusters.

    Args:
        hits_a: float [G_a], weight of the rows with the value, by group.
        n_a: float [G_a], weight of all rows, by group.
        hits_b: the same of B.
        n_b: the same of B.
    """
    sums = [_sums(hits_a, n_a), _sums(hits_b, n_b)]
    return shares_of_sums(*sums)


@dataclass(frozen=True)
class ClusterSums:
    """Sums over clusters that a share and its variance need.

    Attributes:
        hits: sum of h_g, the weight of rows with the value.
        rows: sum of n_g.
        hits2: sum of h_g squared.
        cross: sum of h_g n_g.
        rows2: sum of n_g squared.
        clusters: number of clusters.
        with_hits: clusters with any such row.
    """

    hits: float
    rows: float
    hits2: float
    cross: float
    rows2: float
    clusters: float
    with_hits: float

    @property
    def share(self) -> float:
        """The share."""
        return self.hits / self.rows if self.rows else float("nan")

    def variance(self, share: float) -> float:
        """Linearized variance of the share around a share, over clusters."""
        total = self.hits2 - 2 * share * self.cross + share**2 * self.rows2
        correction = self.clusters / max(self.clusters - 1, 1)
        return max(total, 0.0) * correction / max(self.rows**2, 1e-300)


def _sums(hits: np.ndarray, n: np.ndarray) -> ClusterSums:
    return ClusterSums(
        float(hits.sum()), float(n.sum()), float((hits**2).sum()), float((hits * n).sum()), float((n**2).sum()),
        len(n), int((hits > 0).sum()),
    )  # fmt: skip


def shares_of_sums(a: ClusterSums, b: ClusterSums) -> Effect:
    """The difference of two shares from their sums over clusters, with its 95 % interval and p.

    The p takes the variance under the pooled share; where one side never has the value it is Fisher's exact
    test on clusters with and without it.
    """
    from scipy.stats import fisher_exact, norm

    if not a.rows or not b.rows:
        return Effect(float("nan"), float("nan"), float("nan"), 1.0)
    difference = a.share - b.share
    error = np.sqrt(a.variance(a.share) + b.variance(b.share))
    if a.hits == 0 or b.hits == 0:
        table = [[a.with_hits, a.clusters - a.with_hits], [b.with_hits, b.clusters - b.with_hits]]
        p = float(fisher_exact(np.round(table).astype(int)).pvalue)
    else:
        pooled = (a.hits + b.hits) / (a.rows + b.rows)
        null = np.sqrt(a.variance(pooled) + b.variance(pooled))
        p = float(2 * norm.sf(abs(difference) / null)) if null > 0 else float(difference == 0)
    return Effect(
        difference, max(difference - 1.96 * error, -1.0), min(difference + 1.96 * error, 1.0), min(p, 1.0)
    )
