"""What should not change at all, or was never there before, whatever made it so.

Numbers that were always known and are not any more; a prompt that has another length than when it was asked
before; an answer, or words, that suddenly many rollouts write; an evaluation that moves while training does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rollout_traces.analysis.diagnoses.base import (
    DATA,
    ENVIRONMENT,
    OUTCOME,
    SAMPLER,
    UPDATE,
    Diagnosis,
    Evidence,
    literal,
    number,
    percent,
)
from rollout_traces.analysis.diagnoses.whose import whose
from rollout_traces.analysis.movement import Part
from rollout_traces.analysis.phrase_queries import holds, random_ones
from rollout_traces.analysis.phrases import FREQUENT_AFTER, new_ngrams
from rollout_traces.analysis.recomputed import before_and_after, levels_of, two_levels
from rollout_traces.analysis.relations import as_arrays, current, known_number, quoted, sql_text
from rollout_traces.analysis.series import RARE_TEXTS, Series
from rollout_traces.analysis.share_changes import FEWEST_STEPS, begins

SELDOM = 0.002
"""A column is lost from a step on where at most this share of the rollouts did not know it before ..."""
LOST = 0.02
"""... and at least this share does not since."""
ASKED_AGAIN = 0.8
"""Share of the prompts asked again across a step that have another length since ..."""
USUALLY_CHANGED = 0.02
"""... where at most this share of them has when both visits are on one side of it."""
FEWEST_PROMPTS = 4
FREQUENT = 20
"""Values of a column of many that are followed, the most frequent."""
FEWEST_EVALUATIONS = 5
AGED = ("staleness_max", "advantage", "update_share")
"""Numbers that say nothing of an evaluation."""
FEWEST_SHARED = 20
"""Prompts that two evaluations share."""
FARTHER = 4.0
"""An evaluation moved by so many times the second largest difference between two, beside what training moved by ..."""
SURE_Z = 6.0
"""... and by so many standard errors over the prompts."""


def lost_values(e: Evidence) -> list[Diagnosis]:
    """Columns that every rollout knew, and from a step on not."""
    found = []
    for name in e.run.columns.numbers:
        series = e.movements.get(name)
        if series is None or name in ("reward", "raw_reward") or len(e.run.steps) < 2 * FEWEST_STEPS:
            continue
        known = np.zeros(len(e.run.steps))
        known[np.searchsorted(e.run.steps, series.steps)] = series.rows
        place, _ = begins(e.run.row_counts - known, e.run.row_counts, SELDOM, LOST)
        if place is None:
            continue
        step = int(e.run.steps[place])
        unknown = f"{known_number(name)} is null"
        by_step = e.run.by_step(f"avg(cast({unknown} as int)) as share, count(*) as rollouts")
        query = two_levels(by_step, "share", *before_and_after(e.run.steps, place), "rollouts")
        before, after = levels_of(e.run, query)
        held = whose(e.run, unknown, step)
        text = f"{name} is unknown in {percent(after)} of the rollouts since step {step}, {percent(before)} before{held.text}."
        found.append(
            Diagnosis("lost_values", text, "warn", ENVIRONMENT, step, None, held.part, {"unknown": after}, f"{name} is null and step >= {step}",
                      (query, *held.queries), "Look at what computes it: it failed, or gave a number that is none.")
        )  # fmt: skip
    return found + _not_finite(e)


def _not_finite(e: Evidence) -> list[Diagnosis]:
    """Logged numbers that are NaN or infinite from a step on."""
    steps = (
        "select coalesce(split, '') as split, key, step, bool_and(not coalesce(isfinite(cast(value as double)), false)) as lost "
        f"from metrics where run = {sql_text(e.run.run)} and step is not null and not coalesce(superseded, false) group by 1, 2, 3"
    )
    query = (
        f"select split, key, count(*) as n, min(step) filter (lost) as first, min(step) as start from ({steps}) "
        "group by 1, 2 having bool_or(lost) and not bool_and(lost) order by 1, 2"
    )
    found = []
    for row in e.run.relations.sql(query).to_pylist():
        if row["first"] == row["start"]:
            continue
        name, step = f"{row['split']}/{row['key']}".strip("/"), int(row["first"])
        counted = (
            f"select count(*) filter (lost) as lost, count(*) as steps from ({steps}) where step >= {step} "
            f"and split = {sql_text(row['split'])} and key = {sql_text(row['key'])}"
        )
        n = e.run.relations.sql(counted).to_pylist()[0]
        text = f"{name} is not a number (NaN or infinite) in {n['lost']} of {n['steps']} steps since step {step}."
        found.append(
            Diagnosis("lost_values", text, "error", UPDATE, step, None, None, {"lost": n["lost"]}, f"step >= {step}", (counted,),
                      "Look at that step's rollouts, and whether the weights are still finite.")
        )  # fmt: skip
    return found


def prompts_changed(e: Evidence) -> list[Diagnosis]:
    """Prompts that have another length than when they were asked before: another template, system prompt or limit."""
    if not e.run.columns.has("prompt_key", "n_prompt"):
        return []
    source = e.run.columns.expression("source")
    pairs = (
        "select * from (select step, source, length, lag(step) over visits as earlier, lag(length) over visits as was from ("
        f"select step, prompt_key, any_value({source}) as source, min(n_prompt) as length from rollouts "
        f"where {e.run.with_values(e.run.scope)} and prompt_key is not null and n_prompt is not null group by 1, 2) "
        "window visits as (partition by prompt_key order by step)) where earlier is not null"
    )
    rows = as_arrays(e.run.relations.sql(f"select step, earlier, length <> was as changed from ({pairs})"))
    step = _changes_once(
        rows["step"].astype(np.int64), rows["earlier"].astype(np.int64), rows["changed"] == 1
    )
    if step is None or step <= int(e.run.steps[min(FEWEST_STEPS, len(e.run.steps) - 1)]):
        return []
    across = f"from ({pairs}) where step >= {step} and earlier < {step}"
    by_source = e.run.relations.sql(
        f"select source, avg(cast(length <> was as int)) as share, count(*) as n {across} group by 1 order by 1"
    ).to_pylist()
    inside = [r["source"] for r in by_source if r["share"] >= ASKED_AGAIN and r["source"] is not None]
    part = Part("source", tuple(inside)) if inside and len(inside) < len(by_source) else None
    of_part = f" and source in ({', '.join(map(sql_text, part.values))})" if part is not None else ""
    query = f"select avg(cast(length <> was as int)) as share, count(*) as prompts, avg(was) as before, avg(length) as after {across}{of_part}"
    row = e.run.relations.sql(query).to_pylist()[0]
    text = (
        f"Prompts changed their length (n_prompt): of {row['prompts']} prompts asked before and since step {step}"
        f"{f' on {part}' if part is not None else ''}, {percent(row['share'])} have another, {number(row['before'])} to {number(row['after'])} tokens."
    )
    where = f"step >= {step}"
    if part is not None:
        where += f" and ({' or '.join(f'source = {literal(v)}' for v in part.values)})"
    return [
        Diagnosis("data_mix", text, "warn", DATA, step, None, part, {"share": row["share"]}, where, (query,),
                  "Compare one prompt before and after: system prompt, chat template, tools, or a limit on its length.")
    ]  # fmt: skip


def _changes_once(step: np.ndarray, earlier: np.ndarray, changed: np.ndarray) -> int | None:
    """The step that parts visits of one prompt which differ, where visits on one side of it do not."""
    if changed.sum() < FEWEST_PROMPTS:
        return None
    best: tuple[float, int] | None = None
    for at in np.unique(step[changed]).tolist():
        across = (step >= at) & (earlier < at)
        score = float(changed[across].sum() - changed[~across].sum())
        if best is None or score > best[0]:
            best = score, int(at)
    assert best is not None
    at = best[1]
    across = (step >= at) & (earlier < at)
    beside = float(changed[~across].mean()) if (~across).any() else 0.0
    enough = changed[across].sum() >= max(FEWEST_PROMPTS, 0.15 * across.sum())
    return at if enough and beside <= USUALLY_CHANGED else None


def frequent_values(e: Evidence) -> list[Diagnosis]:
    """A value of a column of many values, such as the answer, that is suddenly frequent."""
    found = []
    for name in e.run.columns.texts:
        if name not in RARE_TEXTS or len(e.run.steps) < 2 * FEWEST_STEPS:
            continue
        known = f"from rollouts where {e.run.with_values(e.run.scope)} and {quoted(name)} is not null"
        few = f"select {quoted(name)} {known} group by 1 order by count(*) desc, 1 limit {FREQUENT}"
        counted = as_arrays(
            e.run.relations.sql(
                f"select step, {quoted(name)} as v, count(*) as n {known} and {quoted(name)} in ({few}) group by all "
                f"union all select step, null, count(*) {known} group by all"
            )
        )
        at = np.searchsorted(e.run.steps, counted["step"].astype(np.int64))
        size, n = len(e.run.steps), counted["n"].astype(float)
        whole = np.asarray([v is None for v in counted["v"].tolist()], bool)
        of = np.bincount(at[whole], n[whole], size)
        for value in dict.fromkeys(counted["v"][~whole].tolist()):
            here = np.asarray([v == value for v in counted["v"].tolist()], bool)
            place, _ = begins(np.bincount(at[here], n[here], size), of)
            if place is not None:
                found.append(_frequent(e, name, value, place))
    return found


def _frequent(e: Evidence, name: str, value: str, place: int) -> Diagnosis:
    step = int(e.run.steps[place])
    has = f"{quoted(name)} = {sql_text(value)}"
    by_step = e.run.by_step(
        f"avg(cast({has} as int)) as share, count(*) as rollouts", f"{quoted(name)} is not null"
    )
    query = two_levels(by_step, "share", *before_and_after(e.run.steps, place), "rollouts")
    before, after = levels_of(e.run, query)
    held = whose(e.run, has, step)
    text = f"{name} is “{value}” in {percent(after)} of the rollouts since step {step}, {percent(before)} before{held.text}."
    return Diagnosis(
        "frequent_value", text, "warn", ENVIRONMENT, step, None, held.part, {"before": before, "after": after},
        f"{name} = {literal(value)} and step >= {step}", (query, *held.queries),
        "Read some of these rollouts: is it what they say, or what a parser gives up with?",
    )  # fmt: skip


def new_phrases(e: Evidence) -> list[Diagnosis]:
    """Words that nearly nobody wrote before a step, and many from it on, without earning more."""
    found: list[Diagnosis] = []
    if not e.run.columns.has("reply"):
        return []
    paid = {trend.phrase for trend in e.phrases if trend.pays}
    for phrase in new_ngrams(e.texts):
        if any(phrase in other or other in phrase for other in paid):
            continue
        by_step = e.run.by_step(
            f"avg(cast({holds(phrase)} as int)) as share, sum(cast({holds(phrase)} as int)) as n, count(*) as rollouts",
            f"reply is not null and {random_ones(e.run.columns)}",
        )
        rows = as_arrays(e.run.relations.sql(by_step))
        steps, of = rows["step"].astype(np.int64), rows["rollouts"].astype(float)
        place, _ = begins(rows["n"].astype(float), of, 0.02, FREQUENT_AFTER)
        if place is None or any(abs((d.step or 0) - int(steps[place])) <= 3 for d in found):
            continue
        step = int(steps[place])
        query = two_levels(by_step, "share", *before_and_after(steps, place), "rollouts")
        before, after = levels_of(e.run, query)
        held = whose(e.run, f"reply is not null and {holds(phrase)}", step)
        text = f"Rollouts write otherwise: “{phrase}” in {percent(after)} of the traced ones since step {step}, {percent(before)} before{held.text}."
        found.append(
            Diagnosis("new_phrase", text, "warn", OUTCOME, step, None, held.part, {"before": before, "after": after},
                      f'reply contains "{phrase}" and step >= {step}', (query, *held.queries),
                      "Read some of them: another language, another template, or another model.")
        )  # fmt: skip
    return found


def evaluation_alone(e: Evidence) -> list[Diagnosis]:
    """An evaluation that moved far beyond what evaluations differ by, over the same prompts, while training did not."""
    c = e.run.columns
    if not c.has("prompt_key", "split"):
        return []
    scope = f"run = {sql_text(e.run.run)} and split like 'eval%' and {current(c)} and prompt_key is not null and step is not null"
    means = ", ".join(f"avg({known_number(name)}) as m{i}" for i, name in enumerate(c.numbers))
    rows = as_arrays(
        e.run.relations.sql(
            f"select split, step, prompt_key{', ' if means else ''}{means} from rollouts where {scope} group by 1, 2, 3"
        )
    )
    found: list[Diagnosis] = []
    for split in dict.fromkeys(rows["split"].tolist()):
        here = rows["split"] == split
        moved = [
            (name, *jump)
            for i, name in enumerate(c.numbers)
            if (
                jump := _jump(
                    rows["step"][here], rows["prompt_key"][here], rows[f"m{i}"][here], e.movements.get(name)
                )
            )
            is not None
        ]
        start = int(rows["step"][here].min())
        for name, first, step, z in sorted(moved, key=lambda each: -abs(each[3])):
            near = any(m.column == name and first - 3 <= m.step <= step + 3 for m in e.moved)
            if first > start and name not in AGED and not near and not any(d.step == step for d in found):
                found.append(_evaluation(e, str(split), name, first, step, z, scope))
    return found


def _jump(
    step: np.ndarray, key: np.ndarray, value: np.ndarray, trained: Series | None
) -> tuple[int, int, float] | None:
    """Two evaluations that follow each other and differ as no others do, and the z of it.

    Args:
        step: int [N], of an evaluation.
        key: [N], prompts.
        value: float [N], the mean over the rollouts of the prompt.
        trained: the same of the training rollouts, whose own difference is subtracted.
    """
    steps = np.unique(step.astype(np.int64))
    if len(steps) < FEWEST_EVALUATIONS:
        return None
    tables = [
        {
            k: float(v)
            for k, v in zip(key[step == s].tolist(), value[step == s].tolist(), strict=True)
            if np.isfinite(v)
        }
        for s in steps
    ]
    jumps = []
    moved = (
        np.diff(np.interp(steps, trained.steps, trained.values))
        if trained is not None and len(trained.steps)
        else np.zeros(len(steps) - 1)
    )
    for (a, b), drift in zip(pairwise(tables), moved.tolist(), strict=True):
        shared = [k for k in a if k in b]
        if len(shared) < FEWEST_SHARED:
            return None
        difference = np.asarray([b[k] - a[k] for k in shared])
        error = float(difference.std(ddof=1)) / np.sqrt(len(shared))
        alone, raw = float(difference.mean()) - drift, float(difference.mean())
        jumps.append((min(alone, raw, key=abs), error))
    size = np.abs([d for d, _ in jumps])
    at = int(np.argmax(size))
    d, error = jumps[at]
    others = np.delete(size, at)
    if error <= 0 or abs(d) < SURE_Z * error or size[at] < FARTHER * max(others.max(), error):
        return None
    return int(steps[at]), int(steps[at + 1]), d / error


def _evaluation(e: Evidence, split: str, name: str, first: int, step: int, z: float, scope: str) -> Diagnosis:
    of_key = (
        f"select step, prompt_key, avg({known_number(name)}) as x from rollouts where {scope} and split = {sql_text(split)} "
        f"and step in ({first}, {step}) group by 1, 2"
    )
    query = (
        f"select avg(was) as before, avg(x) as after, count(*) as prompts from (select step, x, lag(x) over (partition by prompt_key order by step) as was "
        f"from ({of_key})) where step = {step} and was is not null and x is not null"
    )
    row: dict[str, Any] = e.run.relations.sql(query).to_pylist()[0]
    text = (
        f"{split} moved while training did not: {name} {number(row['before'])} to {number(row['after'])} from step {first} to step {step}, "
        f"over {row['prompts']} prompts that both evaluations asked."
    )
    return Diagnosis(
        "evaluation_alone", text, "warn", SAMPLER, step, None, None, {"z": z, "before": row["before"], "after": row["after"]},
        f"split = {literal(split)} and step >= {step}", (query,),
        "Compare how the evaluation samples before and after: temperature, limits, engine, weights.",
    )  # fmt: skip


RULES: Sequence = (
    lost_values,
    frequent_values,
    new_phrases,
    evaluation_alone,
)
