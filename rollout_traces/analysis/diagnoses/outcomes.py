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
from rollout_traces.analysis.length_bias import SUREST, length_bias_queries
from rollout_traces.analysis.phrase_queries import paid_query, spread_query
from rollout_traces.analysis.purpose import gap_query, purpose_gap
from rollout_traces.analysis.ramps import ramp
from rollout_traces.analysis.recomputed import (
    LATE,
    before_and_late,
    in_its_range,
    level_query,
    levels_of,
    two_levels,
)
from rollout_traces.analysis.relations import known_reward, unit

REWARDS = ("reward", "success", "raw_reward")
"""What is meant to rise: that it rises inside the range it always had is reported, and no warning."""
WASTED = 0.5
"""Share of tied groups above which a run that came to it by and by is warned about it."""
GROWN = 1.25
"""Lengths that grew by this factor since length began to be rewarded ..."""
GROWN_ALWAYS = 1.6
"""... or by this one in a run that rewarded it from its beginning."""


def dead_groups(e: Evidence) -> list[Diagnosis]:
    """Groups whose rewards are all equal, with whether they were solved or hopeless."""
    found = []
    for m in [*e.of("group/tie_share"), *(m for m in e.of("flags") if m.value == "tied_group")]:
        if m.rises and m.after >= 0.25:
            why, counts = _why_tied(e, m.step)
            found.append(
                Diagnosis(
                    "dead_groups", f"Groups die: share with equal rewards {change_text(m, shares=True)}{why}.",
                    "error" if m.after > 0.8 else "warn", OUTCOME, m.step, m.last, m.part, figures(m),
                    filter_of(m, "flags has 'tied_group'"), (level_query(e.run, m), *counts), "Change the prompts' difficulty, or drop such groups before training.",
                )
            )  # fmt: skip
    series = e.movements.get("group/tie_share")
    if found or series is None or len(series.values) < 12:
        return found
    fit = ramp(series.values, 30, series.rows)
    late = float(np.mean(series.values[-5:]))
    if fit is not None and late > WASTED and fit.after - fit.before > 0.35 and fit.explained > 0.6:
        step = int(series.steps[fit.at])
        groups = _groups_by_step(e, "sum(tied) as tied, sum(several) as several")
        query = two_levels(groups, "tied / several", *before_and_late(series.steps, fit.at), "several")
        before, after = levels_of(e.run, query)
        why, counts = _why_tied(e, step)
        text = f"Groups die: share with equal rewards {percent(before)} to {percent(after)} from step {step} on{why}."
        found.append(
            Diagnosis("dead_groups", text, "warn", OUTCOME, step, None, None, {"before": before, "after": after},
                      "flags has 'tied_group'", (query, *counts),
                      "Change the prompts' difficulty, or drop such groups before training.")
        )  # fmt: skip
    return found


def _groups_by_step(e: Evidence, what: str) -> str:
    """A SELECT of what whole groups know, at each step."""
    return f"select step, {what} from ({e.run.with_values(e.run.groups_query)}) group by step order by step"


def _cut_by_step(e: Evidence) -> str:
    cut = "avg(cast(stop_reason = 'length' as int)) as share, count(*) as rollouts"
    return e.run.by_step(cut, "stop_reason is not null")


def _why_tied(e: Evidence, step: int) -> tuple[str, tuple[str, ...]]:
    """How many groups from a step on were solved by all and by none, in words, and the SELECT of it."""
    g = e.run.groups
    rows = g["step"].astype(int) >= step
    tied = np.nan_to_num(g["tied"].astype(float))[rows].sum()
    if not tied or not e.run.columns.has("success"):
        return "", ()
    query = (
        f"select coalesce(sum(cast(low = 1 and n > 1 as int)), 0) as solved, coalesce(sum(cast(high = 0 and n > 1 as int)), 0) as hopeless "
        f"from (select step, {unit(e.run.columns)} as u, count(*) as n, min(success) as low, max(success) as high "
        f"from rollouts where {e.run.with_values(e.run.scope)} and step >= {step} group by 1, 2)"
    )
    row = e.run.relations.sql(query).to_pylist()[0]
    if row["solved"] == row["hopeless"] == 0:
        return "", ()
    return f" ({row['solved']} groups solved by every rollout, {row['hopeless']} by none)", (query,)


def truncation(e: Evidence) -> list[Diagnosis]:
    """More rollouts cut by length, with the reward with and without them."""
    found = []
    moved = [m for m in e.of("stop_reason") if m.value == "length"]
    moved += [m for m in e.of("flags") if m.value == "truncated"]
    for m in moved:
        if m.rises:
            rewards, query = _reward_of_cut(e, m.step)
            found.append(
                Diagnosis(
                    "truncation", f"Truncation grows: stopped by length {change_text(m)}{rewards}.", "warn", OUTCOME,
                    m.step, m.last, m.part, figures(m), filter_of(m, "stop_reason = 'length'"), (level_query(e.run, m), *query),
                    "Raise the limit, or look at what made answers longer.",
                )
            )  # fmt: skip
    series = e.movements.get("stop_reason", "length")
    if not found and series is not None and len(series.values) >= 12:
        fit = ramp(series.values, 30, series.rows)
        if fit is not None and fit.after - fit.before > 0.15 and fit.explained > 0.6:
            step = int(series.steps[fit.at])
            levels = two_levels(_cut_by_step(e), "share", *before_and_late(series.steps, fit.at), "rollouts")
            before, after = levels_of(e.run, levels)
            text = f"Truncation grows: stopped by length {percent(before)} to {percent(after)} from step {step} on."
            found.append(
                Diagnosis("truncation", text, "warn", OUTCOME, step, None, None, {"before": before, "after": after},
                          f"stop_reason = 'length' and step >= {step}", (levels,), "Look at what made answers longer.")
            )  # fmt: skip
    return found


def _reward_of_cut(e: Evidence, step: int) -> tuple[str, tuple[str, ...]]:
    """The reward of rollouts that were cut and of the others from a step on, in words, and the SELECT of it."""
    if not e.run.columns.has("reward", "stop_reason"):
        return "", ()
    reward = known_reward(e.run.columns)
    query = (
        f"select avg({reward}) filter (stop_reason = 'length') as cut, avg({reward}) filter (stop_reason <> 'length') as whole "
        f"from rollouts where {e.run.with_values(e.run.scope)} and step >= {step}"
    )
    row = e.run.relations.sql(query).to_pylist()[0]
    if row["cut"] is None or row["whole"] is None:
        return "", ()
    return f"; reward {number(row['cut'])} with them, {number(row['whole'])} without", (query,)


def length_is_rewarded(e: Evidence) -> list[Diagnosis]:
    """Longer answers that are rewarded inside groups, with lengths that grow or a correlation that jumped."""
    bias = e.length_bias
    if bias is None or not bias.sure:
        return []
    if bias.grown < (GROWN if bias.rose else GROWN_ALWAYS) and bias.gain < SUREST:
        return []
    text = (
        f"Length is rewarded: inside groups reward and length correlate with {bias.correlation:.2f} (z {bias.z:.0f}), and answers "
        f"grew {bias.grown:.2f} fold, {f'since step {bias.step}' if bias.rose else 'in the whole run'}."
    )
    numbers = {"correlation": bias.correlation, "z": bias.z, "grown": bias.grown}
    return [
        Diagnosis(
            "length_bias", text, "warn", OUTCOME, bias.step if bias.rose else None, None, None, numbers, f"step >= {bias.step}",
            length_bias_queries(e.run, bias), "Read the longest winners: do they say more? Normalise or penalise length if not.",
        )
    ]  # fmt: skip


def reward_and_purpose(e: Evidence) -> list[Diagnosis]:
    """A training reward that grows without the evaluation, and a phrase that winners write."""
    gap = purpose_gap(e.run)
    query = None if gap is None else gap_query(e.run, gap)
    parted = "" if gap is None or query is None else _parted(e, query)
    for trend in e.phrases:
        if not trend.pays:
            continue
        spread, paid = spread_query(e.run, trend), paid_query(e.run, trend)
        numbers = e.run.relations.sql(spread).to_pylist()[0] | e.run.relations.sql(paid).to_pylist()[0]
        text = (
            f"Reward and its purpose part ways: winners write “{trend.phrase}”, {percent(numbers['before'])} to "
            f"{percent(numbers['after'])} of the traced rollouts since step {trend.step}; with it the reward is "
            f"{number(numbers['paid'])}, {number(numbers['without'])} without"
        )
        where = f'reply contains "{trend.phrase}" and step >= {trend.step}'
        return [
            Diagnosis(
                "reward_and_purpose", f"{text}; {parted}." if parted else f"{text}.", "error" if trend.after > 0.4 else "warn", OUTCOME,
                trend.step, None, None, numbers, where, (spread, paid, *([query] if query else [])),
                "Read these winners: does the phrase earn its reward? Check the judge.",
            )
        ]  # fmt: skip
    if gap is None or query is None or not gap.parted:
        return []
    numbers = {"train_z": gap.train_z, "eval_z": gap.eval_z}
    return [
        Diagnosis(
            "reward_and_purpose", f"Reward and its purpose part ways since about step {gap.step}: {parted}.", "warn", OUTCOME,
            gap.step, None, None, numbers, f"step >= {gap.step}", (query,),
            "Compare winners before and after; hold a component out of training.",
        )
    ]  # fmt: skip


def _parted(e: Evidence, query: str) -> str:
    """How training reward and evaluation moved, in words."""
    rows = {row["what"]: row for row in e.run.relations.sql(query).to_pylist()}
    return ", ".join(
        f"{what} {number(rows[what]['before'])} to {number(rows[what]['after'])} (z {rows[what]['z']:+.1f})"
        for what in ("training reward", "evaluation")
    )


def memorised(e: Evidence) -> list[Diagnosis]:
    """Groups spent on prompts that every rollout solved at every visit."""
    series = e.run.always_solved
    if series is None or len(series.values) < 12:
        return []
    late = float(np.average(series.values[-LATE:], weights=series.rows[-LATE:]))
    fit = ramp(series.values, 30, series.rows)
    if late < 0.3 or fit is None or fit.explained < 0.5 or fit.after - fit.before < 0.25:
        return []
    step = int(series.steps[fit.at])
    asked = e.run.with_values(e.run.always_solved_query)
    query = two_levels(asked, "share", *before_and_late(series.steps, fit.at), "n")
    before, after = levels_of(e.run, query)
    text = (
        f"Solved prompts come again and again: {percent(before)} to {percent(after)} of a step's groups ask prompts that "
        f"every rollout of two or more visits solved, since step {step}."
    )
    return [
        Diagnosis("memorised", text, "warn", OUTCOME, step, None, None, {"before": before, "after": after},
                  f"step >= {step} and flags has 'tied_group'", (query,), "Drop solved prompts, or add harder ones: `rollout-traces prompts`.")
    ]  # fmt: skip


def other_outcomes(e: Evidence) -> list[Diagnosis]:
    """Reward, success, length and turns that jumped."""
    names = {"reward": "Mean reward", "success": "Solved share", "n_sampled": "Length", "n_turns": "Turns", "raw_reward": "Raw reward",
             "n_tool_calls": "Tool calls", "n_thinking": "Thinking", "mean_logprob": "Mean logprob", "advantage": "Advantage"}  # fmt: skip
    return [
        Diagnosis(
            "reward_moved" if m.column in REWARDS else "outcome_moved", f"{names[m.column]} ({m.column}) jumped: {change_text(m)}.",
            "info" if m.column in REWARDS and m.rises and in_its_range(e.run, m) else "warn", OUTCOME, m.step, m.last, m.part, figures(m), filter_of(m, f"{m.column} is not null"), (level_query(e.run, m),),
            f"Explain it: `rollout-traces explain RUN --step {m.step}`.",
        )
        for m in e.moved
        if m.column in names and not (m.part is not None and m.part.column == "engine")
    ]  # fmt: skip


RULES: Sequence = (dead_groups, truncation, length_is_rewarded, reward_and_purpose, memorised, other_outcomes)
