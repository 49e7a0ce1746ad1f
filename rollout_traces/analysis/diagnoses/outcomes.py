"""What came of it: rewards, lengths, truncation, dead groups, what the policy learned to write."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollout_traces.analysis.diagnoses.base import (
    OUTCOME,
    Diagnosis,
    Evidence,
    change_text,
    figures,
    filter_of,
    number,
    percent,
)
from rollout_traces.analysis.moved import recomputed
from rollout_traces.analysis.purpose import purpose_gap
from rollout_traces.analysis.ramps import ramp

WASTED = 0.5
"""Share of tied groups above which a run that came to it by and by is warned about it."""
BIASED = 0.15
"""Correlation of reward and length inside groups that is a bias when lengths grow."""
GROWN = 1.25
"""Lengths that grew by this factor."""


def dead_groups(e: Evidence) -> list[Diagnosis]:
    """Groups whose rewards are all equal, with whether they were solved or hopeless."""
    found = []
    for m in [*e.of("group/tie_share"), *(m for m in e.of("flags") if m.value == "tied_group")]:
        if m.rises and m.after >= 0.25:
            found.append(
                Diagnosis(
                    "dead_groups", f"Groups die: share with equal rewards {change_text(m, shares=True)}{_why_tied(e, m.step)}.",
                    "error" if m.after > 0.8 else "warn", OUTCOME, m.step, m.last, m.part, figures(m),
                    filter_of(m, "flags has 'tied_group'"), recomputed(e.run, m), "Change the prompts' difficulty, or drop such groups before training.",
                )
            )  # fmt: skip
    series = e.movements.get("group/tie_share")
    if found or series is None or len(series.values) < 12:
        return found
    fit = ramp(series.values, 30, series.rows)
    late = float(np.mean(series.values[-5:]))
    if fit is not None and late > WASTED and fit.after - fit.before > 0.35 and fit.explained > 0.6:
        step = int(series.steps[fit.at])
        text = f"Groups die: share with equal rewards {percent(fit.before)} to {percent(fit.after)} from step {step} on{_why_tied(e, step)}."
        found.append(
            Diagnosis("dead_groups", text, "warn", OUTCOME, step, None, None, {"before": fit.before, "after": fit.after},
                      "flags has 'tied_group'", _groups_by_step(e, "sum(tied) as tied, sum(several) as several"),
                      "Change the prompts' difficulty, or drop such groups before training.")
        )  # fmt: skip
    return found


def _groups_by_step(e: Evidence, what: str) -> str:
    """A SELECT of what whole groups know, at each step."""
    return f"select step, {what} from ({e.run.with_values(e.run.groups_query)}) group by step order by step"


def _cut_by_step(e: Evidence) -> str:
    cut = "avg(cast(stop_reason = 'length' as int)) as share, count(*) as rollouts"
    return e.run.by_step(cut, "stop_reason is not null")


def _why_tied(e: Evidence, step: int) -> str:
    g = e.run.groups
    rows = g["step"].astype(int) >= step
    tied = np.nan_to_num(g["tied"].astype(float))[rows].sum()
    if not tied or not e.run.columns.has("success"):
        return ""
    from rollout_traces.analysis.relations import as_arrays, unit

    query = (
        f"select sum(cast(low = 1 and n > 1 as int)) as solved, sum(cast(high = 0 and n > 1 as int)) as hopeless from (select step, {unit(e.run.columns)} as u, "
        f"count(*) as n, min(success) as low, max(success) as high from rollouts where {e.run.scope} and step >= ? group by 1, 2)"
    )
    found = as_arrays(e.run.relations.sql(query, [*e.run.params, step]))
    solved, hopeless = (
        float(np.nan_to_num(found[name].astype(float)).sum()) for name in ("solved", "hopeless")
    )
    if solved == hopeless == 0:
        return ""
    return f" ({solved:.0f} groups solved by every rollout, {hopeless:.0f} by none)"


def truncation(e: Evidence) -> list[Diagnosis]:
    """More rollouts cut by length, with the reward with and without them."""
    found = []
    moved = [m for m in e.of("stop_reason") if m.value == "length"]
    moved += [m for m in e.of("flags") if m.value == "truncated"]
    for m in moved:
        if m.rises:
            found.append(
                Diagnosis(
                    "truncation", f"Truncation grows: stopped by length {change_text(m)}{_reward_of_cut(e, m.step)}.", "warn", OUTCOME,
                    m.step, m.last, m.part, figures(m), filter_of(m, "stop_reason = 'length'"), recomputed(e.run, m),
                    "Raise the limit, or look at what made answers longer.",
                )
            )  # fmt: skip
    series = e.movements.get("stop_reason", "length")
    if not found and series is not None and len(series.values) >= 12:
        fit = ramp(series.values, 30, series.rows)
        if fit is not None and fit.after - fit.before > 0.15 and fit.explained > 0.6:
            step = int(series.steps[fit.at])
            text = f"Truncation grows: stopped by length {percent(fit.before)} to {percent(fit.after)} from step {step} on."
            found.append(
                Diagnosis("truncation", text, "warn", OUTCOME, step, None, None, {"before": fit.before, "after": fit.after},
                          f"stop_reason = 'length' and step >= {step}", _cut_by_step(e), "Look at what made answers longer.")
            )  # fmt: skip
    return found


def _reward_of_cut(e: Evidence, step: int) -> str:
    if not e.run.columns.has("reward", "stop_reason"):
        return ""
    query = (
        "select avg(case when stop_reason = 'length' and isfinite(reward) then reward end) as cut, "
        f"avg(case when stop_reason <> 'length' and isfinite(reward) then reward end) as whole from rollouts where {e.run.scope} and step >= ?"
    )
    row = e.run.relations.sql(query, [*e.run.params, step]).to_pylist()[0]
    if row["cut"] is None or row["whole"] is None:
        return ""
    return f"; reward {number(row['cut'])} with them, {number(row['whole'])} without"


def length_bias(e: Evidence) -> list[Diagnosis]:
    """Longer answers that are rewarded inside groups, and lengths that grow."""
    correlation, lengths = e.run.length_correlation, e.movements.get("n_sampled")
    if correlation is None or lengths is None or len(correlation.values) < 20:
        return []
    start, r, z = _onset_of_bias(correlation.values, correlation.rows)
    step = int(correlation.steps[start])
    begun = int(np.searchsorted(lengths.steps, step))
    early = float(np.mean(lengths.values[max(0, begun - 10) : begun + 1]))
    grown = float(np.mean(lengths.values[-8:])) / max(early, 1e-9)
    if r < BIASED or z < 5 or grown < (GROWN if start else 1.6):
        return []
    text = (
        f"Length is rewarded: inside groups reward and length correlate with {r:.2f} (z {z:.0f}), and answers grew "
        f"{grown:.2f} fold, {'since step ' + str(step) if start else 'in the whole run'}."
    )
    numbers = {"correlation": r, "z": z, "grown": grown}
    advice = "Read the longest winners: do they say more? Normalise or penalise length if not."
    return [
        Diagnosis(
            "length_bias",
            text,
            "warn",
            OUTCOME,
            step if start else None,
            None,
            None,
            numbers,
            f"step >= {step}",
            _groups_by_step(
                e, "sum(sxy) / sqrt(sum(sxx) * sum(syy)) as correlation, sum(freedom) as freedom"
            ),
            advice,
        )
    ]


def _onset_of_bias(values: np.ndarray, freedom: np.ndarray, width: int = 20) -> tuple[int, float, float]:
    """Where the correlation rises the most, its mean over the steps from there, and its z by Fisher's transform.

    Over the whole series, from its beginning, where no step stands out.
    """
    sums, weights = (
        np.cumsum(np.r_[0, np.arctanh(np.clip(values, -0.99, 0.99)) * freedom]),
        np.cumsum(np.r_[0, freedom]),
    )
    best = (0, float(np.tanh(sums[-1] / weights[-1])), float(sums[-1] / np.sqrt(weights[-1])))
    largest = 5.0
    for at in range(8, len(values) - 8):
        stop, start = min(at + width, len(values)), max(0, at - width)
        after, before = weights[stop] - weights[at], weights[at] - weights[start]
        level, earlier = (sums[stop] - sums[at]) / after, (sums[at] - sums[start]) / before
        gain = (level - earlier) / np.sqrt(1 / after + 1 / before)
        if gain > largest:
            largest, best = gain, (at, float(np.tanh(level)), float(level * np.sqrt(after)))
    return best


def reward_and_purpose(e: Evidence) -> list[Diagnosis]:
    """A training reward that grows without the evaluation, and a phrase that winners write."""
    gap = purpose_gap(e.run)
    found = []
    for trend in e.phrases:
        if not trend.pays:
            continue
        text = (
            f"Reward and its purpose part ways: winners write “{trend.phrase}”, {percent(trend.before)} to {percent(trend.after)} of "
            f"the traced rollouts since step {trend.step}; with it the reward is {number(trend.reward_with)}, without {number(trend.reward_without)}"
        )
        if gap is not None:
            text += (
                f"; training reward {gap.train_z:+.1f}, evaluation {gap.eval_z:+.1f} (in their own spreads)"
            )
        numbers = {
            "before": trend.before,
            "after": trend.after,
            "with": trend.reward_with,
            "without": trend.reward_without,
        }
        found.append(
            Diagnosis("reward_and_purpose", text + ".", "error" if trend.after > 0.4 else "warn", OUTCOME, trend.step, None, None,
                      numbers, f"reply contains \"{trend.phrase}\" and step >= {trend.step}", "",
                      "Read these winners: does the phrase earn its reward? Check the judge.")
        )  # fmt: skip
        break
    if not found and gap is not None and gap.parted:
        text = (
            f"Reward and its purpose part ways since about step {gap.step}: training reward {gap.train_z:+.1f}, "
            f"evaluation {gap.eval_z:+.1f} (in their own spreads)."
        )
        found.append(
            Diagnosis("reward_and_purpose", text, "warn", OUTCOME, gap.step, None, None, {"train_z": gap.train_z, "eval_z": gap.eval_z},
                      f"step >= {gap.step}", "", "Compare winners before and after; hold a component out of training.")
        )  # fmt: skip
    return found


def memorised(e: Evidence) -> list[Diagnosis]:
    """Groups spent on prompts that every rollout solved at every visit."""
    series = e.run.always_solved
    if series is None or len(series.values) < 12:
        return []
    late = float(np.average(series.values[-8:], weights=series.rows[-8:]))
    fit = ramp(series.values, 30, series.rows)
    if late < 0.3 or fit is None or fit.explained < 0.5 or fit.after - fit.before < 0.25:
        return []
    step = int(series.steps[fit.at])
    text = (
        f"Solved prompts come again and again: {percent(fit.before)} to {percent(late)} of a step's groups ask prompts that "
        f"every rollout of two or more visits solved, since step {step}."
    )
    return [
        Diagnosis("memorised", text, "warn", OUTCOME, step, None, None, {"before": fit.before, "after": late},
                  f"step >= {step} and flags has 'tied_group'", "", "Drop solved prompts, or add harder ones: `rollout-traces prompts`.")
    ]  # fmt: skip


def other_outcomes(e: Evidence) -> list[Diagnosis]:
    """Reward, success, length and turns that jumped."""
    names = {"reward": "Mean reward", "success": "Solved share", "n_sampled": "Length", "n_turns": "Turns", "raw_reward": "Raw reward",
             "n_tool_calls": "Tool calls", "n_thinking": "Thinking", "mean_logprob": "Mean logprob", "advantage": "Advantage"}  # fmt: skip
    return [
        Diagnosis(
            "reward_moved" if m.column in ("reward", "success", "raw_reward") else "outcome_moved", f"{names[m.column]} ({m.column}) jumped: {change_text(m)}.",
            "warn", OUTCOME, m.step, m.last, m.part, figures(m), filter_of(m, f"{m.column} is not null"), recomputed(e.run, m),
            f"Explain it: `rollout-traces explain RUN --step {m.step}`.",
        )
        for m in e.moved
        if m.column in names and not (m.part is not None and m.part.column == "engine")
    ]  # fmt: skip


RULES: Sequence = (dead_groups, truncation, length_bias, reward_and_purpose, memorised, other_outcomes)
