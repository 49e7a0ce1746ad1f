"""Faults of data, masks and templates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from rollout_traces.analysis.diagnoses.base import (
    DATA,
    Diagnosis,
    Evidence,
    Severity,
    change_text,
    figures,
    filter_of,
    literal,
    percent,
    since,
)
from rollout_traces.analysis.diagnoses.prompt_lengths import prompts_changed
from rollout_traces.analysis.movement import Moved
from rollout_traces.analysis.recomputed import level_query
from rollout_traces.analysis.relations import as_arrays, current, sql_text

MASK_FLAGS = [
    "mask_leak",
    "mask_shifted",
    "eos_untrained",
    "untrained_sampled",
    "row_masked",
    "template_drift",
    "retokenized",
    "prefix_broken",
    "ends_unsampled",
    "no_end_marker",
    "sampled_foreign_turn",
    "bos_anomaly",
    "pad_attended",
    "header_drift",
    "gibberish",
    "nonfinite",
]
ADVICE_MASK = "Open one of these rollouts and look at the mask at the turns' edges."
LEAST_OVERLAP = 0.8
"""Two evaluations of one set share at least this part of their prompts."""


def mask_or_template(e: Evidence) -> list[Diagnosis]:
    """Flags of masks, templates and tokenization that became more frequent, one entry a part and step."""
    incidents: list[list[Moved]] = []
    risen = [m for m in e.of("flags") if m.value in MASK_FLAGS and m.rises]
    for m in sorted(risen, key=lambda m: (severity_of(m.value) != "error", m.p)):
        near = next((i for i in incidents if i[0].part == m.part and abs(i[0].step - m.step) <= 3), None)
        if near is None:
            incidents.append([m])
        else:
            near.append(m)
    found = []
    for first, *others in incidents:
        text = f"{first.value}: {change_text(first)}"
        if others:
            text += f"; with it {', '.join(f'{m.value} {percent(m.after)}' for m in others)}"
        step = _surest_step(e, [first, *others])
        grave = any(severity_of(m.value) == "error" or m.after >= 0.2 for m in (first, *others))
        found.append(
            Diagnosis(
                "mask_or_template", text + ".", "error" if grave else "warn", DATA, step, first.last, first.part,
                figures(first), filter_of(first), tuple(level_query(e.run, m) for m in (first, *others)), ADVICE_MASK,
            )
        )  # fmt: skip
    return found


def _surest_step(e: Evidence, incident: Sequence[Moved]) -> int:
    """The step of the surest movement: flags of the text are known for few rollouts, logprobs for all."""
    first = incident[0]
    near = [
        m
        for m in e.of("mismatch_k3", "mismatch_abs_max", "mismatch_k1")
        if m.part == first.part and abs(m.step - first.step) <= 4
    ]
    return min([*incident, *near], key=lambda m: m.p).step


def group_of_several_prompts(e: Evidence) -> list[Diagnosis]:
    """Groups whose rollouts answer different prompts: advantages compare what cannot be compared."""
    series = e.movements.get("group/mixed_prompts")
    if series is None or not len(series.values):
        return []
    moved = [m for m in e.of("group/mixed_prompts") if m.rises]
    if moved:
        m = moved[0]
        text = f"Groups hold rollouts of more than one prompt: {change_text(m, shares=True)}."
        step, last, part, numbers = m.step, m.last, m.part, figures(m)
        query = level_query(e.run, m)
    elif float(np.median(series.values)) > 0.05:
        share = float(np.average(series.values, weights=series.rows))
        text = (
            f"In {percent(share)} of the groups the rollouts answer more than one prompt, in the whole run."
        )
        step, last, part, numbers = int(series.steps[0]), None, None, {"share": share}
        query = f"select sum(mixed) / sum(several) as share, sum(several) as groups from ({e.run.with_values(e.run.groups_query)})"
    else:
        return []
    advice = "Check how group ids are made: a group has to be the rollouts of one prompt in one step."
    return [
        Diagnosis(
            "group_of_several_prompts",
            text,
            "error",
            DATA,
            step,
            last,
            part,
            numbers,
            f"step >= {step}",
            (query,),
            advice,
        )
    ]


def group_size(e: Evidence) -> list[Diagnosis]:
    """Groups of more or fewer rollouts than before."""
    return [
        Diagnosis(
            "group_size", f"Groups changed their size (group/size), in rollouts: {change_text(m)}.", "warn", DATA, m.step, m.last, m.part,
            figures(m), filter_of(m, "group is not null"), (level_query(e.run, m),),
            "Compare how many generations a prompt gets in the configuration, and what is dropped before logging.",
        )
        for m in e.of("group/size")
    ]  # fmt: skip


def duplicate_prompts(e: Evidence) -> list[Diagnosis]:
    """The same prompt in several groups of one step."""
    return [
        Diagnosis(
            "duplicate_prompts",
            f"Groups of a step that repeat a prompt of the same step: {change_text(m, shares=True)}.",
            "warn", DATA, m.step, m.last, m.part, figures(m), filter_of(m, "prompt_key is not null"), (level_query(e.run, m),),
            "Look at the data loader: it hands out the same prompt more than once.",
        )
        for m in e.of("group/repeated_prompts")
        if m.rises
    ]  # fmt: skip


def data_mix(e: Evidence) -> list[Diagnosis]:
    """The share of sources moved, or the length of prompts."""
    exact = prompts_changed(e)
    steps: dict[int, list] = {}
    for m in e.of("source"):
        near = next((step for step in steps if abs(step - m.step) <= 3), m.step)
        steps.setdefault(near, []).append(m)
    found = []
    for moved in steps.values():
        first = min(moved, key=lambda m: m.p)
        ordered = sorted(moved, key=lambda m: -abs(m.after - m.before))
        text = "; ".join(f"{m.value} {percent(m.before)} to {percent(m.after)}" for m in ordered[:3])
        found.append(
            Diagnosis(
                "data_mix", f"The mix of sources moved: {text}, {since(first.step, first.last)}.", "warn", DATA,
                first.step, first.last, None, figures(first), filter_of(first), tuple(level_query(e.run, m) for m in ordered[:3]),
                "If this was a curriculum, compare within sources; if not, look at the data loader.",
            )
        )  # fmt: skip
    if not found:
        found += exact
        found += [
            Diagnosis(
                "data_mix", f"Prompts changed their length (n_prompt): {change_text(m)}.", "warn", DATA, m.step, m.last, m.part,
                figures(m), filter_of(m, "n_prompt is not null"), (level_query(e.run, m),),
                "Compare prompts before and after: another data set, or another system prompt.",
            )
            for m in e.of("n_prompt")
            if not any(d.step is not None and abs(d.step - m.step) <= 3 for d in exact)
        ]  # fmt: skip
    return found


def evaluation_set(e: Evidence) -> list[Diagnosis]:
    """An evaluation that asks other prompts than the one before."""
    c = e.run.columns
    if not c.has("prompt_key", "split"):
        return []
    query = (
        f"select distinct split, step, prompt_key from rollouts where run = ? and split like 'eval%' and "
        f"{current(c)} and prompt_key is not null and step is not null order by split, step"
    )
    found = as_arrays(e.run.relations.sql(query, [e.run.run]))
    diagnoses = []
    for split in dict.fromkeys(found["split"].tolist()):
        here = found["split"] == split
        steps = np.unique(found["step"][here]).tolist()
        sets = [set(found["prompt_key"][here & (found["step"] == step)].tolist()) for step in steps]
        overlaps = [len(a & b) / max(len(a | b), 1) for a, b in pairwise(sets)]
        if len(overlaps) < 2 or float(np.median(overlaps)) < LEAST_OVERLAP:
            continue
        for i, overlap in enumerate(overlaps):
            if overlap < LEAST_OVERLAP:
                step, kept = int(steps[i + 1]), len(sets[i] & sets[i + 1])
                text = (
                    f"{split}: the set of prompts changed at step {step}; {kept} of {len(sets[i])} prompts are the "
                    "same. Scores before and after do not compare."
                )
                numbers = {"kept": kept, "before": len(sets[i]), "after": len(sets[i + 1])}
                asked = (
                    f"select distinct prompt_key from rollouts where run = {sql_text(e.run.run)} and split = {sql_text(split)} "
                    f"and {current(c)} and prompt_key is not null and step = "
                )
                again = (
                    f"select (select count(*) from ({asked}{steps[i]})) as before, (select count(*) from ({asked}{step})) as after, "
                    f"(select count(*) from ({asked}{steps[i]} intersect {asked}{step})) as same"
                )
                diagnoses.append(
                    Diagnosis(
                        "evaluation_set", text, "warn", DATA, step, None, None, numbers, f"split = {literal(split)} and step >= {step}",
                        (again,), "Compare on the prompts that both have: `rollout-traces flips`.",
                    )
                )  # fmt: skip
    return diagnoses


def severity_of(flag: str | None) -> Severity | None:
    """A flag's severity; None for one that is not registered."""
    from rollout_traces.flags import REGISTRY

    return REGISTRY[flag].severity if flag in REGISTRY else None


RULES: Sequence = (
    mask_or_template,
    group_of_several_prompts,
    group_size,
    duplicate_prompts,
    data_mix,
    evaluation_set,
)
