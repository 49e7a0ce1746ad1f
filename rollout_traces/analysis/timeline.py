"""A run as a timeline: first and last seen, change points, attempts, gaps in steps, engines, diagnoses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.in_words import column_text, literal, percent, value_text
from rollout_traces.analysis.relations import Relations, as_arrays, written
from rollout_traces.analysis.run_report import RunReport, diagnose
from rollout_traces.analysis.runs import FIRST_OF_ATTEMPTS, ConfigDifference, resumed
from rollout_traces.analysis.scope import RunScope
from rollout_traces.analysis.seen import FirstSeen, first_seen, seen_query
from rollout_traces.quoting import quoted

Kind = Literal["change", "first seen", "last seen", "attempt", "gap", "config"]
LONGEST_SETTING = 120
"""Characters of a setting's value in a sentence."""
EARLY = 3
"""What is first seen within so many steps of the run's start is how the run is, not an event."""
FOLLOWED = frozenset(
    [
        "source",
        "engine",
        "stop_reason",
        "reward_status",
        "discard_reason",
        "flags",
        "tool_names",
        "error_signatures",
    ]
)
"""Columns of which every value is followed."""
MOST_OF_EXTRA = 12
"""A text that the trainer put beside the rollouts is followed where it has at most so many values ..."""
REGULAR = 0.5
"""... and a value of it that was there in so many of the steps from its first to its last ..."""
LEAST_STEPS = 5
"""... and in at least so many steps: what differs from prompt to prompt comes and goes all the time."""


@dataclass(frozen=True)
class Event:
    """Something that happened at a step.

    Attributes:
        step: when.
        last: until when, None where it lasts or was a moment.
        kind: what sort of event.
        what: the column, flag, tool, engine or attempt.
        sentence: what happened, in words.
        where: a filter in the query language that leads to the rollouts; empty where there is none.
        query: a SELECT that gives the figures of the sentence again; empty for settings.
    """

    step: int
    last: int | None
    kind: Kind
    what: str
    sentence: str
    where: str = ""
    query: str = ""


def events(
    relations: Relations,
    run: str,
    split: str = "rollout",
    *,
    report: RunReport | None = None,
    before: str = "",
    changed: Sequence[ConfigDifference] = (),
) -> list[Event]:
    """The timeline of a run, steps ascending.

    Args:
        relations: where to read.
        run: the run.
        split: the split.
        report: what `diagnose` says of it; asked for where it is not given.
        before: the run that was started before it.
        changed: the settings in which it differs from that one.
    """
    scope = RunScope(relations, run, split)
    report = report or diagnose(relations, run, split)
    query = f"select distinct step from rollouts where {scope.scope} order by step"
    steps = as_arrays(relations.sql(query, scope.params))["step"].astype(np.int64)
    if not len(steps):
        return []
    found = [
        *_config(int(steps[0]), before, changed),
        *(_change(each) for head in report.diagnoses for each in (head, *head.consequences)),
        *_seen(scope, steps),
        *_attempts(scope),
        *_gaps(scope, steps),
    ]
    return sorted(found, key=lambda event: (event.step, event.kind, event.what))


def _change(d: Diagnosis) -> Event:
    what = str(d.series[0]) if d.series else d.name
    return Event(d.step, d.last, "change", what, d.sentence, d.where, d.queries[0] if d.queries else "")


def _config(step: int, before: str, changed: Sequence[ConfigDifference]) -> list[Event]:
    return [
        Event(
            step,
            None,
            "config",
            each.key,
            f"{quoted(each.key)}: {_setting(each.a)} in {quoted(before)}, the run before, {_setting(each.b)} in this one",
        )
        for each in changed
    ]


def _setting(value: Any) -> str:
    return "not set" if value is None else quoted(value, LONGEST_SETTING)


def _seen(scope: RunScope, steps: np.ndarray) -> list[Event]:
    start = int(steps[min(EARLY, len(steps) - 1)])
    found = []
    for s in _followed(first_seen(scope.relations, scope.run, scope.split, scope.columns), steps):
        has = "has" if s.column in ("flags", "tool_names", "error_signatures") else "="
        where = f"{s.column} {has} {literal(s.value)}"
        if s.first > start:
            whom = "of the traced rollouts" if s.traced_only else "of the rollouts"
            text = f"{column_text(s.column)} {value_text(s.column, s.value)}: first seen at step {s.first}, {percent(s.share_since)} {whom} since"
            found.append(
                Event(
                    s.first, s.last if s.stopped else None, "first seen", f"{s.column} {s.value}", text, where,
                    seen_query(scope, s),
                )
            )  # fmt: skip
        if s.stopped:
            text = f"{column_text(s.column)} {value_text(s.column, s.value)}: last seen at step {s.last}"
            query = seen_query(scope, s)
            found.append(Event(s.last, None, "last seen", f"{s.column} {s.value}", text, where, query))
    return found


def _followed(seen: Sequence[FirstSeen], steps: np.ndarray) -> list[FirstSeen]:
    """What comes or goes by itself: every value of `FOLLOWED`, of the trainer's texts those of a category."""
    n_values = Counter(s.column for s in seen)
    return [s for s in seen if s.column in FOLLOWED or _is_regular(s, n_values[s.column], steps)]


def _is_regular(s: FirstSeen, n_values: int, steps: np.ndarray) -> bool:
    within = int(((steps >= s.first) & (steps <= s.last)).sum())
    return n_values <= MOST_OF_EXTRA and s.n_steps >= max(LEAST_STEPS, REGULAR * within)


def _attempts(scope: RunScope) -> list[Event]:
    query = written(FIRST_OF_ATTEMPTS, [scope.run, scope.split])
    return [
        Event(first, None, "attempt", f"attempt {name}", f"attempt {name} resumes at step {first}", "", query)
        for name, first in resumed(scope.relations, scope.run, scope.split)
    ]


def _gaps(scope: RunScope, steps: np.ndarray) -> list[Event]:
    if len(steps) < 4:
        return []
    jumps = np.diff(steps)
    usual = float(np.median(jumps))
    return [
        Event(
            int(steps[i]),
            int(steps[i + 1]),
            "gap",
            "steps",
            f"no rollouts between step {steps[i]} and {steps[i + 1]}",
            "",
            scope.by_step("count(*) as rollouts", f"step between {steps[i]} and {steps[i + 1]}"),
        )
        for i in np.flatnonzero(jumps > 3 * usual)
    ]
