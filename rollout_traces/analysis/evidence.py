"""Evidence of one finding: its part, rollouts that show it, both distributions, and the SELECT of its levels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.curves import (
    HEAVIEST_COLUMN,
    HEAVIEST_SQL,
    STEP_SIZE,
    UNKNOWN,
    Part,
    SeriesName,
    is_size,
)
from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.finding import Detail, Finding, PartOfRows, Picture
from rollout_traces.analysis.in_words import TAGS, literal, value_filter
from rollout_traces.analysis.parts import BOUND, REMAINS
from rollout_traces.analysis.relations import (
    KEPT_AT_RANDOM,
    RolloutColumns,
    known_text,
    known_value,
    quoted,
    sql_text,
    written,
)
from rollout_traces.analysis.run_rows import OF_TRACES
from rollout_traces.analysis.selections import RunScope, Selection
from rollout_traces.analysis.two_sides import COUNTED, A, B, SideRows, needs_texts
from rollout_traces.flags import needs_text

BINS = 20
"""Bars of a picture."""
EXAMPLES = 3
FEWEST = 3
"""Rollouts that a part of a side needs."""
TINY = np.finfo(float).tiny


@dataclass(frozen=True, eq=False)
class Measured:
    """One number, or the presence of one value, in rollouts of both sides.

    Attributes:
        x: float [N], NaN where unknown.
        weight: float [N], what each counts.
        side: int [N].
        group: int [N].
    """

    x: np.ndarray
    weight: np.ndarray
    side: np.ndarray
    group: np.ndarray

    def of(self, rows: np.ndarray) -> Measured:
        """Some rollouts that know it; bool [N]."""
        there = rows & np.isfinite(self.x)
        return Measured(self.x[there], self.weight[there], self.side[there], self.group[there])

    @property
    def mean(self) -> float:
        """Over rollouts that know it, NaN for none."""
        return float(np.average(self.x, weights=self.weight)) if len(self.x) else float("nan")

    @property
    def jump(self) -> tuple[float, float]:
        """A's mean minus B's, and its error over groups; infinite with one group."""
        difference, variance = 0.0, 0.0
        for side, sign in ((A, 1), (B, -1)):
            mine = self.of(self.side == side)
            difference += sign * mine.mean
            residual = np.bincount(mine.group, mine.weight * (mine.x - mine.mean))
            groups = len(np.unique(mine.group))
            variance += (
                (residual @ residual) / mine.weight.sum() ** 2 * groups / (groups - 1)
                if groups > 1
                else np.inf
            )
        return difference, float(np.sqrt(variance))


def measured(rows: SideRows, column: str, value: str | None) -> Measured:
    """Reads the column of a finding in every rollout."""
    if value is None:
        return Measured(rows.number(column), np.ones(len(rows.side)), rows.side, rows.group)
    known, at, codes, values = rows.values(column)
    use, weight = rows.weighed(column, value)
    x = np.where(known & use, 0.0, np.nan)
    mine = at[codes == values.index(value)]
    x[mine[use[mine]]] = 1.0
    return Measured(x, weight, rows.side, rows.group)


def detail_of(rows: SideRows, finding: Finding) -> Detail:
    """The part, examples and distributions of one finding.

    Args:
        rows: both sides.
        finding: what differs.
    """
    of = measured(rows, finding.column, finding.value)
    part, inside = _part(rows, of) if finding.part is None else (finding.part, _in(rows, finding.part))
    within = [of.of(inside & (rows.side == side)) for side in (A, B)]
    outside = of.of(~inside & (rows.side == A) & ((rows.parts[part.column][0] if part else rows.side) >= 0))
    medians: list[float | None] = [None, None]
    picture = None
    if finding.value is None:
        sides = (
            [each.x for each in within] if finding.part else [of.of(rows.side == side).x for side in (A, B)]
        )
        medians = [float(np.median(x)) for x in sides]
        picture = _picture(*sides)
    return Detail(
        part=part,
        a=within[0].mean,
        b=within[1].mean,
        n_a=len(within[0].x),
        n_b=len(within[1].x),
        elsewhere=outside.mean if len(outside.x) else None,
        elsewhere_rows=len(outside.x) if finding.value is None else int((outside.x == 1).sum()),
        elsewhere_n=len(outside.x),
        median_a=medians[0],
        median_b=medians[1],
        examples=_examples(rows, of, inside & (rows.side == A), finding, within[1].mean),
        picture=picture,
        where=_where(finding, part),
    )


def _in(rows: SideRows, part: PartOfRows) -> np.ndarray:
    """bool [N]: the rollouts of a part."""
    codes, values = rows.parts[part.column]
    return np.isin(codes, [values.index(value) for value in part.values])


def _part(rows: SideRows, of: Measured) -> tuple[PartOfRows | None, np.ndarray]:
    """The values of one column that hold the difference, None for all, and which rollouts have them; bool [N]."""
    best: tuple[float, PartOfRows | None, np.ndarray] = (REMAINS, None, np.ones(len(rows.side), bool))
    known = np.isfinite(of.x) & (rows.side <= B)
    for column, (codes, values) in rows.parts.items():
        there = known & (codes >= 0)
        place = rows.side[there] * len(values) + codes[there]
        n, weight, total = (
            np.bincount(place, each, 2 * len(values)).reshape(2, -1)
            for each in (np.ones(len(place)), of.weight[there], (of.weight * of.x)[there])
        )
        enough = np.flatnonzero(n.min(axis=0) >= FEWEST)
        jumps = dict(
            zip(enough.tolist(), (total / np.maximum(weight, TINY))[:, enough].T @ (1, -1), strict=True)
        )
        largest = max(jumps.values(), key=abs, default=0.0)
        chosen = [code for code, jump in jumps.items() if largest and jump / largest >= REMAINS]
        if len(chosen) == len(jumps) or len(chosen) > max(len(jumps) // 2, 1):
            continue
        inside = np.isin(codes, chosen)
        jump, (rest, error) = of.of(inside).jump[0], of.of(np.isin(codes, [*jumps]) & ~inside).jump
        remains = (abs(rest) + BOUND * error) / abs(jump) if jump else np.inf
        if remains < best[0]:
            best = remains, PartOfRows(column, tuple(sorted(values[code] for code in chosen))), inside
    return best[1], best[2]


def _picture(a: np.ndarray, b: np.ndarray) -> Picture | None:
    low, high = min(a.min(), b.min()), max(a.max(), b.max())
    if low == high:
        return None
    edges = np.linspace(low, high, BINS + 1)
    bars = [np.histogram(each, edges)[0] / len(each) for each in (a, b)]
    return Picture(tuple(edges.tolist()), tuple(bars[0].tolist()), tuple(bars[1].tolist()))


def _examples(
    rows: SideRows, of: Measured, there: np.ndarray, finding: Finding, before: float
) -> tuple[str, ...]:
    """Three rollouts that show a difference, traced ones first, each of another group where there are so many.

    Of a share that rose those that have the value, of one that fell those that lack it; of a number those beyond B's
    mean on the side to which it moved, the nearest to their own median first.

    Args:
        rows: both sides.
        of: what differs, in each.
        there: bool [N], A's rollouts in which it is.
        finding: what differs.
        before: level of B among these.
    """
    known = there & np.isfinite(of.x)
    up = finding.a > finding.b
    if finding.value is not None:
        shown = known & (of.x == up)
    else:
        shown = known & ((of.x > before) if up else (of.x < before))
    places = np.flatnonzero(shown if shown.any() else known)
    if not len(places):
        return ()
    x = of.x[places]
    ordered = places[np.lexsort((np.abs(x - np.median(x)), ~rows.traced[places]))]
    first_of_group = np.zeros(len(ordered), bool)
    first_of_group[np.unique(rows.group[ordered], return_index=True)[1]] = True
    untraced = ~rows.traced[ordered]
    return rows.ids(ordered[np.lexsort((~first_of_group, untraced))][:EXAMPLES])


def _where(finding: Finding, part: PartOfRows | None) -> str:
    """A filter for the rollouts of a finding."""
    parts = [] if finding.value is None else [value_filter(finding.column, finding.value)]
    if part is not None:
        each = " or ".join(f"{part.column} = {literal(v)}" for v in part.values)
        parts.append(each if len(part.values) == 1 else f"({each})")
    return " and ".join(parts)


def part_query(columns: RolloutColumns, a: Selection, b: Selection, finding: Finding) -> str:
    """The same SELECT for a finding that is compared in a part alone."""
    part = finding.part
    assert part is not None
    condition = f"{quoted(part.column)} in ({', '.join(map(sql_text, part.values))})"
    a, b = (
        replace(each, where=f"({each.where}) and {condition}" if each.where else condition) for each in (a, b)
    )
    return level_query(columns, a, b, replace(finding, part=None, detail=None))


def level_query(columns: RolloutColumns, a: Selection, b: Selection, finding: Finding) -> str:
    """A SELECT of level and rollouts of both sides, side 0 for A and 1 for B; then of each inside the part and elsewhere.

    Args:
        columns: what `rollouts` has.
        a: one side.
        b: the other.
        finding: what differs.
    """
    name, value = quoted(finding.column), finding.value
    x, weight, condition = known_value(columns, finding.column), "1", "true"
    if value is not None:
        holds = (
            f"list_contains({name}, {sql_text(value)})"
            if finding.column in columns.tags
            else f"{known_text(finding.column)} = {sql_text(value)}"
        )
        x, condition = f"cast({holds} as int)", f"{known_text(finding.column)} is not null"
        if COUNTED.get(finding.column) in columns.numbers and columns.has("traced"):
            number = quoted(COUNTED[finding.column])
            x, condition = f"coalesce({x}, 0)", f"({condition} or traced and {number} is not null)"
        if needs_texts(columns, finding.column, value):
            chance = columns.expression("selected_probability")
            weight, condition = (
                f"coalesce(1 / nullif({chance}, 0), 1)",
                f"{condition} and {KEPT_AT_RANDOM}",
            )
    part = finding.detail.part if finding.detail is not None else None
    place = "null"
    if part is not None:
        column, values = quoted(part.column), ", ".join(map(sql_text, part.values))
        place = (
            f"case when {column} in ({values}) then 'inside' when {column} is not null then 'elsewhere' end"
        )
    rows, given = [], []
    for side, selection in ((A, a), (B, b)):
        scope, params = selection.condition(columns)
        rows.append(
            f"select {side} as side, {x} as x, {weight} as w, {place} as part from rollouts where {scope} and {condition}"
        )
        given += params
    return written(
        "select side, part, sum(x*w) / sum(w) filter (x is not null) as level, sum(x) as total, count(x) as rollouts "
        f"from ({' union all '.join(rows)}) group by grouping sets ((side), (side, part)) "
        "having grouping(part) = 1 or part is not null order by part desc nulls first, side",
        given,
    )


def level_queries(scope: RunScope, entry: Diagnosis) -> tuple[str, ...]:
    """A SELECT for each series of an entry that is one of rows or logged.

    Args:
        scope: the run.
        entry: what is said of it.
    """
    return tuple(query for name in entry.series if (query := _query(scope, name, entry.part or ())))


def _query(scope: RunScope, name: SeriesName, part: Part) -> str:
    if is_size(name):
        split = name.column.removesuffix(STEP_SIZE.column).rstrip("/") or scope.split
        return RunScope(scope.relations, scope.run, split, scope.columns).by_step("count(*) as level")
    if name.statistic == "logged":
        return _logged(scope, name.column)
    if name.column == HEAVIEST_COLUMN:
        return scope.by_step(f"{HEAVIEST_SQL} as level, count(update_share) as rollouts", "update_share >= 0")
    split, column = scope.split, name.column
    if column.startswith("eval") and "/" in column:
        split, column = column.split("/", 1)
    if name.value == UNKNOWN and not scope.columns.has(column):
        return _logged(scope, name.column)
    if name.statistic not in ("mean", "size", "share") or not scope.columns.has(column):
        return ""
    of = RunScope(scope.relations, scope.run, split, scope.columns)
    conditions = [
        f"{quoted(c)} in ({', '.join(sql_text(v) for n, v in part if n == c)})"
        for c in dict.fromkeys(c for c, _ in part)
    ]
    if column in OF_TRACES or (column == "flags" and needs_text(name.value or "")):
        conditions.append(KEPT_AT_RANDOM)
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
    if name.statistic == "size":
        return f"abs({known_value(scope.columns, column)})"
    if name.value is None:
        return known_value(scope.columns, column)
    if name.value == UNKNOWN and column in scope.columns.numbers:
        return f"cast({known_value(scope.columns, column)} is null as int)"
    value = sql_text(name.value)
    if column in OF_TRACES:  # a decoded rollout without a tool, or without an error, has none stored
        return f"cast(coalesce(list_contains({quoted(column)}, {value}), false) as int)"
    if column in TAGS or column in scope.columns.tags:
        return f"cast(list_contains({quoted(column)}, {value}) as int)"
    return f"cast({known_text(column)} = {value} as int)"
