"""Tests of A against B: numbers by Cliff's delta on group means, shares with groups as clusters, steps as clusters.

Sources: Cliff 1993 (delta), Mann and Whitney 1947 with tie correction, Wilcoxon 1945 for pairs, Hodges and Lehmann
1962 for blocks, the ratio estimator's linearized variance over clusters (Cochran 1977, chapter 6), Fisher's exact test on groups
for values that one side does not have, weighted false discovery control (Genovese, Roeder and Wasserman 2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rollout_traces.analysis.noise import DEVIATION
from rollout_traces.analysis.selections import NEIGHBOURS
from rollout_traces.analysis.step_cells import NORMAL_KURTOSIS
from rollout_traces.analysis.student import FREEDOMS, likelihood_of_tails, weighed_together

DISCOVERY, DOUBTFUL = 0.01, 0.1
"""False discovery rate over all columns, and that of what is told, as perhaps by chance, where nothing is surer."""
CONFIDENCE = 0.95
"""Chance that an interval holds what is true ..."""
CONFIDENCE_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
"""... and standard errors of it to each side."""
FEWEST_FREEDOM = 2
"""Degrees of freedom that are needed to know the spread between steps."""
FEWEST_CONTRASTS = 6
"""Earlier steps that could be compared in the same way, below which their spread says nothing."""
FEWEST = 3
"""Values on either side, where neither is a single step."""
FEWEST_BEFORE = FEWEST
"""Steps before a step, below which the step is no contrast."""
OVERLAP = 2
"""Of so many contrasts one counts as independent, because their neighbours overlap."""
DRAWN_IN = 3.0
"""Standard deviations to which contrasts are drawn in for their variance: an earlier spike is no noise."""
LEAST_T = 4.0
"""A t distribution with f degrees of freedom has the excess kurtosis 6 / (f - 4); of n normal values it has the variance 24 / n."""
EXACT_UP_TO = 25
"""Pairs up to which the signed rank is exact."""
ALIKE = 12
"""Decimals, of the mean size of some numbers, from which on what they differ by is rounding."""
TINY = np.finfo(float).tiny
ROUNDED = np.sqrt(np.finfo(float).eps)
"""Part of a number that is rounding: an epoch goes on by the same each time but for it."""


@dataclass(frozen=True)
class Effect:
    """The result of one comparison.

    Attributes:
        effect: Cliff's delta, P(a > b) - P(a < b); for shares their difference, which is the same on rows.
        low: lower end of the effect's 95 % interval.
        high: upper end.
        p: two-sided p, the larger of that between groups and that between steps.
        paired: whether it was taken inside groups or prompts, or net of the same prompts' earlier visits.
    """

    effect: float
    low: float
    high: float
    p: float
    paired: bool = False


def alike(values: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """Rounds numbers so that those are equal, and tied in rank, which only the order of adding tells apart: 0.3 / 3 and 0.4 / 4.

    Args:
        values: float [...], NaN where unknown.
        among: float [...], what they were computed from, whose size says how much is rounding; the values by default.
    """
    size = np.abs(values if among is None else among)
    size = float(size.mean(where=np.isfinite(size))) if np.isfinite(size).any() else 0.0
    return np.asarray((values / size).round(ALIKE) * size) if TINY < size < np.inf else values


def cliffs_delta(a: np.ndarray, b: np.ndarray) -> Effect:
    """Cliff's delta of group means, with Mann-Whitney's p: exact where a side has few groups and nothing is tied, else with tie correction.

    The interval is Cliff's, asymmetric, from the variance of the dominance (Cliff 1996, equation 6.12 with
    the consistent estimate).

    Args:
        a: float [G_a], finite, G_a >= 1.
        b: float [G_b], finite, G_b >= 1.
    """
    from scipy.stats import mannwhitneyu

    n, m = len(a), len(b)
    of_a, of_b = _dominance(a, b), _dominance(b, a)
    delta = float(of_a.mean())
    p = float(mannwhitneyu(a, b).pvalue)
    variance = (of_a.var(ddof=1) / n if n > 1 else 0.0) + (of_b.var(ddof=1) / m if m > 1 else 0.0)
    low, high = _cliffs_interval(delta, float(variance))
    return Effect(delta, low, high, p if np.isfinite(p) else 1.0)


def _dominance(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each value how much it dominates the others, in [-1, 1]."""
    ordered = np.sort(others)
    below, upto = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return np.asarray((below - (len(others) - upto)) / len(others))


def _cliffs_interval(delta: float, variance: float) -> tuple[float, float]:
    z = CONFIDENCE_Z
    if variance <= 0 or abs(delta) >= 1:
        return max(delta, -1.0), min(delta, 1.0)
    root = np.sqrt(variance * ((1 - delta**2) ** 2 + z**2 * variance)) * z
    scale = 1 - delta**2 + z**2 * variance
    low, high = ((delta - delta * delta * delta + sign * root) / scale for sign in (-1, 1))
    return float(max(low, -1)), float(min(high, 1))


def paired(a: np.ndarray, b: np.ndarray) -> Effect:
    """Wilcoxon's signed rank on differences inside pairs; the effect is the rank-biserial correlation (Kerby 2014).

    The p of few pairs is exact, by the sums of all signs that their ranks may have, tied or not.

    Args:
        a: float [K], of A.
        b: float [K], of B.
    """
    from scipy.stats import norm, rankdata

    differences = alike(a - b, np.stack([a, b]))
    other = differences[differences != 0]
    if len(other) < 2:
        return Effect(0.0, 0.0, 0.0, 1.0, True)
    ranks = rankdata(np.abs(other))
    total, root = float(ranks.sum()), float(np.sqrt((ranks**2).sum()))
    signed = float((ranks * np.sign(other)).sum())
    p = float(2 * norm.sf(abs(signed) / root))
    if len(other) <= EXACT_UP_TO:
        ways = np.ones(1)
        for twice in (2 * ranks).astype(int):
            ways = np.pad(ways, (twice, 0)) + np.pad(ways, (0, twice))
        p = min(1.0, float(2 * ways[int(total + abs(signed)) :].sum() / ways.sum()))
    effect, half = signed / total * len(other) / len(differences), CONFIDENCE_Z * root / total
    return Effect(effect, max(-1.0, effect - half), min(1.0, effect + half), p, True)


def aligned_p(values: np.ndarray, block: np.ndarray, in_a: np.ndarray) -> float:
    """p of A against B inside blocks, as prompts that were asked often: Hodges and Lehmann's aligned ranks, which are Wilcoxon's for blocks of two.

    Ranks of what departs from each block's mean, with their variance over all ways to part each block into as many of
    A and B as it has; never below the chance that those few which depart from the most frequent value all fall on one side.

    Args:
        values: float [G].
        block: int [G], of each.
        in_a: bool [G], on A's side, else on B's.
    """
    from scipy.stats import norm, rankdata

    n, of_a = (np.bincount(block, each, int(block.max()) + 1) for each in (np.ones(len(block)), in_a))

    def departing(x: np.ndarray) -> np.ndarray:
        return np.asarray(x - (np.bincount(block, x, len(n)) / np.maximum(n, 1))[block])

    rank = departing(rankdata(alike(departing(values), values)))
    spread = np.bincount(block, rank**2, len(n))
    variance = float((of_a * (n - of_a) / np.maximum(n * (n - 1), 1) * spread).sum())
    if variance <= 0:
        return 1.0
    sum_a = float(rank[in_a].sum())
    found, often = np.unique(values, return_counts=True)
    others = np.bincount(block, values != found[often.argmax()], len(n)).astype(int)
    one_side = min(_all_on_one_side(others, side, n) for side in (of_a, n - of_a))
    return max(float(2 * norm.sf(abs(sum_a) / np.sqrt(variance))), one_side)


def _all_on_one_side(k: np.ndarray, of_side: np.ndarray, n: np.ndarray) -> float:
    """The chance that k of each block's n all are among those of one side."""
    from scipy.special import gammaln

    if (k > of_side).any():
        return 0.0
    return float(
        np.exp((gammaln(of_side + 1) - gammaln(of_side - k + 1) - gammaln(n + 1) + gammaln(n - k + 1)).sum())
    )


def either(first: float, second: float) -> float:
    """p of two tests of one hypothesis: twice the smaller."""
    return min(1.0, 2 * min(first, second))


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
            squares += float(((values[here] - values[here].mean()) ** 2).sum())
            freedom += int(here.sum()) - 1
            expected += float((within / weights[here]).mean()) * (int(here.sum()) - 1)
    if freedom < FEWEST_FREEDOM:
        return None
    tau = max(squares / freedom - expected / freedom, 0.0)
    variance = tau + within / weights
    largest = float(variance.max())
    precision = (
        np.ones(len(variance)) if largest < TINY else largest / np.maximum(variance, ROUNDED * largest)
    )
    means = [float(np.average(values[side == s], weights=precision[side == s])) for s in (0, 1)]
    error = np.sqrt(largest * sum(1 / float(precision[side == s].sum()) for s in (0, 1)))
    if error * error < TINY:
        return 1.0 if means[0] == means[1] else 0.0
    return float(2 * student.sf(abs(means[0] - means[1]) / error, freedom))


def between_ranges(a: np.ndarray, b: np.ndarray) -> Effect | None:
    """Cliff's delta of values in a row, of which fewer count as independent; None of too few.

    Args:
        a: float [T_a], in order.
        b: float [T_b].
    """
    from scipy.stats import norm

    if min(len(a), len(b)) < FEWEST:
        return None
    found = cliffs_delta(a, b)
    kept = min(_independent(a), _independent(b))
    p = float(2 * norm.sf(norm.isf(found.p / 2) * np.sqrt(kept)))
    return Effect(found.effect, found.low, found.high, p)


def _independent(values: np.ndarray) -> float:
    """The part of some values in a row that counts as independent, by what they lie from a line, of which r is too small by about (2 + 4 r) / n (Kendall 1954)."""
    n = len(values)
    t = np.arange(n) - (n - 1) / 2
    spread = values - values.mean() - t * (t @ values) / (t @ t)
    total = float((spread**2).sum())
    r = float((spread[1:] * spread[:-1]).sum()) / total if total > 0 else 0.0
    r = min(r + 2 * (1 + 2 * r) / n, 1 - 1 / n)
    return (1 - r) / (1 + r) if r > 0 else 1.0


def contrasts(values: np.ndarray) -> np.ndarray:
    """float [T - 3]: each step's value minus the mean of the up to ten before it, on the scale of one with ten.

    Args:
        values: float [T], a value for each step.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(FEWEST_BEFORE, len(values))
    first = np.maximum(at - NEIGHBOURS, 0)
    difference = values[at] - (sums[at] - sums[first]) / (at - first)
    return np.asarray(difference / np.sqrt((1 + 1 / (at - first)) / (1 + 1 / NEIGHBOURS)))


def tails_before(series: Sequence[np.ndarray]) -> np.ndarray:
    """float [S]: degrees of freedom of the tails of each series' contrasts but the last: all series together say how often each occurs.

    Args:
        series: float [T] of each.

    Returns:
        NaN where there are too few contrasts, or most are the same.
    """
    found = np.full(len(series), np.nan)
    likely = {}
    for at, values in enumerate(series):
        before = contrasts(values)[:-1]
        size = np.abs(before - np.median(before)) if len(before) >= FEWEST_CONTRASTS else np.zeros(1)
        if np.median(size) > 0:
            likely[at] = likelihood_of_tails(size[None] / np.median(size))
    if likely:
        weight = weighed_together(np.concatenate(list(likely.values())))
        found[list(likely)] = 1 / (weight @ (1 / np.asarray(FREEDOMS)))
    return found


def step_p(
    values: np.ndarray, *, within: float = 0.0, within_freedom: float = np.inf, tails: float = np.nan
) -> float | None:
    """p of the last step against the ten before it, by how far earlier steps were from the ten before them.

    Args:
        values: float [T], a value for each step, the one in question last.
        within: what the groups alone let such a contrast vary; the steps' own variance counts where it is surely larger.
        within_freedom: degrees of freedom of `within`.
        tails: degrees of freedom of the contrasts' tails; where unknown, what their own kurtosis says.

    Returns:
        None where fewer than `FEWEST_CONTRASTS` earlier steps can be compared so.
    """
    from scipy.stats import chi2, kurtosis
    from scipy.stats import t as student

    found = contrasts(values)
    if len(found) <= FEWEST_CONTRASTS:
        return None
    before = found[:-1] - np.median(found[:-1])
    distance = abs(float(found[-1] - np.median(found[:-1])))
    scale = DEVIATION * float(np.median(np.abs(before)))
    variance = (
        float((np.clip(before, -DRAWN_IN * scale, DRAWN_IN * scale) ** 2).mean())
        if scale > 0
        else float((before**2).mean())
    )
    rounding = (ROUNDED * max(np.abs(values).max(), TINY)) ** 2
    if max(variance, within) <= rounding:
        return 1.0 if distance * distance <= rounding else _first_change(values)
    independent = len(before) / OVERLAP
    if variance <= within * float(chi2.ppf(CONFIDENCE, independent)) / independent:
        return float(2 * student.sf(distance / np.sqrt(within), within_freedom))
    excess = float(kurtosis(before)) - 2 * np.sqrt(
        4 * 2 * NORMAL_KURTOSIS / len(before)
    )  # beyond its own error
    heavy = LEAST_T + 2 * NORMAL_KURTOSIS / excess if excess > 0 else np.inf
    freedom = min(len(before) - 1, tails if np.isfinite(tails) else heavy)
    return float(2 * student.sf(distance / np.sqrt(variance), freedom))


def young_change(values: np.ndarray, groups: np.ndarray, within: float) -> tuple[float, int] | None:
    """A change among the last ten steps but one, the one in question, or among the last two where there are few steps before: its p, for all places together, and how many steps it has.

    What a series usually drifts by in so many steps is no change, nor is the end of an outage, after which it is as it was before. Where it
    changed most before these steps, all of them are as it is since.

    Args:
        values: float [T], a value for each step, the one in question last.
        groups: float [T], groups of each step.
        within: variance of a group's mean inside a step.

    Returns:
        None where there are too few steps before.
    """
    from scipy.stats import t as student

    earlier, newest = values[:-1], NEIGHBOURS
    found = contrasts(earlier[:-newest])
    if len(found) <= FEWEST_CONTRASTS:
        newest = FEWEST_BEFORE
        found = contrasts(earlier[:-newest])
    if len(found) <= FEWEST_CONTRASTS:
        return None
    own = float((found - np.median(found)) @ (found - np.median(found)) / len(found)) / (1 + 1 / NEIGHBOURS)
    drift = float(np.median(found)) * 2 / (1 + NEIGHBOURS)
    best, most = (1.0, 0), 0.0
    for k in range(1, min(2 * newest, len(earlier) - NEIGHBOURS + 1)):
        of_last, of_rest = groups[:-1][-k:], groups[:-1][-k - NEIGHBOURS : -k]
        difference = earlier[-k:].mean() - earlier[-k - NEIGHBOURS : -k].mean() - drift * (k + NEIGHBOURS) / 2
        variance = max(own * (1 / k + 1 / NEIGHBOURS), within * (1 / of_last.sum() + 1 / of_rest.sum()), TINY)
        moved = float(difference) ** 2 / (1 / k + 1 / NEIGHBOURS)
        if moved > most:
            p = float(2 * student.sf(abs(difference) / np.sqrt(variance), len(found) - 1))
            best, most = (p * (NEIGHBOURS - 1), k), moved
    k = best[1]
    if not 0 < k < newest:
        return 1.0, 0
    last, before, first = (
        earlier[-k:],
        earlier[-k - NEIGHBOURS : -k],
        earlier[: -k - NEIGHBOURS][-NEIGHBOURS:],
    )
    is_back = len(first) and 2 * abs(last.mean() - first.mean()) < abs(last.mean() - before.mean())
    return (1.0, 0) if is_back else best


def odd_p(values: np.ndarray) -> float | None:
    """p that the last value is as large as this by chance, by the median and spread of those before it.

    Args:
        values: float [T], a value for each step, the one in question last.

    Returns:
        None where there are too few before.
    """
    from scipy.stats import t as student

    before = values[:-1]
    if len(before) <= FEWEST_CONTRASTS:
        return None
    middle = float(np.median(before))
    scale = max(DEVIATION * float(np.median(np.abs(before - middle))), TINY)
    return float(student.sf((values[-1] - middle) / scale, len(before) - 1))


def _first_change(values: np.ndarray) -> float:
    """p of a value that never was another: none for a setting; for a count, as often as something new comes up."""
    whole = bool((values == np.round(values)).all())
    return 1 / (len(values) + 1) if whole else 0.0


def shares(hits_a: np.ndarray, n_a: np.ndarray, hits_b: np.ndarray, n_b: np.ndarray) -> Effect:
    """The difference of two shares over clusters, with its 95 % interval and p.

    Two tests, and twice the smaller p: the difference over its linearized error under the pooled share, and Fisher's
    exact test on clusters with the value and without, which alone tells where few have it or one side has none.

    Args:
        hits_a: float [G_a], weight of A's rows with the value, by cluster.
        n_a: float [G_a], weight of all its rows; clusters without any count as none.
        hits_b: float [G_b], of B.
        n_b: float [G_b].
    """
    from scipy.stats import fisher_exact, norm

    sides = ((hits_a, n_a), (hits_b, n_b))
    hits, rows = ([float(each.sum()) for each in of] for of in zip(*sides, strict=True))
    if not all(rows):
        return Effect(float("nan"), float("nan"), float("nan"), 1.0)
    own = [h / n for h, n in zip(hits, rows, strict=True)]
    difference = own[0] - own[1]
    half = CONFIDENCE_Z * np.sqrt(
        sum(_variance(*side, share) for side, share in zip(sides, own, strict=True))
    )
    table = [[int((h > 0).sum()), int(((n > 0) & (h <= 0)).sum())] for h, n in sides]
    p = float(fisher_exact(table).pvalue)
    if all(hits):
        null = np.sqrt(sum(_variance(*side, sum(hits) / sum(rows)) for side in sides))
        p = 2 * min(p, float(2 * norm.sf(abs(difference) / null)) if null > 0 else float(difference == 0))
    return Effect(difference, max(difference - half, -1.0), min(difference + half, 1.0), min(p, 1.0))


def _variance(hits: np.ndarray, n: np.ndarray, share: float) -> float:
    """Linearized variance around a share, over clusters."""
    clusters = int((n > 0).sum())
    return float(((hits - share * n) ** 2).sum()) * clusters / max(clusters - 1, 1) / float(n.sum()) ** 2


def discovered(p: Sequence[float], weights: Sequence[float], rate: float = DISCOVERY) -> np.ndarray:
    """bool [M]: which of several hypotheses hold under false discovery control.

    Args:
        p: p of each.
        weights: how much of the error each may take, on any scale.
        rate: false discovery rate.
    """
    from scipy.stats import false_discovery_control

    w = np.asarray(weights, float)
    if not len(w):
        return np.empty(0, bool)
    return np.asarray(false_discovery_control(np.minimum(np.asarray(p) / w * w.mean(), 1)) <= rate)
