"""What stands behind one finding: the part it happened in, since when, typical rollouts, both distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.analysis.change_points import change_points
from rollout_traces.analysis.moved import MOST_ELSEWHERE
from rollout_traces.analysis.movement import Part
from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    as_arrays,
    known_number,
    quoted,
    sql_text,
    written,
)
from rollout_traces.analysis.scope import SEGMENTS
from rollout_traces.analysis.selections import Selection, sql_union
from rollout_traces.analysis.series import Series
from rollout_traces.flags import needs_text

BINS = 20
"""Bars of a picture."""
LOOK_BACK = 60
"""Steps before A in which the beginning of a change is looked for."""
EXAMPLES = 3
FEWEST = 3
"""Rollouts that a part of a side needs."""
MEAN = "sum(x*w) / sum(w) filter (x is not null)"
"""SQL of the mean of `x`, each row with its weight `w`."""


@dataclass(frozen=True)
class Picture:
    """Two distributions on one axis.

    Attributes:
        edges: float, one more than bars.
        a: share of A in each bar.
        b: share of B in each bar.
    """

    edges: tuple[float, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]


@dataclass(frozen=True)
class Detail:
    """What stands behind a finding.

    Attributes:
        part: the sources or engines in which it happened, None for everywhere.
        a: level of A inside the part.
        b: level of B inside the part.
        elsewhere: level of A outside, None where there is no outside.
        elsewhere_rows: rollouts of A outside with the value.
        elsewhere_n: rollouts of A outside that know the column.
        since: the step from which it holds, None where no step stands out.
        median_a: median of A, None for a share.
        median_b: median of B.
        examples: ids of three typical rollouts of A.
        picture: both distributions, None for a share.
        where: a filter in the query language for A's rollouts with it, beside A's own.
        query: a SELECT that gives the levels and counts again, side 0 for A and 1 for B, inside the part and elsewhere.
        since_query: a SELECT of the level at each step, in which `since` was found; empty without `since`.
    """

    part: Part | None
    a: float
    b: float
    elsewhere: float | None
    elsewhere_rows: int
    elsewhere_n: int
    since: int | None
    median_a: float | None
    median_b: float | None
    examples: tuple[str, ...]
    picture: Picture | None
    where: str
    query: str
    since_query: str = ""


def detail_of(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection, column: str, value: str | None
) -> Detail:
    """Looks behind one finding.

    Args:
        relations: where to read.
        columns: what `rollouts` has.
        a: one side.
        b: the other.
        column: the column that differs.
        value: the value whose share differs, None for a number.
    """
    union, params = _both(columns, a, b, column, value)
    whole, cells = _cells(relations, union, params)
    part, others = _part(cells)
    query = written(_levels(union, part, others), params)
    elsewhere: dict[str, Any] = {}
    if part is not None:
        rows = {(row["part"], row["side"]): row for row in relations.sql(query).to_pylist()}
        whole = {side: rows["inside", side]["level"] for side in (0, 1)}
        elsewhere = rows.get(("elsewhere", 0), {})
    picture, medians = _picture(relations, union, params) if value is None else (None, (None, None))
    since, since_query, since_params = _since(relations, columns, a, b, column, value, part)
    return Detail(
        part=part,
        a=whole.get(0, float("nan")),
        b=whole.get(1, float("nan")),
        elsewhere=elsewhere.get("level"),
        elsewhere_rows=int(elsewhere.get("total" if value is not None else "rollouts", 0)),
        elsewhere_n=elsewhere.get("rollouts", 0),
        since=since,
        median_a=medians[0],
        median_b=medians[1],
        examples=_examples(relations, union, params, medians[0], value),
        picture=picture,
        where=_where(column, value, part),
        query=query,
        since_query=written(since_query, since_params) if since is not None else "",
    )


def level_query(columns: RolloutColumns, a: Selection, b: Selection, column: str, value: str | None) -> str:
    """A SELECT of the level and the rollouts of both sides, side 0 for A and 1 for B."""
    union, params = _both(columns, a, b, column, value)
    return written(_levels(union), params)


def _both(
    columns: RolloutColumns, a: Selection, b: Selection, column: str, value: str | None
) -> tuple[str, list[Any]]:
    """The rollouts of both sides that know a column, with its level as `x` and what each weighs as `w`."""
    level, condition = _level(columns, column, value)
    weighted = _needs_text(columns, column, value) and columns.has("selected_probability")
    weight = "coalesce(1 / nullif(selected_probability, 0), 1)" if weighted else "1"
    what = f"{level} as x, {weight} as w, {columns.expression('id')} as id, {columns.expression('traced')} as traced"
    what += "".join(f", {columns.expression(s)} as {s}" for s in SEGMENTS)
    union, params = sql_union(columns, [(0, a), (1, b)], what)
    if condition:
        union = union.replace(" from rollouts where ", f" from rollouts where {condition} and ")
    return union, params


def _levels(union: str, part: Part | None = None, others: Sequence[str] = ()) -> str:
    """A SELECT of level and rollouts of both sides; with a part, then inside it and elsewhere."""
    if part is None:
        return f"select side, {MEAN} as level, sum(x) as total, count(x) as rollouts from ({union}) group by side order by side"
    inside, outside = (", ".join(sql_text(v) for v in values) for values in (part.values, others))
    within = f"case when {quoted(part.column)} in ({inside}) then 'inside'"
    within += f" when {quoted(part.column)} in ({outside}) then 'elsewhere' end" if others else " end"
    return (
        f"select side, part, {MEAN} as level, sum(x) as total, count(x) as rollouts from (select side, x, w, {within} as part from ({union})) "
        "group by grouping sets ((side), (side, part)) having grouping(part) = 1 or part is not null order by part desc nulls first, side"
    )


def _level(columns: RolloutColumns, column: str, value: str | None) -> tuple[str, str]:
    """SQL of what is averaged, and a further condition."""
    if value is None:
        return known_number(column), ""
    name = quoted(column)
    if column in columns.tags:
        random = " and traced and selected_by = 'random'" if _needs_text(columns, column, value) else ""
        return f"cast(list_contains({name}, {sql_text(value)}) as int)", f"{name} is not null{random}"
    return f"cast({name} = {sql_text(value)} as int)", f"{name} is not null"


def _needs_text(columns: RolloutColumns, column: str, value: str | None) -> bool:
    """Whether a share is taken over the rollouts traced at random, each weighted by how likely it was."""
    if value is None or column not in columns.tags or not columns.has("traced", "selected_by"):
        return False
    return column in ("tool_names", "error_signatures") or (column == "flags" and needs_text(value))


Cells = dict[tuple[str, int], float]
"""Value and side -> level, of those with enough rollouts."""


def _cells(relations: Relations, union: str, params: list[Any]) -> tuple[dict[int, float], dict[str, Cells]]:
    """The level of both sides, and by each value of each segment column."""
    sets = ", ".join(f"(side, {segment})" for segment in SEGMENTS)
    which = " ".join(f"when grouping({segment}) = 0 then {i}" for i, segment in enumerate(SEGMENTS))
    rows = relations.sql(
        f"select side, case {which} end as which, coalesce({', '.join(SEGMENTS)}) as v, {MEAN} as x, count(x) as n "
        f"from ({union}) group by grouping sets ((side), {sets})",
        params,
    ).to_pylist()
    whole: dict[int, float] = {}
    cells: dict[str, Cells] = {segment: {} for segment in SEGMENTS}
    for row in rows:
        level = float("nan") if row["x"] is None else float(row["x"])
        if row["which"] is None:
            whole[row["side"]] = level
        elif row["v"] is not None and row["n"] >= FEWEST:
            cells[SEGMENTS[row["which"]]][row["v"], row["side"]] = level
    return whole, cells


def _part(of_segments: dict[str, Cells]) -> tuple[Part | None, tuple[str, ...]]:
    """The values of one segment column that hold the difference, and its other values."""
    best: tuple[float, Part, tuple[str, ...]] | None = None
    for segment, cells in of_segments.items():
        values = sorted(v for v, side in cells if side == 0)
        jumps = {v: cells[v, 0] - cells[v, 1] for v in values if (v, 1) in cells}
        if len(jumps) < 2:
            continue
        largest = max(jumps.values(), key=abs)
        if largest == 0:
            continue
        inside = [v for v, jump in jumps.items() if jump / largest >= 0.5]
        rest = [abs(jumps[v] / largest) for v in jumps if v not in inside]
        if not rest or max(rest) > MOST_ELSEWHERE or len(inside) > max(len(jumps) // 2, 1):
            continue
        score = max(rest) + 0.05 * len(inside)
        if best is None or score < best[0]:
            best = score, Part(segment, tuple(inside)), tuple(v for v in values if v not in inside)
    return best[1:] if best else (None, ())


def _picture(
    relations: Relations, union: str, params: list[Any]
) -> tuple[Picture | None, tuple[float | None, float | None]]:
    query = (
        f"select min(x) as low, max(x) as high, median(case when side = 0 then x end) as a, "
        f"median(case when side = 1 then x end) as b from ({union})"
    )
    row = relations.sql(query, params).to_pylist()[0]
    medians = (row["a"], row["b"])
    if row["low"] is None or row["low"] == row["high"]:
        return None, medians
    low, width = float(row["low"]), (float(row["high"]) - float(row["low"])) / BINS
    counted = as_arrays(
        relations.sql(
            f"select side, least(cast(floor((x - {low!r}) / {width!r}) as int), {BINS - 1}) as bin, count(*) as n "
            f"from ({union}) where x is not null group by 1, 2",
            params,
        )
    )
    bars = np.zeros((2, BINS))
    bars[counted["side"].astype(int), np.clip(counted["bin"].astype(int), 0, BINS - 1)] = counted["n"]
    bars /= np.maximum(bars.sum(axis=1, keepdims=True), 1)
    edges = tuple(low + width * i for i in range(BINS + 1))
    return Picture(edges, tuple(bars[0].tolist()), tuple(bars[1].tolist())), medians


def _examples(
    relations: Relations, union: str, params: list[Any], median: float | None, value: str | None
) -> tuple[str, ...]:
    """Three typical rollouts of A: with the value, or nearest to the median; traced ones first."""
    order = (
        "traced desc nulls last, id"
        if value is not None
        else f"traced desc nulls last, abs(x - {float(median or 0)!r}), id"
    )
    keep = "x = 1" if value is not None else "x is not null"
    query = f"select cast(id as varchar) as id from ({union}) where side = 0 and id is not null and {keep} order by {order} limit {EXAMPLES}"
    return tuple(str(i) for i in relations.sql(query, params).to_pydict()["id"])


def _since(
    relations: Relations,
    columns: RolloutColumns,
    a: Selection,
    b: Selection,
    column: str,
    value: str | None,
    part: Part | None,
) -> tuple[int | None, str, list[Any]]:
    """The last change of level up to A's first step, seen in the part, and the SELECT of the series it was seen in.

    None where A is not a range of one run's steps, or no step stands out.
    """
    first = a.steps[0]
    if first is None or a.run is None or a.run != b.run or a.split != b.split or a.where != b.where:
        return None, "", []
    level, condition = _level(columns, column, value)
    end = a.steps[1] if a.steps[1] is not None else first + LOOK_BACK
    scope, params = Selection(
        a.run, a.split, (first - LOOK_BACK, min(end, first + LOOK_BACK)), a.where, a.params
    ).condition(columns)
    if condition:
        scope += f" and {condition}"
    if part is not None:
        scope += f" and {quoted(part.column)} in ({', '.join(sql_text(v) for v in part.values)})"
    query = f"select step, avg({level}) as x, count({level}) as n from rollouts where {scope} group by step having n > 0 order by step"
    found = as_arrays(relations.sql(query, params))
    values = found["x"].astype(float)
    series = Series(
        column, value, None, found["step"].astype(np.int64), values, values, found["n"].astype(float)
    )
    if not len(values):
        return None, query, params
    changes = [c for c in change_points(series) if c.step <= first + 2 and c.p < 0.01]
    if changes:
        return changes[-1].step, query, params
    before = values[series.steps < first]
    since = int(first) if value is not None and len(before) and not before.any() else None
    return since, query, params


def _where(column: str, value: str | None, part: Part | None) -> str:
    from rollout_traces.analysis.diagnoses.base import literal

    parts = []
    if value is not None:
        parts.append(
            f"{column} {'has' if column in ('flags', 'tool_names', 'error_signatures') else '='} {literal(value)}"
        )
    if part is not None:
        parts += (
            [" or ".join(f"{part.column} = {literal(v)}" for v in part.values)]
            if len(part.values) == 1
            else ["(" + " or ".join(f"{part.column} = {literal(v)}" for v in part.values) + ")"]
        )
    return " and ".join(parts)
