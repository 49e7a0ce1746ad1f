"""What needs no statistics: flags of severity error, logged numbers that are NaN or end, rewards that are all equal, parts of which nothing is solved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.analysis.columns_compared import KEPT_IN_LEDGER
from rollout_traces.analysis.curves import FEWEST_BESIDE, ended_numbers, logged_numbers
from rollout_traces.analysis.diagnosis import DATA, ENVIRONMENT, Diagnosis, Severity
from rollout_traces.analysis.entries import SURE
from rollout_traces.analysis.in_words import (
    number,
    part_filter,
    part_text,
    percent,
    since,
    steps_filter,
    value_filter,
)
from rollout_traces.analysis.relations import known_number, known_reward, unit_over_steps
from rollout_traces.analysis.relations import quoted as quoted_name
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


def equal_entries(scope: RunScope, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Entries where all rewards are equal, of the run or of a part, or no rollout of a part succeeds: nothing can be learned from them.

    Args:
        scope: the run and split.
        found: the other entries; what they say of a part is not said again.
    """
    told = {each.part for each in found if any(name.column in ("reward", "success") for name in each.series)}
    whole = _Outcomes(**_outcomes(scope, "")[0])
    if whole.is_equal:
        return [_equal((), whole)]
    parts = [
        (((column, str(row.pop("value"))),), _Outcomes(**row))
        for column in (*scope.segments, *scope.further)
        for row in _outcomes(scope, column)
    ]
    return [
        _equal(part, each) if each.is_equal else _unsolved(part, each, whole)
        for part, each in parts
        if part not in told and (each.is_equal or each.is_unsolved(whole))
    ]


@dataclass(frozen=True)
class _Outcomes:
    """Rewards and successes of the rollouts of a part: how many there are, in how many steps and groups, and between which values."""

    first: int
    steps: int
    n: int
    groups: int
    known: int
    low: float | None
    high: float | None
    solved: float | None
    ever: float | None

    @property
    def is_equal(self) -> bool:
        """Whether all rewards are one number, of most rollouts and several steps."""
        return (
            self.low is not None
            and self.low == self.high
            and self.steps >= FEWEST_EVALUATIONS
            and 2 * self.known > self.n
        )

    def is_unsolved(self, whole: _Outcomes) -> bool:
        """Whether nothing is solved, which is no chance if it were solved as often as everywhere."""
        if self.ever != 0 or not whole.solved or self.steps < FEWEST_EVALUATIONS:
            return False
        return self.groups * np.log1p(-min(whole.solved, 1 - SURE)) < np.log(SURE)


def _outcomes(scope: RunScope, column: str) -> list[dict[str, Any]]:
    """The fields of `_Outcomes` of a run, or of each value of a column."""
    c = scope.columns
    success = known_number("success") if c.has("success") else "cast(null as double)"
    value, by = (
        (f"{quoted_name(column)} as value,", f" and {quoted_name(column)} is not null group by 1")
        if column
        else ("", "")
    )
    query = f"""
        select {value} min(step) as first, count(distinct step) as steps, count(*) as n, count(distinct {unit_over_steps(c, one_run=True)}) as groups,
            count({known_reward(c)}) as known, min({known_reward(c)}) as low, max({known_reward(c)}) as high, avg({success}) as solved, max({success}) as ever
        from rollouts where {scope.scope}{by}"""
    return scope.relations.sql(query, scope.params).to_pylist()


def _equal(part: Part, of: _Outcomes) -> Diagnosis:
    whose = f" of {part_text(part)}" if part else ""
    sentence = f"all {of.n:,} rewards{whose} are {number(of.low or 0.0)}: nothing can be learned from them."
    return _without_signal("reward", part, of, sentence, "warn" if part else "error", "all rewards are equal")


def _unsolved(part: Part, of: _Outcomes, whole: _Outcomes) -> Diagnosis:
    sentence = (
        f"none of {of.n:,} rollouts of {part_text(part)} succeeds, {percent(whole.solved or 0.0)} of all do."
    )
    return _without_signal("success", part, of, sentence, "warn", "nothing is solved")


def _without_signal(
    column: str, part: Part, of: _Outcomes, sentence: str, severity: Severity, name: str
) -> Diagnosis:
    return Diagnosis(
        severity=severity,
        sentence=sentence,
        advice="Read some of these rollouts, and what the reward function says of them.",
        tier=ENVIRONMENT,
        series=(SeriesName(column),),
        part=part,
        shape="standing",
        onset=(of.first, of.first),
        step=of.first,
        after=of.low,
        cost=1.0,
        where=part_filter(part),
        name=name,
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
