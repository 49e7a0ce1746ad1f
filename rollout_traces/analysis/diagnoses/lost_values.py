"""Numbers that were always known and are not any more, or are none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollout_traces.analysis.diagnoses.base import ENVIRONMENT, UPDATE, Diagnosis, Evidence, percent
from rollout_traces.analysis.diagnoses.whose import whose
from rollout_traces.analysis.recomputed import before_and_after, levels_of, two_levels
from rollout_traces.analysis.relations import known_number, sql_text
from rollout_traces.analysis.share_changes import FEWEST_STEPS, begins

SELDOM = 0.002
"""A column is lost from a step on where at most this share of the rollouts did not know it before ..."""
LOST = 0.02
"""... and at least this share does not since."""


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


RULES: Sequence = (lost_values,)
