"""A run as a timeline: settings, movements, what came and went, attempts, gaps in steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.in_words import TAGS, column_text, percent, value_filter, value_text
from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    quoted,
    sql_text,
    unit_over_steps,
    written,
)
from rollout_traces.analysis.run_report import RunReport, diagnose
from rollout_traces.analysis.runs import FIRST_OF_ATTEMPTS, ConfigDifference, resumed, setting_text
from rollout_traces.analysis.selections import RunScope
from rollout_traces.flags import needs_text
from rollout_traces.model.text import quoted as in_quotes

Kind = Literal["change", "first seen", "last seen", "attempt", "gap", "config"]
EARLY = 3
"""Steps from the run's start; a value that is first seen within them is no event."""
FOLLOWED = frozenset(("source", "engine", "stop_reason", "reward_status", "discard_reason", *TAGS))
"""Columns of which every value is followed ..."""
MOST_OF_FURTHER = 12
"""... beside those that the trainer put beside the rollouts, where they have at most so many values."""
RARE_TEXTS = frozenset(("answer",))
"""Text columns with too many values to follow each over the steps."""
FEWEST_ROWS, SMALLEST_SHARE = 3, 0.01
"""A value is seen in a step where so many rollouts, and that share of them, have it."""
GONE_FOR, GONE_PART = 3, 10
"""A value has stopped where so many later steps, and one in so many of the run's, no longer have it."""
BY_CHANCE = 1e-3
"""Chance, of a value at a constant rate, to be missing in all steps before or after, below which it came or went."""
GAP, FEWEST_STEPS = 3, 4
"""A gap is longer than so many usual distances of steps, of a run with that many steps."""


@dataclass(frozen=True)
class FirstSeen:
    """When a value came and went.

    Attributes:
        column: text or tag column.
        value: the value.
        first: first step in which it was seen.
        last: last step in which it was seen.
        n_rows: rollouts that have it, over the run.
        n_steps: steps in which it was seen.
        share_since: its share of the rollouts of the steps from `first` on, of those that know the column.
        rows_before: rollouts that knew the column before `first`.
        new: whether no rollout of the steps before `first` had it, and not by chance.
        stopped: whether at least three later steps, and a tenth of the run, no longer have it, and not by chance.
        traced_only: whether only traced rollouts can have it.
    """

    column: str
    value: str
    first: int
    last: int
    n_rows: int
    n_steps: int
    share_since: float
    rows_before: int
    new: bool
    stopped: bool
    traced_only: bool


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


def first_seen(
    relations: Relations, run: str, split: str = "rollout", columns: RolloutColumns | None = None
) -> list[FirstSeen]:
    """First and last step of every value of every text column, flag, tool and error of a run.

    Args:
        relations: where to read.
        run: the run.
        split: the split.
        columns: what `rollouts` has; looked up where it is not given.

    Returns:
        In order of first step; values that were never seen in enough rollouts of a step are left out.
    """
    scope = RunScope(relations, run, split, columns)  # type: ignore[arg-type]
    found: list[FirstSeen] = []
    for name in (*scope.columns.texts, *scope.columns.tags):
        if name not in RARE_TEXTS:
            found += _of_column(scope, name)
    return sorted(found, key=lambda each: (each.first, -each.n_rows, each.column, each.value))


def _of_column(scope: RunScope, name: str) -> Iterator[FirstSeen]:
    rows = scope.relations.sql(_seen_query(scope, name)).to_pylist()
    moved = [row["value"] for row in rows if row["new"] or row["stopped"]]
    query = (
        f"select v, count(distinct unit) as n from (select {_each(scope.columns, name)} as v, "
        f"{unit_over_steps(scope.columns, one_run=True)} as unit from rollouts where {scope.scope}) "
        "where list_contains(?, v) group by v"
    )
    counted = scope.relations.sql(query, [*scope.params, moved]).to_pylist() if moved else []
    groups = {row["v"]: row["n"] for row in counted}
    for row in rows:
        # at a constant rate, n independent groups all lie in a part of the run with the chance part ** n
        by_chance = [row.pop(part) ** groups.get(row["value"], 0) >= BY_CHANCE for part in ("since", "until")]
        new, stopped = row["new"] and not by_chance[0], row["stopped"] and not by_chance[1]
        yield FirstSeen(name, **{**row, "new": new, "stopped": stopped})


def _each(columns: RolloutColumns, name: str) -> str:
    return f"unnest(list_distinct({quoted(name)}))" if name in columns.tags else quoted(name)


def _seen_query(scope: RunScope, column: str, value: str | None = None) -> str:
    """A SELECT of the values of a column, or of one: when each was seen, and which part of the run's steps is since and until."""
    c, name, rows = scope.columns, quoted(column), f"from rollouts where {scope.with_values(scope.scope)}"
    each = _each(c, column)
    traced_only = "false"
    if column == "flags":
        flags = scope.relations.sql(f"select distinct unnest(flags) as v {rows}").column("v").to_pylist()
        texts = [flag for flag in flags if flag and needs_text(flag)]
        traced_only = f"v in ({', '.join(map(sql_text, texts))})" if texts else traced_only
    traced = "traced" if c.has("traced") else "false"
    only = "" if value is None else f" and v = {sql_text(value)}"
    return f"""
        with steps as (
            select step, n, traced, row_number() over w as place, sum(n) over w - n as n_before, sum(traced) over w - traced as traced_before
            from (select step, count(*) as n, count(*) filter ({traced}) as traced {rows} and {name} is not null group by step)
            window w as (order by step)),
        run as (select count(*) as n_steps, sum(n) as n, sum(traced) as traced from steps),
        hits as (
            select v, step, count(*) as hits, {traced_only} as texted from (select step, {each} as v {rows})
            where v is not null{only} group by all),
        seen as (
            select *, hits >= greatest({FEWEST_ROWS}, {SMALLEST_SHARE} * if(texted, traced, n)) as enough,
                if(texted, traced_before, n_before) as before, sum(hits) over (partition by v order by step) - hits as hits_before
            from hits join steps using (step)),
        ends as (
            select v, texted, min(step) filter (enough) as first, max(step) filter (enough) as last, count(*) filter (enough) as n_steps,
                sum(hits) as n_rows, min(place) filter (enough) as place_first,
                max(place) filter (enough) as place_last, max(place) as latest,
                arg_min(before, step) filter (enough) as before, arg_min(hits_before, step) filter (enough) as hits_before
            from seen group by all having n_steps > 0)
        select v as value, first, last, n_rows::bigint as n_rows, ends.n_steps,
            coalesce((n_rows - hits_before) / nullif(if(texted, run.traced, run.n) - before, 0), 0)::double as share_since,
            before::bigint as rows_before,
            before > 0 and hits_before = 0 as new, 1 - (place_first - 1) / run.n_steps as since, latest / run.n_steps as until,
            latest = place_last and run.n_steps - latest >= greatest({GONE_FOR}, run.n_steps // {GONE_PART}) as stopped,
            {"true" if column in TAGS[1:] else "texted"} as traced_only
        from ends, run"""


def events(
    relations: Relations,
    run: str,
    split: str = "rollout",
    *,
    report: RunReport | None = None,
    before: str = "",
    changed: Sequence[ConfigDifference] = (),
) -> list[Event]:
    """The timeline of a run, steps ascending; without what may be chance.

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
    steps = relations.sql(query, scope.params).column("step").to_numpy()
    if not len(steps):
        return []
    sure = (head for head in report.diagnoses if head.is_sure)
    moved = [each for head in sure for each in (head, *head.consequences)]
    found = [
        *(_config(int(steps[0]), before, each) for each in changed),
        *map(_movement, moved),
        *_came_and_went(scope, int(steps[min(EARLY, len(steps) - 1)])),
        *_attempts(scope),
        *_gaps(scope, steps),
    ]
    return sorted(found, key=lambda event: (event.step, event.kind, event.what))


def _movement(d: Diagnosis) -> Event:
    what = str(d.series[0]) if d.series else d.name
    return Event(d.step, d.last, "change", what, d.sentence, d.where, d.queries[0] if d.queries else "")


def _config(step: int, before: str, each: ConfigDifference) -> Event:
    a, b = setting_text(each.a), setting_text(each.b)
    sentence = f"{in_quotes(each.key)}: {a} in {in_quotes(before)}, the run before, {b} in this one"
    return Event(step, None, "config", each.key, sentence)


def _came_and_went(scope: RunScope, start: int) -> Iterator[Event]:
    seen = first_seen(scope.relations, scope.run, scope.split, scope.columns)
    n_values = Counter(s.column for s in seen)
    for s in seen:
        if s.column not in FOLLOWED and n_values[s.column] > MOST_OF_FURTHER:
            continue
        name, where = (
            f"{column_text(s.column)} {value_text(s.column, s.value)}",
            value_filter(s.column, s.value),
        )
        query = _seen_query(scope, s.column, s.value)
        if s.new and s.first > start:
            whom = "of the traced rollouts" if s.traced_only else "of the rollouts"
            text = f"{name}: first seen at step {s.first}, {percent(s.share_since)} {whom} since"
            last = s.last if s.stopped else None
            yield Event(s.first, last, "first seen", f"{s.column} {s.value}", text, where, query)
        if s.stopped:
            text = f"{name}: last seen at step {s.last}"
            yield Event(s.last, None, "last seen", f"{s.column} {s.value}", text, where, query)


def _attempts(scope: RunScope) -> Iterator[Event]:
    query = written(FIRST_OF_ATTEMPTS, [scope.run, scope.split])
    for name, first in resumed(scope.relations, scope.run, scope.split):
        yield Event(
            first, None, "attempt", f"attempt {name}", f"attempt {name} resumes at step {first}", "", query
        )


def _gaps(scope: RunScope, steps: np.ndarray) -> Iterator[Event]:
    distances = np.diff(steps)
    for i in np.flatnonzero(distances > GAP * np.median(distances)) if len(steps) >= FEWEST_STEPS else ():
        a, b = int(steps[i]), int(steps[i + 1])
        query = scope.by_step("count(*) as rollouts", f"step between {a} and {b}")
        yield Event(a, b, "gap", "steps", f"no rollouts between step {a} and {b}", "", query)
