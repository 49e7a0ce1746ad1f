"""The SELECT that gives an entry's levels again, step by step."""

from __future__ import annotations

from rollout_traces.analysis.curves import HEAVIEST_COLUMN, HEAVIEST_SQL
from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.in_words import TAGS
from rollout_traces.analysis.relations import known_number, known_reward, quoted, sql_text
from rollout_traces.analysis.run_rows import OF_TRACES, UNKNOWN
from rollout_traces.analysis.scope import RunScope
from rollout_traces.analysis.step_series import Part, SeriesName
from rollout_traces.flags import needs_text


def level_queries(scope: RunScope, entry: Diagnosis) -> tuple[str, ...]:
    """A SELECT for each series of an entry that is one of rows or logged.

    Args:
        scope: the run.
        entry: what is said of it.
    """
    return tuple(query for name in entry.series if (query := _query(scope, name, entry.part or ())))


def _query(scope: RunScope, name: SeriesName, part: Part) -> str:
    if name.statistic == "logged":
        return _logged(scope, name.column)
    if name.column == HEAVIEST_COLUMN:
        return scope.by_step(f"{HEAVIEST_SQL} as level, count(update_share) as rollouts", "update_share >= 0")
    split, column = scope.split, name.column
    if column.startswith("eval") and "/" in column:
        split, column = column.split("/", 1)
    if name.value == UNKNOWN and not scope.columns.has(column):
        return _logged(scope, name.column)
    if name.statistic not in ("mean", "share") or not scope.columns.has(column):
        return ""
    of = RunScope(scope.relations, scope.run, split, scope.columns)
    conditions = [
        f"{quoted(c)} in ({', '.join(sql_text(v) for n, v in part if n == c)})"
        for c in dict.fromkeys(c for c, _ in part)
    ]
    if column in OF_TRACES or (column == "flags" and needs_text(name.value or "")):
        conditions.append("traced and selected_by = 'random'")
    return of.by_step(
        f"avg({_figure(scope, name, column)}) as level, count(*) as rollouts",
        " and ".join(conditions) or "true",
    )


def _logged(scope: RunScope, key: str) -> str:
    return (
        f"select step, value from metrics where run = {sql_text(scope.run)} and "
        f"{sql_text(key)} in (key, concat(split, '/', key)) order by step"
    )


def _figure(scope: RunScope, name: SeriesName, column: str) -> str:
    if name.value is None:
        return known_reward(scope.columns) if column == "reward" else known_number(column)
    if name.value == UNKNOWN and column in scope.columns.numbers:
        return f"cast({known_number(column)} is null as int)"
    value = sql_text(name.value)
    if column in TAGS or column in scope.columns.tags:
        return f"cast(list_contains({quoted(column)}, {value}) as int)"
    return f"cast({quoted(column)} = {value} as int)"
