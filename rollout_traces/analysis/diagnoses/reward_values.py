"""Values that many rewards take from a step on and hardly any took before: a default of 0, another scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.diagnoses.base import (
    ENVIRONMENT,
    Diagnosis,
    Evidence,
    literal,
    number,
    percent,
)
from rollout_traces.analysis.diagnoses.whose import whose
from rollout_traces.analysis.movement import Part
from rollout_traces.analysis.recomputed import before_and_after, levels_of, two_levels
from rollout_traces.analysis.relations import as_arrays, known_reward, sql_text
from rollout_traces.analysis.share_changes import FEWEST_STEPS, begins

DISCRETE = 20
"""A reward with at most so many values is one of a few."""
BEYOND = 0.05
"""Share of the rewards that went beyond a value at which they are clipped since."""
FEWEST_ROWS = 20
LOOKED_THROUGH = 125_000
"""Rollouts in which frequent values are looked for; of a longer run a part of the steps, then counted in all."""


@dataclass(frozen=True)
class NewValue:
    """A value that became frequent: in which source, from which position of `steps` on."""

    source: str | None
    value: float
    at: int


def reward_values(e: Evidence) -> list[Diagnosis]:
    """Rewards that are suddenly 0, or that many rollouts take exactly and hardly any took before."""
    if not e.run.columns.has("reward") or len(e.run.steps) < 2 * FEWEST_STEPS:
        return []
    found: list[list[NewValue]] = []
    for new in _new_values(e):
        near = next((i for i in found if abs(i[0].at - new.at) <= 3), None)
        if near is None:
            found.append([new])
        else:
            near.append(new)
    return [_diagnosis(e, incident) for incident in found]


def _new_values(e: Evidence) -> Iterator[NewValue]:
    source, reward = e.run.columns.expression("source"), known_reward(e.run.columns)
    known = f"select step, {source} as source, {reward} as v from rollouts where {e.run.scope}"
    every_so_many = 1 + int(e.run.row_counts.sum()) // LOOKED_THROUGH
    counted = as_arrays(
        e.run.relations.sql(
            f"with known as (select * from ({known}) where v is not null), few as (select v from known "
            f"where hash(step) % {every_so_many} = 0 group by v having count(*) >= {max(FEWEST_ROWS // every_so_many, 3)} "
            f"order by count(*) desc, v limit {2 * DISCRETE}) "
            "select step, source, v, count(*) as n from known where v in (select v from few) group by all "
            "union all select step, source, null, count(*) from known group by all",
            e.run.params,
        )
    )
    every = np.asarray([v is None or np.isnan(v) for v in counted["v"].tolist()], bool)
    total, at = counted["n"].astype(float), np.searchsorted(e.run.steps, counted["step"].astype(np.int64))
    sources = counted["source"]
    values = np.unique(counted["v"][~every].astype(float))
    discrete = 0 < len(values) <= DISCRETE and total[~every].sum() >= 0.98 * total[every].sum()
    size = len(e.run.steps)
    for name in dict.fromkeys(sources[every].tolist()):
        here = np.asarray([s == name for s in sources])
        of = np.bincount(at[here & every], total[here & every], size)
        best: tuple[float, NewValue] | None = None
        for value in values:
            rows = here & ~every
            rows[rows] = counted["v"][rows].astype(float) == value
            most_before = 1.0 if value == 0 and not discrete else 0.002
            place, gain = begins(np.bincount(at[rows], total[rows], size), of, most_before)
            if place is not None and not discrete and value != 0 and not _is_an_end(e, float(value), place):
                continue
            if place is not None and (best is None or gain > best[0]):
                best = (gain, NewValue(name, float(value), place))
        if best is not None:
            yield best[1]


def _is_an_end(e: Evidence, value: float, place: int) -> bool:
    """Whether rewards stop at a value from a position on that went beyond it before: they are clipped there."""
    reward, step = known_reward(e.run.columns), int(e.run.steps[place])
    query = (
        f"select min(r) filter (step >= {step}) as low, max(r) filter (step >= {step}) as high, "
        f"avg(cast(r < {value!r} as int)) filter (step < {step}) as under, avg(cast(r > {value!r} as int)) filter (step < {step}) as over "
        f"from (select step, {reward} as r from rollouts where {e.run.with_values(e.run.scope)})"
    )
    row = e.run.relations.sql(query).to_pylist()[0]
    above = row["high"] <= value and row["over"] >= BEYOND
    return above or (row["low"] >= value and row["under"] >= BEYOND)


def _diagnosis(e: Evidence, incident: Sequence[NewValue]) -> Diagnosis:
    first = incident[0]
    step = int(e.run.steps[first.at])
    names = [str(new.source) for new in incident if new.source is not None]
    n_sources = len(set(e.run.groups["source"].tolist())) if e.run.columns.has("source") else 1
    part = Part("source", tuple(names)) if names and len(names) < n_sources else None
    whose_source = f" and source in ({', '.join(map(sql_text, part.values))})" if part is not None else ""
    reward = known_reward(e.run.columns)
    by_step = e.run.by_step(
        f"avg(cast({reward} = {first.value!r} as int)) as share, count({reward}) as rollouts",
        f"({reward}) is not null{whose_source}",
    )
    levels = two_levels(by_step, "share", *before_and_after(e.run.steps, first.at), "rollouts")
    query = f"select after, level, {first.value!r} as value from ({levels}) order by after"
    before, after = levels_of(e.run, query)
    whom = f" of {part}" if part is not None else ""
    holders = whose(e.run, f"({reward}) = {first.value!r}{whose_source}", step)
    text = (
        f"The reward{whom} is exactly {number(first.value)} in {percent(after)} of the rollouts, {percent(before)} before, "
        f"since step {step}{holders.text}"
    )
    where = f"reward = {first.value!r} and step >= {step}"
    if part is not None:
        where += " and (" + " or ".join(f"source = {literal(name)}" for name in part.values) + ")"
    failed = first.value == 0
    why = (
        "what a reward function returns that fails or times out"
        if failed
        else "it was rescaled, clipped or redefined"
    )
    advice = (
        "Open some of them: are they worth 0, or did the reward function give up?"
        if failed
        else "Compare the reward's weights and code before and after; thresholds on the reward no longer hold."
    )
    return Diagnosis(
        "reward_function" if failed else "reward_changed", f"{text}: {why}.", "error" if failed and after >= 0.3 else "warn", ENVIRONMENT,
        step, None, part or holders.part, {"before": before, "after": after}, where, (query, *holders.queries), advice,
    )  # fmt: skip


RULES: Sequence = (reward_values,)
