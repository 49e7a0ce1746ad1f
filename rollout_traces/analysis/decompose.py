"""Where a change of the mean reward came from: its components, and the mix of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.cells import Cells
from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    as_arrays,
    known_number,
    quoted,
    sql_text,
    written,
)
from rollout_traces.analysis.selections import Selection, sql_union

EXACT = 1e-6
"""Recovered weights have to give back each reward within this, relative to the rewards' size."""


@dataclass(frozen=True)
class ComponentShare:
    """What one component added to the change of the mean reward.

    Attributes:
        component: its name.
        weight: its weight in the reward.
        mean_a: its mean in A.
        mean_b: its mean in B.
        part: weight times the difference of the means.
    """

    component: str
    weight: float
    mean_a: float
    mean_b: float
    part: float


@dataclass(frozen=True)
class MixShare:
    """What one value of a column added to the change of the mean reward.

    Attributes:
        value: the value; None for unknown.
        weight_a: its share of A.
        weight_b: its share of B.
        mean_a: mean reward in A, that of B where A has none.
        mean_b: mean reward in B, that of A where B has none.
        mix: `(weight_a - weight_b) * (mean over both of its reward - overall mean)`.
        within: `mean of its weights * (mean_a - mean_b)`.
    """

    value: str | None
    weight_a: float
    weight_b: float
    mean_a: float
    mean_b: float
    mix: float
    within: float


@dataclass(frozen=True)
class Decomposition:
    """The change of the mean reward, split exactly.

    Attributes:
        column: the column it was split by; `component` for the reward's components.
        change: mean of A minus mean of B.
        components: the parts by component.
        mixes: the parts by value.
        query: a SELECT that gives the parts again.
    """

    column: str
    change: float
    components: tuple[ComponentShare, ...] = ()
    mixes: tuple[MixShare, ...] = ()
    query: str = ""

    @property
    def mix(self) -> float:
        """What moved because the mix moved."""
        return sum(part.mix for part in self.mixes)

    @property
    def within(self) -> float:
        """What moved inside the parts."""
        return sum(part.within for part in self.mixes)


def by_component(
    relations: Relations,
    columns: RolloutColumns,
    a: Selection,
    b: Selection,
    weights: Mapping[str, float] | None = None,
) -> Decomposition | None:
    """The change of the mean reward by its components.

    Args:
        relations: where to read.
        columns: what `rollouts` has.
        a: one side.
        b: the other.
        weights: component -> weight, where declared; recovered by least squares where not.

    Returns:
        None where there are no components, or no weights that give back the rewards.
    """
    names = [name for name in columns.numbers if name.startswith("component/")]
    if not names or not columns.has("reward"):
        return None
    what = ", ".join(
        [f"{known_number('reward')} as r", *(f"{known_number(n)} as c{i}" for i, n in enumerate(names))]
    )
    union, params = sql_union(columns, [(0, a), (1, b)], what)
    known = " and ".join(["r is not null", *(f"c{i} is not null" for i in range(len(names)))])
    sums = ", ".join(
        ["count(*) as n", "sum(r) as r", "sum(r*r) as rr"]
        + [f"sum(c{i}) as c{i}, sum(c{i}*r) as cr{i}" for i in range(len(names))]
        + [f"sum(c{i}*c{j}) as cc{i}_{j}" for i in range(len(names)) for j in range(i, len(names))]
    )
    found = as_arrays(
        relations.sql(f"select side, {sums} from ({union}) where {known} group by side order by side", params)
    )
    if len(found["side"]) < 2:
        return None
    given = (
        [weights.get(name.removeprefix("component/"), 0.0) for name in names]
        if weights
        else _recovered(found, len(names))
    )
    if given is None:
        return None
    n = found["n"].astype(float)
    parts = []
    for i, name in enumerate(names):
        mean_a, mean_b = (found[f"c{i}"] / n).tolist()
        parts.append(
            ComponentShare(
                name.removeprefix("component/"), given[i], mean_a, mean_b, given[i] * (mean_a - mean_b)
            )
        )
    change = float(found["r"][0] / n[0] - found["r"][1] / n[1])
    if abs(sum(part.part for part in parts) - change) > 1e-4 * max(abs(change), 0.01):
        return None
    rows = " union all ".join(
        f"select {sql_text(part.component)} as component, {part.weight!r} as weight, avg(c{i}) filter (side = 1) as before, "
        f"avg(c{i}) filter (side = 0) as after, {part.weight!r}*(avg(c{i}) filter (side = 0) - avg(c{i}) filter (side = 1)) as part "
        "from both_sides"
        for i, part in enumerate(parts)
    )
    names_only = ", ".join(["side", *(f"c{i}" for i in range(len(parts)))])
    query = written(f"with both_sides as (select {names_only} from ({union}) where {known}) {rows}", params)
    return Decomposition(
        "component", change, components=tuple(sorted(parts, key=lambda each: -abs(each.part))), query=query
    )


def _recovered(found: Mapping[str, np.ndarray], k: int) -> list[float] | None:
    """Weights by least squares through both sides, None where they do not give back the rewards."""
    gram = np.empty((k, k))
    for i in range(k):
        for j in range(i, k):
            gram[i, j] = gram[j, i] = float(found[f"cc{i}_{j}"].sum())
    right = np.asarray([float(found[f"cr{i}"].sum()) for i in range(k)])
    weights = np.linalg.lstsq(gram, right, rcond=1e-10)[0]
    total, n = float(found["rr"].sum()), float(found["n"].sum())
    error = total - float(2 * weights @ right - weights @ gram @ weights)
    if error > EXACT**2 * 1e4 * max(total, n * 1e-6):
        return None
    return [round(float(w), 6) for w in weights.tolist()]


def by_column(
    relations: Relations,
    columns: RolloutColumns,
    a: Selection,
    b: Selection,
    column: str,
    cells: Cells | None = None,
) -> Decomposition | None:
    """The change of the mean reward by the values of a text column: mix, and within (Kitagawa 1955).

    A value that only one side has takes that side's mean for both.

    Args:
        relations: where to read.
        columns: what `rollouts` has.
        a: one side.
        b: the other.
        column: a text column.
        cells: both sides by its values, where they were read already.

    Returns:
        None where there is no reward, no such column, or a side without known rewards.
    """
    if column not in columns.texts or not columns.has("reward"):
        return None
    union, params = sql_union(
        columns, [(0, a), (1, b)], f"{known_number('reward')} as r, {quoted(column)} as v"
    )
    query = (
        f"select side, v, count(*) as n, sum(r) as total from ({union}) where r is not null group by side, v"
    )
    if cells is None:
        found = as_arrays(relations.sql(query, params))
        side, value, n, total = (found[name] for name in ("side", "v", "n", "total"))
    else:
        known = cells.known > 0
        side, value, n, total = (each[known] for each in (cells.side, cells.value, cells.known, cells.total))
    parts = kitagawa(column, side, value.tolist(), n.astype(float), total.astype(float))
    return None if parts is None else replace(parts, query=written(_parts_query(query), params))


def _parts_query(cells: str) -> str:
    """A SELECT of what `kitagawa` computes of cells with `side`, `v`, `n` and `total`."""
    a, b = "filter (side = 0)", "filter (side = 1)"
    return f"""
        with cells as ({cells}),
        whole as (
            select sum(n) {a} as all_a, sum(n) {b} as all_b,
                (sum(total) {a} / sum(n) {a} + sum(total) {b} / sum(n) {b}) / 2 as overall from cells),
        both_sides as (
            select v, coalesce(sum(n) {a}, 0) / any_value(all_a) as share_a, coalesce(sum(n) {b}, 0) / any_value(all_b) as share_b,
                coalesce(sum(total) {a} / sum(n) {a}, sum(total) {b} / sum(n) {b}) as mean_a,
                coalesce(sum(total) {b} / sum(n) {b}, sum(total) {a} / sum(n) {a}) as mean_b, any_value(overall) as overall
            from cells, whole group by v)
        select v as value, share_b, share_a, mean_b, mean_a, (share_a - share_b)*((mean_a + mean_b) / 2 - overall) as mix,
            (share_a + share_b) / 2*(mean_a - mean_b) as within from both_sides order by abs(mix + within) desc"""


def kitagawa(
    column: str, side: np.ndarray, value: Sequence[str | None], n: np.ndarray, total: np.ndarray
) -> Decomposition | None:
    """Splits a difference of means into mix and within, against the overall mean.

    Args:
        column: what the values are of.
        side: int [K], 0 for A and 1 for B.
        value: [K].
        n: float [K], rows.
        total: float [K], sum over the rows.
    """
    rows = [float(n[side == which].sum()) for which in (0, 1)]
    if not all(rows):
        return None
    cells = {(int(s), v): (float(k), float(t)) for s, v, k, t in zip(side, value, n, total, strict=True)}
    means = [float(total[side == which].sum()) / rows[which] for which in (0, 1)]
    overall = (means[0] + means[1]) / 2
    parts = []
    for v in dict.fromkeys(value):
        (n_a, t_a), (n_b, t_b) = cells.get((0, v), (0.0, 0.0)), cells.get((1, v), (0.0, 0.0))
        mean_a = t_a / n_a if n_a else t_b / n_b
        mean_b = t_b / n_b if n_b else mean_a
        weight_a, weight_b = n_a / rows[0], n_b / rows[1]
        mix = (weight_a - weight_b) * ((mean_a + mean_b) / 2 - overall)
        parts.append(
            MixShare(
                v, weight_a, weight_b, mean_a, mean_b, mix, (weight_a + weight_b) / 2 * (mean_a - mean_b)
            )
        )
    parts.sort(key=lambda part: -abs(part.mix + part.within))
    return Decomposition(column, means[0] - means[1], mixes=tuple(parts))
