"""Prompts that have another length than when they were asked before."""

from __future__ import annotations

import numpy as np

from rollout_traces.analysis.diagnoses.base import DATA, Diagnosis, Evidence, literal, number, percent
from rollout_traces.analysis.movement import Part
from rollout_traces.analysis.relations import as_arrays, sql_text
from rollout_traces.analysis.share_changes import FEWEST_STEPS

ASKED_AGAIN = 0.8
"""Share of the prompts asked again across a step that have another length since ..."""
USUALLY_CHANGED = 0.02
"""... where at most this share of them has when both visits are on one side of it."""
FEWEST_PROMPTS = 4


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
    places = np.unique(np.r_[earlier, step])
    begun, ended = np.searchsorted(places, earlier[changed]), np.searchsorted(places, step[changed])
    opened, closed = (np.bincount(ends + 1, minlength=len(places) + 1) for ends in (begun, ended))
    crossing = np.cumsum(opened - closed)
    candidates = np.unique(ended)
    at = int(places[candidates[int(np.argmax(crossing[candidates]))]])
    across = (step >= at) & (earlier < at)
    beside = float(changed[~across].mean()) if (~across).any() else 0.0
    enough = changed[across].sum() >= max(FEWEST_PROMPTS, 0.15 * across.sum())
    return at if enough and beside <= USUALLY_CHANGED else None
