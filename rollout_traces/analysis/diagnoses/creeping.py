"""What grows by and by, so that no step of it is a jump: flags, and the distance from the reference policy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from rollout_traces.analysis.change_points import noise
from rollout_traces.analysis.diagnoses.base import (
    DATA,
    ENVIRONMENT,
    OUTCOME,
    UPDATE,
    Diagnosis,
    Evidence,
    literal,
    number,
    percent,
)
from rollout_traces.analysis.diagnoses.data import ADVICE_MASK, MASK_FLAGS, severity_of
from rollout_traces.analysis.diagnoses.environment import ADVICE_TOOL, TOOL_FLAGS
from rollout_traces.analysis.moved import WARM_UP, first_there
from rollout_traces.analysis.ramps import ramp
from rollout_traces.analysis.recomputed import before_and_late, levels_of, logged_by_step, two_levels
from rollout_traces.analysis.relations import sql_text
from rollout_traces.analysis.series import Series
from rollout_traces.analysis.share_changes import share_likelihood

REPORTED_ELSEWHERE = (
    "truncated",
    "tied_group",
    "stale",
    "mixed_versions",
    "tool_error",
    "logprob_mismatch",
    "dominates_update",
)
"""Flags that have a rule of their own for slow growth, or that come with another measure."""
GROWN = 0.08
"""Share of the rollouts by which a flag has grown over the run ..."""
EXPLAINED = 0.5
"""... when a level, a ramp and a level explain so much of its variance, or its counts before and after are sure; and it was rare."""
RARE = 0.5
"""What was rare is at most this part of what it came to."""
LEAST_GAIN = 20.0
"""Gain in log-likelihood of two shares over one from which counts are sure, wherever they are parted."""
DISTANCE = re.compile(r"(^|[/_])(ref_)?kl($|[/_])", re.IGNORECASE)
FASTER = 5.0
"""The distance from the reference grows so many times as fast as before ..."""
FARTHER = 3.0
"""... and comes to so many times what it was."""
MARGIN = 8
"""Steps at either end in which no kink is looked for."""


def creeping_flags(e: Evidence) -> list[Diagnosis]:
    """Flags that were rare and grew over some steps."""
    jumped = {m.value for m in e.of("flags") if m.rises}
    found = []
    for series in _grown(e):
        if series.value is None or series.value in jumped:
            continue
        fit = ramp(series.values, 30, series.rows)
        if fit is None or fit.at <= WARM_UP or not (fit.explained >= EXPLAINED or _counted(series, fit.at)):
            continue
        if fit.after - fit.before < GROWN or fit.before > RARE * fit.after:
            continue
        at = first_there(series, fit.at)
        step = int(series.steps[at])
        text_only = e.run.needs_text("flags", series.value)
        by_step = e.run.by_step(
            f"avg(cast(list_contains(flags, {sql_text(series.value)}) as int)) as share, count(*) as rollouts",
            "flags is not null" + (" and traced and selected_by = 'random'" if text_only else ""),
        )
        query = two_levels(by_step, "share", *before_and_late(series.steps, at), "rollouts")
        before, after = levels_of(e.run, query)
        kind, tier, advice = _kind(series.value)
        text = f"{series.value} creeps up: {percent(before)} to {percent(after)} of the rollouts from step {step} on."
        found.append(
            Diagnosis(kind, text, "warn", tier, step, None, None, {"before": before, "after": after},
                      f"flags has {literal(series.value)} and step >= {step}", (query,), advice)
        )  # fmt: skip
    return found


def _counted(series: Series, at: int) -> bool:
    """Whether the counts before and from a position on differ far beyond chance: steps of few rollouts are noisy."""
    hits, of = series.values * series.rows, series.rows
    parts = [share_likelihood(hits[part].sum(), of[part].sum()) for part in (slice(at), slice(at, None))]
    return float(sum(parts) - share_likelihood(hits.sum(), of.sum())) >= LEAST_GAIN


def _grown(e: Evidence) -> Iterator[Series]:
    for (column, value, segment), series in e.movements.series.items():
        is_flag = (
            column == "flags" and segment is None and value is not None and value not in REPORTED_ELSEWHERE
        )
        if is_flag and severity_of(value) in ("warn", "error") and len(series.values) >= 12:
            yield series


def _kind(flag: str) -> tuple[str, int, str]:
    """Kind, tier and advice of a flag that grew."""
    if flag in TOOL_FLAGS:
        return "tools_failing", ENVIRONMENT, ADVICE_TOOL
    if flag in MASK_FLAGS and flag != "gibberish":
        return "mask_or_template", DATA, ADVICE_MASK
    return "outcome_moved", OUTCOME, "Read some of these rollouts beside older ones of the same prompts."


def distance_grows(e: Evidence) -> list[Diagnosis]:
    """A KL divergence that begins to grow much faster than it did."""
    jumped = {m.column: m.step for m in e.moved}
    found = []
    for series in e.logged:
        if not DISTANCE.search(series.column) or series.column in jumped:
            continue
        at = kink(series.values)
        if at is None:
            continue
        step = int(series.steps[at])
        query = two_levels(logged_by_step(e.run, series.column), "value", *before_and_late(series.steps, at))
        before, after = levels_of(e.run, query)
        text = f"{series.column} grows much faster than before, {number(before)} to {number(after)}, since step {step}."
        found.append(
            Diagnosis("update_moved", text, "warn", UPDATE, step, None, None, {"before": before, "after": after}, f"step >= {step}",
                      (query,), "Look at the KL coefficient, the reference policy and the learning rate.")
        )  # fmt: skip
    return found


def kink(values: np.ndarray) -> int | None:
    """Position at which a series begins to grow `FASTER` times as fast, to `FARTHER` times what it was.

    Args:
        values: float [n]; two lines that meet, with the least squared error over every position between.
    """
    n = len(values)
    if n < 3 * MARGIN:
        return None
    x = np.arange(n, dtype=float)
    fits = []
    for at in range(MARGIN, n - MARGIN):
        design = np.column_stack([np.ones(n), x, np.clip(x - at, 0, None)])
        beta, *_ = np.linalg.lstsq(design, values, rcond=None)
        fits.append((float(((values - design @ beta) ** 2).sum()), at, beta))
    error, at, beta = min(fits, key=lambda fit: fit[0])
    line = values - np.polyval(np.polyfit(x, values, 1), x)
    sigma, _ = noise(values)
    level, slope, end = (
        float(beta[0] + beta[1] * at),
        float(beta[1]),
        float(beta[0] + beta[1] * n + beta[2] * (n - at)),
    )
    faster = beta[1] + beta[2] >= FASTER * max(abs(slope), 1e-12)
    farther = end >= FARTHER * max(level, 0.0) and end - level >= 10 * sigma
    return at if faster and farther and error <= 0.4 * float((line**2).sum()) else None


RULES: Sequence = (creeping_flags, distance_grows)
