"""Steps at which a series changes its level, and how sure that is.

PELT (Killick, Fearnhead and Eckley 2012; ruptures) with a mean cost proposes; a local test decides. Proposals
come from the series with a robust linear trend removed and the penalty 3 ln n scaled by (1 + rho) / (1 - rho).
A proposal is kept when, in a window around it, a line with a jump fits far better than a line: learning
curves bend, and a bend looks like a change of mean to PELT but not like a jump. The test
takes out first-order autocorrelation (Prais and Winsten 1954), its variance is never below the robust variance of the whole series, its p
is multiplied by the positions that were searched, and Holm's method holds the error over all series.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.series import Series

LEAST_SEGMENT = 3
"""Steps between two changes."""
LEAST_STEPS = 10
"""Steps a series needs."""
PENALTY = 3.0
"""PELT's penalty in units of ln n, on a series of variance 1 without autocorrelation."""
LEARNED = (10, 16)
"""Steps on either side of a jump, beside a line, for what the policy learns and so drifts and bends."""
OF_GRADIENTS = (16, 25)
"""Steps on either side of a jump, beside a line, for what is noisier than it bends: loss and gradient norm."""
GIVEN = (25,)
"""Steps on either side of a change of mean for what is given from outside: data, engines, failures."""
GIVEN_COLUMNS = [
    "source",
    "engine",
    "reward_status",
    "discard_reason",
    "mismatch_k1",
    "mismatch_k3",
    "mismatch_abs_max",
    "log_ratio_sum",
    "staleness_max",
    "n_prompt",
    "group/mixed_prompts",
    "group/repeated_prompts",
    "group/size",
    "reward/unknown_share",
    "tool_names",
    "error_signatures",
    "n_tool_errors",
    "update/top3_share",
]
"""Columns that no policy changes smoothly by learning."""
GIVEN_FLAGS = frozenset(
    [
        "mask_leak",
        "mask_shifted",
        "eos_untrained",
        "untrained_sampled",
        "row_masked",
        "template_drift",
        "retokenized",
        "prefix_broken",
        "group_prompt_mismatch",
        "logprob_out_of_range",
        "logprob_mismatch",
        "stale",
        "mixed_versions",
        "nonfinite",
        "tool_error",
        "tool_call_unparsed",
        "bos_anomaly",
        "header_drift",
        "pad_attended",
        "duplicate_completions",
    ]
)
"""Flags that no policy changes smoothly by learning."""
OF_THE_GROUP = frozenset(("advantage", "update_share"))
"""Numbers that are taken against other rollouts of the group: where one part falls, the others rise."""
MOST_SIGMA = 50
"""What lies further from the middle of a series is drawn in to so many times its noise before changes are proposed."""
FREEDOM = 30
"""Degrees of freedom of the variance, which is pooled with that of the whole series."""
MOST_CORRELATED = 0.7
"""Autocorrelation is not taken to be above this: an estimate from a hundred steps is no surer."""
LEAST_SIGMA = 1.5
"""A jump is at least that many times the step-to-step noise of the tested series ..."""
LEAST_SHARE = 0.04
"""... a share moves by at least that much ..."""
LEAST_RATIO = 0.10
"""... and a mean by at least that part of its level or of the spread of the whole series."""

_GRADIENTS = re.compile(r"grad_?norm|(^|[/_])loss", re.IGNORECASE)
RATIOS = frozenset(["mismatch_k1", "mismatch_k3", "mismatch_abs_max", "log_ratio_sum"])
LEAST_MISMATCH_RATIO = 1.5
"""Mismatch of trainer and sampler changes by at least this factor."""


@dataclass(frozen=True)
class ChangePoint:
    """A change of level.

    Attributes:
        series: what changed.
        step: the first step of the new level.
        before: mean of the window before, as a person reads it.
        after: mean of the window after.
        size: the jump in units of the series' step-to-step noise; infinite where it had none.
        p: probability of such a jump anywhere in the series by chance, not yet for the number of series.
        last: last step of the new level; None where it lasts to the end.
    """

    series: Series
    step: int
    before: float
    after: float
    size: float
    p: float
    last: int | None = None


def noise(values: np.ndarray) -> tuple[float, float]:
    """Standard deviation of the step-to-step noise and its autocorrelation, untouched by jumps and trends.

    The spread of first differences, held at three of their 1.4826 MAD, over sqrt 2; the autocorrelation from the ratio of the spreads of
    second-lag and first differences, `var(x[t+2] - x[t]) / var(x[t+1] - x[t]) = 1 + rho`.

    Args:
        values: float [n], n >= 4.

    Returns:
        Sigma and rho in [0, 0.7]; sigma is 0 for a constant series.
    """
    first, second = _spread(np.diff(values)), _spread(values[2:] - values[:-2])
    if first == 0:
        first = float(np.std(np.diff(values))) if np.mean(np.diff(values) != 0) > 0.2 else 0.0
        return first / np.sqrt(2), 0.0
    rho = float(np.clip((second / first) ** 2 - 1, 0.0, MOST_CORRELATED))
    return first / np.sqrt(2 * (1 - rho)), rho


def change_points(series: Series) -> list[ChangePoint]:
    """The changes of level of one series, each with its p.

    Args:
        series: at least `LEAST_STEPS` values.
    """
    if len(series.values) < LEAST_STEPS:
        return []
    tested = _stable(series)
    sigma, rho = noise(tested)
    if sigma == 0:
        return _of_constant(series, tested)
    proposed = _proposals(tested, sigma, rho)
    floor = _sampling_noise(series)
    found: list[ChangePoint] = []
    edges = [0, *proposed, len(tested)]
    for i, at in enumerate(proposed, start=1):
        best = _best_jump(tested, at, (edges[i - 1], edges[i + 1]), (sigma, rho), floor, series)
        if best is None:
            continue
        at, t, jump = best
        change = _described(
            series, at, edges[i - 1], edges[i + 1], abs(jump) / sigma, _tail(t) * len(tested) / 2
        )
        if change.size >= LEAST_SIGMA and matters(series, change.before, change.after) and change.p < 0.05:
            found.append(change)
    return _with_ends(_apart(found))


def controlled(found: Sequence[ChangePoint], n_series: int, level: float = 0.01) -> list[ChangePoint]:
    """Those changes that remain when the error over all series of a run is held, by Holm's method.

    Args:
        found: changes with their p in one series.
        n_series: how many series were looked at.
        level: chance of any false one.
    """
    ordered = sorted(found, key=lambda change: change.p)
    kept = []
    for rank, change in enumerate(ordered):
        if change.p * max(n_series - rank, 1) > level:
            break
        kept.append(change)
    return sorted(kept, key=lambda change: (change.step, -change.size))


def matters(series: Series, before: float, after: float) -> bool:
    """Whether a change is large enough to be shown, however sure it is."""
    moved = abs(after - before)
    if series.is_share or series.column.endswith(("_share", "_prompts", "wasted_tokens")):
        return moved >= LEAST_SHARE
    if series.column in RATIOS:
        return max(abs(before), abs(after)) >= LEAST_MISMATCH_RATIO * min(abs(before), abs(after))
    spread = float(np.quantile(series.values, 0.9) - np.quantile(series.values, 0.1))
    scale = max(abs(before), abs(after))
    return moved >= LEAST_RATIO * max(scale, 1e-12) and moved >= LEAST_RATIO * spread


def _stable(series: Series) -> np.ndarray:
    """The values on a scale on which the noise is even: shares by arcsine, positive long-tailed numbers by log."""
    values = series.against if is_compared(series) else series.adjusted
    if series.is_share and len(series.rows):
        share = np.clip(values, 0, 1)
        n = series.rows
        return np.arcsin(np.sqrt((share * n + 0.375) / (n + 0.75)))
    low, high = np.quantile(values, 0.02), np.quantile(values, 0.98)
    if values.min() > 0 and high > 2 * low:
        return np.log(values)
    return values


def _sampling_noise(series: Series) -> np.ndarray | None:
    """float [n]: standard deviation that counting alone gives a share on the arcsine scale."""
    if series.is_share and len(series.rows):
        return 0.5 / np.sqrt(series.rows)
    return None


def _proposals(values: np.ndarray, sigma: float, rho: float) -> list[int]:
    import ruptures

    level = values - _trend(values)
    standard = np.clip((level - np.median(level)) / sigma, -MOST_SIGMA, MOST_SIGMA)
    penalty = PENALTY * np.log(len(values)) * (1 + rho) / (1 - rho)
    found = ruptures.KernelCPD(kernel="linear", min_size=LEAST_SEGMENT).fit(standard).predict(pen=penalty)
    return [int(at) for at in found[:-1]]


def _trend(values: np.ndarray) -> np.ndarray:
    """float [n]: a line whose slope is the median slope over an eighth of the series, which few jumps touch."""
    lag = max(len(values) // 8, 1)
    slope = float(np.median((values[lag:] - values[:-lag]) / lag))
    return slope * np.arange(len(values))


def is_given(series: Series) -> bool:
    """Whether a series is given from outside and so needs no line beside its jump."""
    return is_compared(series) or _from_outside(series)


def is_compared(series: Series) -> bool:
    """Whether a part is tested against the other parts of its steps: they learn alike, so their difference does not drift."""
    return len(series.against) > 0 and series.column not in OF_THE_GROUP and not _from_outside(series)


def _from_outside(series: Series) -> bool:
    if series.column == "flags":
        return series.value in GIVEN_FLAGS
    return series.column in GIVEN_COLUMNS or series.column.startswith("timing/")


def _best_jump(
    values: np.ndarray,
    at: int,
    within: tuple[int, int],
    spread: tuple[float, float],
    floor: np.ndarray | None,
    series: Series,
) -> tuple[int, float, float] | None:
    """The place near a proposal where the jump is surest: place, t, size."""
    low, high = within
    given = is_given(series)
    widths = GIVEN if given else OF_GRADIENTS if _GRADIENTS.search(series.column) else LEARNED
    best: tuple[int, float, float] | None = None
    for place in range(max(at - 3, LEAST_SEGMENT), min(at + 4, len(values) - LEAST_SEGMENT + 1)):
        surest: tuple[int, float, float] | None = None
        for width in widths:
            start = max(0, place - width, low if place - low >= 5 else 0)
            stop = min(len(values), place + width, high if high - place >= 5 else len(values))
            part = slice(start, stop)
            design = _design(stop - start, place - start, line=not given and stop - start >= 10)
            t, jump = _jump(values[part], design, *spread, None if floor is None else floor[part])
            if surest is None or abs(t) > abs(surest[1]):
                surest = (place, t, jump)
        if surest is not None and (best is None or abs(surest[1]) > abs(best[1])):
            best = surest
    return best


def _design(n: int, at: int, *, line: bool) -> np.ndarray:
    """float [n, 2 or 3]: a level, with a line where asked, and a jump before position `at`."""
    x = np.arange(n) - at
    return np.column_stack([np.ones(n), x, x >= 0] if line else [np.ones(n), x >= 0])


def _jump(
    values: np.ndarray, design: np.ndarray, sigma: float, rho: float, floor: np.ndarray | None
) -> tuple[float, float]:
    """t and size of the jump that the last column of a design stands for."""
    design, values = _whitened(design, rho), _whitened(values, rho)
    inverse = np.linalg.pinv(design.T @ design)
    fit = inverse @ (design.T @ values)
    residual = values - design @ fit
    freedom = max(len(values) - design.shape[1], 1)
    variance = max(float(residual @ residual) / freedom, sigma**2 * (1 - rho**2))
    if floor is not None:
        variance = max(variance, float(np.mean(floor**2)) * (1 - rho**2))
    error = np.sqrt(variance * inverse[-1, -1])
    return float(fit[-1] / error), float(fit[-1])


def _whitened(values: np.ndarray, rho: float) -> np.ndarray:
    """A series, or a design's columns, with first-order autocorrelation taken out (Prais and Winsten 1954)."""
    return np.concatenate([values[:1] * np.sqrt(1 - rho**2), values[1:] - rho * values[:-1]])


def _of_constant(series: Series, tested: np.ndarray) -> list[ChangePoint]:
    """Changes of a series that has no noise: each place where it takes another value and keeps it."""
    found = []
    runs = np.flatnonzero(np.diff(tested) != 0) + 1
    edges = [0, *runs.tolist(), len(tested)]
    for i in range(1, len(edges) - 1):
        at, before, after = edges[i], edges[i] - edges[i - 1], edges[i + 1] - edges[i]
        if before < LEAST_SEGMENT or after < LEAST_SEGMENT:
            continue
        p = _chance_of_new_level(series, at, edges[i - 1], edges[i + 1])
        change = _described(series, at, edges[i - 1], edges[i + 1], np.inf, p)
        if matters(series, change.before, change.after) and change.p < 0.05:
            found.append(change)
    return _with_ends(found)


def _chance_of_new_level(series: Series, at: int, low: int, high: int) -> float:
    """p of a noiseless series at another level: by its counts for a share, by the length of both levels else."""
    if series.is_share and len(series.rows):
        from scipy.stats import fisher_exact

        n = series.rows
        hits = np.round(series.values * n)
        table = [
            [hits[low:at].sum(), (n - hits)[low:at].sum()],
            [hits[at:high].sum(), (n - hits)[at:high].sum()],
        ]
        return float(min(fisher_exact(table).pvalue * len(n), 1.0))
    return float(len(series.values) * 0.5 ** min(at - low + high - at, 60))


def _described(series: Series, at: int, low: int, high: int, size: float, p: float) -> ChangePoint:
    width = max(LEARNED)
    before = series.values[max(low, at - width) : at]
    after = series.values[at : min(high, at + width)]
    if not len(before):
        before = series.values[max(0, at - width) : at]
    if not len(after):
        after = series.values[at : at + width]
    return ChangePoint(
        series, int(series.steps[at]), float(before.mean()), float(after.mean()), float(size), float(p)
    )


def _apart(found: list[ChangePoint]) -> list[ChangePoint]:
    """Of changes closer than a segment, the surest."""
    kept: list[ChangePoint] = []
    for change in sorted(found, key=lambda each: each.p):
        steps = change.series.steps
        at = np.searchsorted(steps, change.step)
        if all(abs(int(np.searchsorted(steps, other.step)) - int(at)) >= LEAST_SEGMENT for other in kept):
            kept.append(change)
    return sorted(kept, key=lambda each: each.step)


def _with_ends(found: list[ChangePoint]) -> list[ChangePoint]:
    """Each change with the step at which the next one brings the level back."""
    out = []
    for i, change in enumerate(found):
        last = None
        for later in found[i + 1 :]:
            if abs(later.after - change.before) < 0.5 * abs(change.after - change.before):
                steps = change.series.steps
                last = int(steps[np.searchsorted(steps, later.step) - 1])
                break
        out.append(replace(change, last=last))
    return out


def _tail(t: float) -> float:
    from scipy.stats import t as student

    return float(2 * student.sf(abs(t), FREEDOM))


def _spread(values: np.ndarray) -> float:
    """Standard deviation around 0 with values beyond three of the robust ones drawn in."""
    robust = _mad(values)
    if robust == 0:
        return 0.0
    middle = float(np.median(values))
    return float(np.sqrt(np.mean(np.clip(values - middle, -3 * robust, 3 * robust) ** 2)))


def _mad(values: np.ndarray) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
