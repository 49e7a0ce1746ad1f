"""An answer, or words, that suddenly many rollouts write."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollout_traces.analysis.diagnoses.base import ENVIRONMENT, OUTCOME, Diagnosis, Evidence, literal, percent
from rollout_traces.analysis.diagnoses.whose import whose
from rollout_traces.analysis.phrase_queries import holds, random_ones
from rollout_traces.analysis.phrases import FREQUENT_AFTER, new_ngrams
from rollout_traces.analysis.recomputed import before_and_after, levels_of, two_levels
from rollout_traces.analysis.relations import as_arrays, quoted, sql_text
from rollout_traces.analysis.series import RARE_TEXTS
from rollout_traces.analysis.share_changes import FEWEST_STEPS, begins

FREQUENT = 20
"""Values of a column of many that are followed, the most frequent."""


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


RULES: Sequence = (frequent_values, new_phrases)
