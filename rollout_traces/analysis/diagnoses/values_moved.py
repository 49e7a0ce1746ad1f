"""Rollouts that go elsewhere while the mean hardly moves: a range of a number that suddenly fills or empties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from rollout_traces.analysis.diagnoses.base import (
    DATA,
    ENVIRONMENT,
    OTHER,
    OUTCOME,
    SAMPLER,
    Diagnosis,
    Evidence,
    literal,
    number,
    percent,
)
from rollout_traces.analysis.diagnoses.whose import whose
from rollout_traces.analysis.moved import WARM_UP
from rollout_traces.analysis.movement import Part
from rollout_traces.analysis.ranges import Filled, filled
from rollout_traces.analysis.recomputed import before_and_after, levels_of, two_levels
from rollout_traces.analysis.relations import known_number, quoted, sql_text

FOLLOWS_FROM_OTHERS = ("advantage", "update_share", "staleness_max")
"""Numbers that are computed from others, of the whole group or step."""
TIERS = {
    "n_prompt": DATA,
    "mean_logprob": OUTCOME,
    "n_sampled": OUTCOME,
    "n_turns": OUTCOME,
    "success": OUTCOME,
}
NEAR = 3
"""Steps within which two statements speak of one change."""
JUMPS = frozenset(("reward_moved", "outcome_moved", "update_moved", "new_phrase", "slower"))
"""Entries that only say that something moved. Any other one names a cause, and ranges that moved come after it ..."""
AFTER = 20
"""... where they lie within so many steps of it: what is learned shows that much later."""


def values_moved(e: Evidence, entries: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Ranges that filled or emptied and that no entry so far speaks of, one entry a step.

    Args:
        e: the run.
        entries: what was found by other rules.
    """
    new = [
        each
        for name in e.rows.numbers
        if name not in FOLLOWS_FROM_OTHERS
        and (each := filled(e.rows, name)) is not None
        and not _spoken_of(e, each, entries)
    ]
    incidents: list[list[Filled]] = []
    for each in sorted(new, key=lambda f: (_tier(f.column), -f.gain)):
        near = next((i for i in incidents if abs(_step(e, i[0]) - _step(e, each)) <= NEAR), None)
        if near is None:
            incidents.append([each])
        else:
            near.append(each)
    causes = [d for d in entries if d.kind not in JUMPS and d.severity != "info"]
    found = [_diagnosis(e, incident) for incident in incidents]
    return [replace(d, tier=OTHER) if _is_explained(d, causes) else d for d in found]


def _is_explained(one: Diagnosis, causes: Sequence[Diagnosis]) -> bool:
    """Whether an entry that names a cause speaks of the same steps, or of the whole run."""
    return any(d.step is None or one.step is None or abs(d.step - one.step) <= AFTER for d in causes)


def _step(e: Evidence, each: Filled) -> int:
    return int(e.rows.steps[each.place])


def _tier(column: str) -> int:
    if column.startswith("mismatch") or column == "log_ratio_sum":
        return SAMPLER
    return TIERS.get(column, ENVIRONMENT)


def _spoken_of(e: Evidence, each: Filled, entries: Sequence[Diagnosis]) -> bool:
    """Whether the column is known to have moved at about the same step, or an entry names it there."""
    name = each.column.removeprefix("component/")
    step = _step(e, each)
    if step <= e.rows.steps[min(WARM_UP, len(e.rows.steps) - 1)]:
        return True
    if any(m.column == each.column and abs(m.step - step) <= NEAR for m in e.moved):
        return True
    return any(d.step is not None and abs(d.step - step) <= NEAR and name in d.sentence for d in entries)


def _diagnosis(e: Evidence, incident: Sequence[Filled]) -> Diagnosis:
    first = incident[0]
    of_part = "".join(f" and {quoted(column)} = {sql_text(value)}" for column, value in first.part)
    condition = first.range.sql(first.column)
    by_step = e.run.by_step(
        f"avg(cast({condition} as int)) as share, count(*) as rollouts",
        f"{known_number(first.column)} is not null{of_part}",
    )
    step = _step(e, first)
    at = int((e.run.steps < step).sum())
    levels = two_levels(by_step, "share", *before_and_after(e.run.steps, at), "rollouts")
    ends = {
        name: end for name, end in (("low", first.range.low), ("high", first.range.high)) if isfinite(end)
    }
    named = "".join(f", {end!r} as {name}" for name, end in ends.items())
    query = f"select after, level{named} from ({levels}) order by after"
    before, after = levels_of(e.run, query)
    whom = " and ".join(f"{column} {value}" for column, value in first.part)
    text = f"{first.column} is {first.range.words(number)} in {percent(after)} of the rollouts"
    text += f"{f' on {whom}' if whom else ''} since step {step}, {percent(before)} before"
    held = whose(e.run, condition, step) if first.rises and not first.part else None
    text += held.text if held is not None else ""
    others = [name for name in dict.fromkeys(f.column for f in incident[1:]) if name != first.column]
    if others:
        text += f"; with it {', '.join(others[:3])}"
    part = Part(first.part[-1][0], (first.part[-1][1],)) if first.part else None
    where = [f"{column} = {literal(value)}" for column, value in first.part]
    return Diagnosis(
        "values_moved", f"{text}.", "warn", _tier(first.column), step, None, part or (held.part if held is not None else None),
        {"before": before, "after": after}, " and ".join([*where, f"step >= {step}"]), (query, *(held.queries if held is not None else ())),
        "Read some of these rollouts beside others of the same prompts: what do they share?",
    )  # fmt: skip
