"""The SELECT that comes with a finding: its levels and counts on both sides, every value written into it."""

from __future__ import annotations

from rollout_traces.analysis.columns_compared import TEXT_ALONE
from rollout_traces.analysis.finding import Finding, PartOfRows
from rollout_traces.analysis.relations import RolloutColumns, known_number, quoted, sql_text, written
from rollout_traces.analysis.selections import Selection
from rollout_traces.flags import needs_text


def level_query(columns: RolloutColumns, a: Selection, b: Selection, finding: Finding) -> str:
    """A SELECT of level and rollouts of both sides, side 0 for A and 1 for B; then of each inside the part and elsewhere.

    Args:
        columns: what `rollouts` has.
        a: one side.
        b: the other.
        finding: what differs.
    """
    x, w, condition = _level(columns, finding.column, finding.value)
    part = finding.detail.part if finding.detail is not None else None
    where, given = [], []
    for side, selection in ((0, a), (1, b)):
        scope, params = selection.condition(columns)
        where.append(
            f"select {side} as side, {x} as x, {w} as w{_inside(part)} from rollouts where {scope} and {condition}"
        )
        given += params
    levels = "sum(x*w) / sum(w) filter (x is not null) as level, sum(x) as total, count(x) as rollouts"
    rows = " union all ".join(where)
    if part is None:
        return written(f"select side, {levels} from ({rows}) group by side order by side", given)
    return written(
        f"select side, part, {levels} from ({rows}) group by grouping sets ((side), (side, part)) "
        "having grouping(part) = 1 or part is not null order by part desc nulls first, side",
        given,
    )


def _inside(part: PartOfRows | None) -> str:
    if part is None:
        return ""
    name, values = quoted(part.column), ", ".join(map(sql_text, part.values))
    return (
        f", case when {name} in ({values}) then 'inside' when {name} is not null then 'elsewhere' end as part"
    )


def _level(columns: RolloutColumns, column: str, value: str | None) -> tuple[str, str, str]:
    """SQL of what is averaged, of what each rollout weighs, and which rollouts know it."""
    if value is None:
        return known_number(column), "1", "true"
    name = quoted(column)
    if column not in columns.tags:
        return f"cast({name} = {sql_text(value)} as int)", "1", f"{name} is not null"
    x = f"cast(list_contains({name}, {sql_text(value)}) as int)"
    texted = column in TEXT_ALONE or (column == "flags" and needs_text(value))
    if not texted or not columns.has("traced", "selected_by"):
        return x, "1", f"{name} is not null"
    known = columns.has("selected_probability")
    weight = "coalesce(1 / nullif(selected_probability, 0), 1)" if known else "1"
    return x, weight, f"{name} is not null and traced and selected_by = 'random'"
