"""What needs no statistics: flags of severity error, logged numbers that are NaN or end, rewards that are all equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_traces.analysis.columns_compared import KEPT_IN_LEDGER
from rollout_traces.analysis.curves import FEWEST_BESIDE, ended_numbers, logged_numbers
from rollout_traces.analysis.diagnosis import DATA, ENVIRONMENT, Diagnosis, Severity
from rollout_traces.analysis.in_words import (
    number,
    part_filter,
    part_text,
    percent,
    since,
    steps_filter,
    value_filter,
)
from rollout_traces.analysis.relations import known_reward
from rollout_traces.analysis.run_rows import UNKNOWN
from rollout_traces.analysis.scope import RunScope
from rollout_traces.analysis.screen import FEWEST_EVALUATIONS
from rollout_traces.analysis.step_series import Part, SeriesName
from rollout_traces.flags import REGISTRY
from rollout_traces.model.text import quoted

QUIET = 5
"""Steps without a fault after which it is over."""


def fault_entries(scope: RunScope, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """An entry for each flag of severity error that no other entry of such a severity tells of.

    Args:
        scope: the run and split.
        found: the other entries.
    """
    if not scope.columns.has("flags"):
        return []
    loud = [one for each in found if each.severity != "info" for one in (each, *each.consequences)]
    named = {name.value for one in loud for name in one.series if name.column == "flags"}
    query = f"""
        with counted as (select step, count(*) as n, flatten(list(flags)) as flags
            from rollouts where {scope.scope} group by step)
        select step, n, flags from counted order by step"""
    steps = scope.relations.sql(query, scope.params).to_pylist()
    names = [name for name, spec in REGISTRY.items() if spec.severity == "error" and name not in named]
    return [entry for name in names if (entry := _entry(name, steps)) is not None]


def number_entries(scope: RunScope) -> list[Diagnosis]:
    """Entries of logged numbers that are NaN or infinite where they had been finite, which is a fault, or no longer logged, which may be meant so.

    Args:
        scope: the run.
    """
    logged = logged_numbers(scope.relations, scope.run).items()
    numbers = {key: each for key, each in logged if not key.startswith(KEPT_IN_LEDGER)}
    lost: dict[tuple[int, int | None], list[str]] = {}
    for key, (steps, values) in numbers.items():
        known = np.isfinite(values)
        first = int(np.argmin(known))
        if not known.all() and first >= FEWEST_BESIDE:
            last = int(np.flatnonzero(~known)[-1])
            lost.setdefault(
                (int(steps[first]), int(steps[last]) if last + 1 < len(steps) else None), []
            ).append(key)
    found = [
        _of_numbers(
            "error", f"what the trainer logs is no longer a number: {', '.join(map(quoted, keys))}", keys, *at
        )
        for at, keys in lost.items()
    ]
    ended = ended_numbers({key: steps for key, (steps, _) in numbers.items()})
    return found + [
        _of_numbers("info", f"{quoted(key)} is no longer logged", [key], step, None)
        for key, step in ended.items()
    ]


def _of_numbers(severity: Severity, what: str, keys: Sequence[str], step: int, last: int | None) -> Diagnosis:
    return Diagnosis(
        severity=severity,
        sentence=f"{what}, {since(step, last)}.",
        advice="Look at the last batch before it, and at the trainer's log." if severity == "error" else "",
        tier=DATA,
        series=tuple(SeriesName(key, UNKNOWN, "share") for key in keys),
        part=(),
        shape="level" if last is None else "window",
        onset=(step, step),
        step=step,
        end=None if last is None else (last, last),
        last=last,
        before=0.0,
        after=1.0,
        cost=1.0,
        where=steps_filter(step, last),
    )


def equal_entries(scope: RunScope) -> list[Diagnosis]:
    """An entry where all rewards are equal, of the run or of one source: nothing can be learned from them.

    Args:
        scope: the run and split.
    """
    reward = known_reward(scope.columns)
    query = f"""
        select source, min(step) as first, min(reward) as reward, count(*) as n from
            (select {scope.columns.expression("source")} as source, step, {reward} as reward from rollouts where {scope.scope})
        group by grouping sets ((), (source)) having min(reward) = max(reward) and count(distinct step) >= {FEWEST_EVALUATIONS}
            and 2 * count(reward) > count(*) and (grouping(source) = 1 or source is not null) order by grouping(source) desc"""
    rows = scope.relations.sql(query, scope.params).to_pylist()
    whole = [row for row in rows if row["source"] is None]
    return [_equal(row["source"], row["n"], float(row["reward"]), int(row["first"])) for row in whole or rows]


def _equal(source: str | None, n: int, reward: float, first: int) -> Diagnosis:
    part: Part = () if source is None else (("source", source),)
    of = f" of {part_text(part)}" if part else ""
    return Diagnosis(
        severity="warn" if part else "error",
        sentence=f"all {n:,} rewards{of} are {number(reward)}: nothing can be learned from them.",
        advice="Read some of these rollouts, and what the reward function says of them.",
        tier=ENVIRONMENT,
        series=(SeriesName("reward"),),
        part=part,
        shape="standing",
        onset=(first, first),
        step=first,
        after=reward,
        cost=1.0,
        where=part_filter(part),
        name="all rewards are equal",
    )


def _entry(name: str, steps: Sequence[dict[str, Any]]) -> Diagnosis | None:
    has = [(at, (row["flags"] or []).count(name)) for at, row in enumerate(steps)]
    with_it = [(at, n) for at, n in has if n]
    if not with_it:
        return None
    first, last = with_it[0][0], with_it[-1][0]
    n, n_rows = sum(n for _, n in with_it), sum(row["n"] for row in steps[first : last + 1])
    over = len(steps) - 1 - last >= QUIET
    at, end = int(steps[first]["step"]), int(steps[last]["step"]) if over else None
    series = SeriesName("flags", name, "share")
    rows = "1 rollout carries" if n == 1 else f"{n:,} rollouts carry"
    return Diagnosis(
        severity="error",
        sentence=f"{rows} {name}, {percent(n / n_rows)}, {since(at, end)}: {REGISTRY[name].meaning}.",
        advice="Open these rollouts: one is enough to see it.",
        tier=DATA,
        series=(series,),
        part=(),
        shape="level",
        onset=(at, at),
        step=at,
        end=None if end is None else (end, end),
        last=end,
        after=n / n_rows,
        cost=n / sum(row["n"] for row in steps),
        where=f"{value_filter('flags', name)} and {steps_filter(at, end)}",
        name="a fault of the data",
    )
