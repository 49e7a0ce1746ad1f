"""An evaluation that moves while training does not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rollout_traces.analysis.diagnoses.base import SAMPLER, Diagnosis, Evidence, literal, number
from rollout_traces.analysis.relations import as_arrays, current, known_number, sql_text
from rollout_traces.analysis.series import Series

FEWEST_EVALUATIONS = 5
AGED = ("staleness_max", "advantage", "update_share")
"""Numbers that say nothing of an evaluation."""
FEWEST_SHARED = 20
"""Prompts that two evaluations share."""
FARTHER = 4.0
"""An evaluation moved by so many times the second largest difference between two, beside what training moved by ..."""
SURE_Z = 6.0
"""... and by so many standard errors over the prompts."""


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
    error = max(error, 1e-9 * max(abs(d), 1.0))
    if abs(d) < SURE_Z * error or size[at] < FARTHER * max(others.max(), error):
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


RULES: Sequence = (evaluation_alone,)
