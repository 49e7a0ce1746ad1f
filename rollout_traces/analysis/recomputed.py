"""SELECTs that give the figures of a sentence again, with every value written into them.

What is said of a run takes its figures from these, so that a sentence and its query cannot differ. They are
read and pasted by a person: `store.table().sql(query)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rollout_traces.analysis.advantages import UNCENTRED, uncentred_query
from rollout_traces.analysis.movement import Moved
from rollout_traces.analysis.relations import current, known_number, quoted, sql_text
from rollout_traces.analysis.series import GROUP_SHARES, RunSeries

WIDTH = 14
"""Steps before and after a change over which its levels are means."""
LATE = 8
"""Last steps of a run whose mean is the level that a slow change came to."""


def level_query(run: RunSeries, moved: Moved) -> str:
    """The levels of a movement before and after it, inside its part and elsewhere.

    Args:
        run: where it was seen.
        moved: the movement.
    """
    first, until, start, last = moved.compared
    steps = f"(step between {first} and {until} or step between {start} and {last})"
    if moved.column not in run.columns.names:
        return _derived(run, moved, steps)
    name = quoted(moved.column)
    if moved.value is None:
        what = f"avg({known_number(moved.column)})"
        known = f"{known_number(moved.column)} is not null"
    else:
        holds = f"list_contains({name}, {sql_text(moved.value)})"
        what = f"avg(cast({holds if moved.column in run.columns.tags else f'{name} = {sql_text(moved.value)}'} as int))"
        known = f"{name} is not null"
    parts = [f"run = {sql_text(run.run)}", f"split = {sql_text(run.split)}", known, current(run.columns)]
    if moved.value is not None and run.needs_text(moved.column, moved.value):
        parts.append("traced and selected_by = 'random'")
    inside = "true"
    if moved.part is not None:
        inside = f"{quoted(moved.part.column)} in ({', '.join(map(sql_text, moved.part.values))})"
        parts.append(f"{quoted(moved.part.column)} is not null")
    return (
        f"select step >= {start} as after, {inside} as inside, {what} as level, count(*) as rollouts from rollouts "
        f"where {' and '.join(parts)} and {steps} group by 1, 2 order by 1, 2 desc"
    )


def _derived(run: RunSeries, moved: Moved, steps: str) -> str:
    """`level_query` of what is no column: a share of groups, a measure of the step, a logged number."""
    start = moved.compared[2]
    if moved.column in GROUP_SHARES:
        of, what = GROUP_SHARES[moved.column]
        inside = "true"
        if moved.part is not None:
            inside = f"{quoted(moved.part.column)} in ({', '.join(map(sql_text, moved.part.values))})"
        return (
            f"select step >= {start} as after, {inside} as inside, coalesce(sum({what}), 0) / sum({of}) as level, "
            f"sum(rows_) as rollouts from ({run.with_values(run.groups_query)}) where {steps} "
            f"group by 1, 2 having sum({of}) > 0 order by 1, 2 desc"
        )
    measures = {
        "update/top3_share": (run.top_rows_query, "sum(top*n) / sum(n)", "n"),
        "prompts/always_solved_share": (run.always_solved_query, "sum(share*n) / sum(n)", "n"),
        "advantage/scale": (run.advantage_scale_query, "sqrt(sum(square*n) / sum(n))", "n"),
        UNCENTRED: (uncentred_query(run), "sum(share*n) / sum(n)", "n"),
        "group/reward_corr_length": (
            run.length_correlation_query,
            "sum(correlation*freedom) / sum(freedom)",
            "freedom",
        ),
    }
    if moved.column in measures:
        query, level, weight = measures[moved.column]
        return (
            f"select step >= {start} as after, true as inside, {level} as level, sum({weight}) as rollouts "
            f"from ({run.with_values(query)}) where {steps} and {weight} > 0 group by 1 order by 1"
        )
    return (
        f"select step >= {start} as after, true as inside, avg(value) as level, count(*) as rollouts from "
        f"({logged_by_step(run, moved.column)}) where {steps} group by 1 order by 1"
    )


def logged_by_step(run: RunSeries, name: str) -> str:
    """A logged number at each step of a run, of the last attempt that logged it."""
    return (
        f"select step, arg_max(value, coalesce(attempt, '')) as value from metrics where run = {sql_text(run.run)} "
        f"and (key = {sql_text(name)} or split || '/' || key = {sql_text(name)}) "
        "and isfinite(cast(value as double)) and step is not null and not coalesce(superseded, false) group by step"
    )


def exact(run: RunSeries, moved: Moved) -> Moved:
    """A movement with the levels that its own query gives."""
    found = {
        (bool(r["after"]), bool(r["inside"])): r
        for r in run.relations.sql(level_query(run, moved)).to_pylist()
    }
    before, after, other = found.get((False, True)), found.get((True, True)), found.get((True, False))
    if before is None and moved.value is None:
        before = found.get((False, False))
    if after is None or (before is None and moved.value is None):
        return moved
    return replace(
        moved,
        before=float(before["level"]) if before is not None else 0.0,
        after=float(after["level"]),
        elsewhere=float(other["level"]) if other is not None else None,
        rows=int(after["rollouts"]),
    )


def two_levels(
    query: str, value: str, before: tuple[int, int], after: tuple[int, int], weight: str = "1"
) -> str:
    """A SELECT of the mean of something over some steps, and over some later ones.

    Args:
        query: a SELECT of `step` and what `value` and `weight` name, its values written into it.
        value: what is averaged.
        before: first and last step.
        after: first and last step.
        weight: what each step weighs.
    """
    return (
        f"select step >= {after[0]} as after, sum(({value})*({weight})) / sum({weight}) as level from ({query}) "
        f"where (step between {before[0]} and {before[1]} or step between {after[0]} and {after[1]}) "
        f"and ({value}) is not null group by 1 order by 1"
    )


def levels_of(run: RunSeries, query: str) -> tuple[float, float]:
    """Before and after, as `two_levels` gives them; NaN where there is none."""
    found = {bool(row["after"]): row["level"] for row in run.relations.sql(query).to_pylist()}
    before, after = (found.get(side) for side in (False, True))
    return (
        float("nan") if before is None else float(before),
        float("nan") if after is None else float(after),
    )


def before_and_late(steps: Sequence[int] | np.ndarray, at: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The `WIDTH` steps before a position, and the last `LATE` steps from it on.

    Args:
        steps: ascending.
        at: position at which a change began, above 0.
    """
    late = max(len(steps) - LATE, at)
    return (int(steps[max(0, at - WIDTH)]), int(steps[at - 1])), (int(steps[late]), int(steps[-1]))


def before_and_after(steps: Sequence[int] | np.ndarray, at: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The `WIDTH` steps before a position, and those from it on.

    Args:
        steps: ascending.
        at: position at which a change began, above 0.
    """
    end = min(at + WIDTH, len(steps)) - 1
    return (int(steps[max(0, at - WIDTH)]), int(steps[at - 1])), (int(steps[at]), int(steps[end]))


def in_its_range(run: RunSeries, moved: Moved) -> bool:
    """Whether a number's values after it moved lie in the range that they had before: more of it was earned.

    A reward that was redefined or rescaled takes values that it did not take. A tenth of the range is allowed
    on either side, and one without any range has none to stay in.
    """
    first, until, start, last = moved.compared
    value = known_number(moved.column)
    query = run.with_values(
        f"select step >= {start} as after, min({value}) as low, max({value}) as high from rollouts where {run.scope} "
        f"and (step between {first} and {until} or step between {start} and {last}) group by 1"
    )
    ends = {bool(row["after"]): (row["low"], row["high"]) for row in run.relations.sql(query).to_pylist()}
    if len(ends) < 2 or None in (*ends[False], *ends[True]):
        return False
    (low, high), (least, most) = ends[False], ends[True]
    slack = 0.1 * (high - low)
    return bool(slack > 0 and least >= low - slack and most <= high + slack)
