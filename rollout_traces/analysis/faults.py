"""What needs no statistics: flags of severity error, logged numbers that are NaN or end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_traces.analysis.columns_compared import KEPT_IN_LEDGER
from rollout_traces.analysis.curves import FEWEST_BESIDE, ended_numbers, logged_numbers
from rollout_traces.analysis.diagnosis import DATA, Diagnosis, Severity
from rollout_traces.analysis.in_words import (
    percent,
    since,
    steps_filter,
    value_filter,
)
from rollout_traces.analysis.run_rows import UNKNOWN
from rollout_traces.analysis.scope import RunScope
from rollout_traces.analysis.step_series import SeriesName
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
