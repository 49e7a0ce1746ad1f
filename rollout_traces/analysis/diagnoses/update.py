"""What the optimiser saw: rows that carry the update, clipping, gradient norms, entropy."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from rollout_traces.analysis.change_points import noise
from rollout_traces.analysis.diagnoses.base import (
    OUTCOME,
    UPDATE,
    Diagnosis,
    Evidence,
    Severity,
    change_text,
    figures,
    filter_of,
    number,
)
from rollout_traces.analysis.moved import WARM_UP
from rollout_traces.analysis.movement import Moved
from rollout_traces.analysis.ramps import Ramp, ramp
from rollout_traces.analysis.recomputed import (
    LATE,
    WIDTH,
    before_and_after,
    level_query,
    levels_of,
    logged_by_step,
    two_levels,
)
from rollout_traces.analysis.relations import known_number
from rollout_traces.analysis.series import Series

OPTIMISER = re.compile(r"loss|grad|kl|clip|ratio|entropy|update", re.IGNORECASE)
ENTROPY = re.compile(r"(^|/)entropy(/mean|/avg)?$", re.IGNORECASE)
UNCENTRED = 0.1
"""Share of the groups by which those with another mean than 0 have to change."""
COLLAPSED = 0.6
"""Entropy, or its estimate, that falls below this part of what it was within `WITHIN` steps has collapsed."""
WITHIN = 20
EXPLODED = 1.3
"""Entropy that grows by this factor within `SLOWLY` steps explodes: it falls in a run that learns."""
SLOWLY = 30
BEYOND_NOISE = 4.0
"""Both move by so many times the step-to-step noise."""


def few_rows(e: Evidence) -> list[Diagnosis]:
    """A few rollouts that carry most of a step's update."""
    return [
        Diagnosis(
            "few_rows", f"Three rollouts carry the step's update: {change_text(m, shares=True)}.", "warn", _tier(e, m), m.step, m.last,
            m.part, figures(m), filter_of(m, "update_share > 0.1"), (level_query(e.run, m),),
            "Open these rollouts: an outlier reward, a huge ratio, or too few that differ.",
        )
        for m in e.of("update/top3_share")
        if m.rises and m.after >= 0.3 and m.after - m.before >= 0.15
    ]  # fmt: skip


def _tier(e: Evidence, m: Moved) -> int:
    """Few rows are left where groups die; else they dominate by themselves."""
    died = any(
        other.rises and other.step <= m.step + 3 and (other.last is None or other.last >= m.step)
        for other in e.of("group/tie_share")
    )
    return OUTCOME if died else UPDATE


def collapse(e: Evidence) -> list[Diagnosis]:
    """Entropy, or minus the mean rollout logprob as its estimate, that falls fast, or that grows."""
    candidates: list[tuple[str, Series, float, str]] = [
        ("entropy", series, 1.0, logged_by_step(e.run, series.column))
        for series in e.logged
        if ENTROPY.search(series.column) and not series.column.startswith("eval")
    ]
    estimate = e.movements.get("mean_logprob")
    if estimate is not None:
        of_rows = e.run.by_step(f"-avg({known_number('mean_logprob')}) as value")
        candidates.append(("minus the mean logprob, an estimate of entropy,", estimate, -1.0, of_rows))
    for what, series, sign, query in candidates:
        values = sign * series.values
        for found, grows in ((ramp(values, WITHIN), False), (ramp(values, SLOWLY), True)):
            if found is None or found.at <= WARM_UP or found.before <= 0 or found.explained < 0.5:
                continue
            far = found.after >= EXPLODED * found.before if grows else found.after <= COLLAPSED * found.before
            if far and abs(found.before - found.after) >= BEYOND_NOISE * noise(values)[0]:
                return [_entropy(e, what, series, found, query)]
    return []


def _entropy(e: Evidence, what: str, series: Series, found: Ramp, query: str) -> Diagnosis:
    end = min(found.at + found.length - 1, len(series.steps) - 1)
    (before, _), (_, after) = (before_and_after(series.steps, at) for at in (found.at, end))
    step, reached = int(series.steps[found.at]), after[0]
    levels = two_levels(query, "value", before, after)
    was, came_to = levels_of(e.run, levels)
    grows = found.after > found.before
    text = (
        f"{'Diversity explodes' if grows else 'Diversity collapses'}: {what} {number(was)} to {number(came_to)} "
        f"from step {reached} on, since step {step}."
    )
    grave = not grows and found.after < 0.3 * found.before and not _reward_rises(e, step)
    severity: Severity = "error" if grave else "warn"
    advice = (
        "Look at the entropy bonus, the sampler's temperature, and whether rewards still pull to anything."
        if grows
        else "Look at the learning rate, the entropy or KL term, and whether one answer wins everywhere."
    )
    numbers = {"before": was, "after": came_to}
    return Diagnosis(
        "collapse", text, severity, UPDATE, step, None, None, numbers, f"step >= {step}", (levels,), advice
    )


def _reward_rises(e: Evidence, step: int) -> bool:
    """Whether the mean reward of the last steps is above that of the steps before a step: a policy that converges."""
    reward = e.movements.get("reward")
    if reward is None or not len(reward.values):
        return False
    before = reward.values[reward.steps < step]
    return len(before) > 0 and float(np.mean(reward.values[-LATE:])) > float(np.max(before[-WIDTH:]))


def optimiser(e: Evidence) -> list[Diagnosis]:
    """Loss, gradient norm, KL, clipping that jumped."""
    found = []
    for m in e.moved:
        series = e.movements.get(m.column, m.value)
        logged = series is not None and not len(series.rows)
        if ((logged and OPTIMISER.search(m.column)) or m.column == "clip_share") and np.isfinite(m.size):
            found.append(
                Diagnosis(
                    "update_moved", f"{m.column} jumped: {change_text(m)}.", "warn", UPDATE, m.step, m.last, m.part, figures(m),
                    f"step >= {m.step}", (level_query(e.run, m),), "Explain this step: `rollout-traces explain`.",
                )
            )  # fmt: skip
    return found


def advantage_scale(e: Evidence) -> list[Diagnosis]:
    """Advantages that are larger or smaller than before, as a whole."""
    return [
        Diagnosis(
            "update_moved", f"Advantages changed their scale (advantage/scale): {change_text(m)}.", "warn", UPDATE, m.step, m.last,
            m.part, figures(m), f"advantage != 0 and step >= {m.step}", (level_query(e.run, m),),
            "Compare how advantages are normalised, and the reward's scale, before and after: the learning rate acts on both.",
        )
        for m in e.of("advantage/scale")
    ]  # fmt: skip


def advantages_uncentred(e: Evidence) -> list[Diagnosis]:
    """Advantages that are no longer taken against the mean of their own group."""
    return [
        Diagnosis(
            "update_moved", f"Advantages of a group do not have the mean 0 (advantage/uncentred), share of groups: {change_text(m, shares=True)}.",
            "warn", UPDATE, m.step, m.last, m.part, figures(m), f"advantage is not null and step >= {m.step}", (level_query(e.run, m),),
            "Compare whose rewards an advantage is taken against, before and after: another baseline, or rows in another order.",
        )
        for m in e.of("advantage/uncentred")
        if abs(m.after - m.before) >= UNCENTRED
    ]  # fmt: skip


RULES: Sequence = (advantages_uncentred, advantage_scale, few_rows, collapse, optimiser)
