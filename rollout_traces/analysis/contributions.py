"""What a change is made of: a few rollouts that carry it, the components of the mean reward, the mix of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rollout_traces.analysis.compare import odd_p
from rollout_traces.analysis.detected_movement import Moved
from rollout_traces.analysis.diagnosis import Carrier
from rollout_traces.analysis.in_words import column_text
from rollout_traces.analysis.relations import RolloutColumns, known_value, quoted, sql_text, written
from rollout_traces.analysis.selections import RunScope, Selection
from rollout_traces.analysis.two_sides import LEFT_OUT, A, B, SideRows

FEW, FEW_SHARE = 3, 0.01
"""So many rollouts of a step count as few, or this share of them, ..."""
MOST_OF_IT = 0.25
"""... when they make at least this part of it ..."""
TIMES = 2.0
"""... and, where B is no earlier steps or too few to know their spread, so many times what as few of B's make."""
BESIDE = 0.5
"""A rollout belongs to the few when it has at least this part of the largest contribution."""
UPDATE = "update_share"
FEWEST, MOST = 20, 50_000
"""Rollouts of A: of fewer a few are always much, and more are no few steps."""


@dataclass(frozen=True)
class Carried:
    """A few rollouts that make much of a change.

    Attributes:
        column: the number that changed.
        rows: how many rollouts.
        of: rollouts of A that know it.
        share: their share of all that departs from B's mean; of the update itself, for `update_share`.
        ids: the rollouts, the largest contribution first.
        p: of so large a share at one step, by those of the steps before; 0 where those are too few or none.
        query: a SELECT of their values.
        sentence: in words: `2 of 512 rollouts make 78% of the update`.
    """

    column: str
    rows: int
    of: int
    share: float
    ids: tuple[str, ...]
    p: float = 0.0
    query: str = ""
    sentence: str = field(default="", init=False)

    def __post_init__(self) -> None:
        what = (
            "the update"
            if self.column == UPDATE
            else f"what departs from the mean of {column_text(self.column)}"
        )
        said = f"{self.rows} of {self.of:,} rollouts make {100 * self.share:.0f}% of {what}"
        object.__setattr__(self, "sentence", said)


def who_carried(rows: SideRows, a: Selection, *, neighbours: bool) -> Iterator[Carried]:
    """The numbers of which few rollouts of A make more than a quarter, and more than few did before.

    Args:
        rows: both sides, and the steps before them.
        a: A.
        neighbours: whether B is the steps before A.
    """
    for name in rows.columns.numbers:
        if (found := _carried(rows, a, name, neighbours)) is not None:
            yield found


def _carried(rows: SideRows, a: Selection, name: str, neighbours: bool) -> Carried | None:
    values = rows.number(name)
    known = np.isfinite(values)
    mine, of_b = (np.flatnonzero(known & (rows.side == side)) for side in (A, B))
    if not FEWEST <= len(mine) <= MOST or not len(of_b):
        return None
    if name != UPDATE and len(np.unique(values[mine])) < FEW:
        return None
    level = 0.0 if name == UPDATE else float(values[of_b].mean())
    parts = np.abs(values - level)
    few = max(FEW, int(FEW_SHARE * len(mine)))
    if _largest(parts[mine], few) < MOST_OF_IT:
        return None
    p = None
    if neighbours and len(np.unique(rows.step[mine])) == 1:
        compared = known & (rows.side != LEFT_OUT)
        steps = np.unique(rows.step[compared])
        shares = [_largest(parts[compared & (rows.step == step)], few) for step in steps]
        p = odd_p(np.log(np.maximum(shares, np.finfo(float).tiny)))
    of_few = _largest(parts[of_b], max(1, round(few * len(of_b) / len(mine))))
    if p is None and _largest(parts[mine], few) < TIMES * of_few:
        return None
    largest = mine[np.argsort(-parts[mine], kind="stable")[:few]]
    those = largest[parts[largest] >= BESIDE * parts[largest[0]]]
    share = float(parts[those].sum() / parts[mine].sum())
    ids = rows.ids(those)
    query = _query_of_few(rows.columns, a, name, level, ids)
    return Carried(name, len(those), len(mine), share, ids, p or 0.0, query) if share >= MOST_OF_IT else None


def _largest(parts: np.ndarray, few: int) -> float:
    """The share of the few largest of all."""
    total = float(parts.sum())
    return float(np.sort(parts)[-few:].sum()) / total if total > 0 else 0.0


def _query_of_few(
    columns: RolloutColumns, a: Selection, name: str, level: float, ids: tuple[str, ...]
) -> str:
    if not ids:
        return ""
    condition, params = a.condition(columns)
    value = known_value(columns, name)
    few = f"filter (cast(id as varchar) in ({', '.join(map(sql_text, ids))}))"
    size = f"sum(abs({value} - {level!r}))"
    what = f"count({value}) {few} as rollouts, count({value}) as of, {size} {few} / {size} as share"
    return written(f"select {what} from rollouts where {condition}", params)


def carriers_of(scope: RunScope, found: Moved) -> list[Carrier]:
    """The rows that carry a spike, those that make most of it first.

    Args:
        scope: the run.
        found: the spike.
    """
    column = found.panel.names[0].column
    key = next((name for name in ("uid", "id") if scope.columns.has(name)), None)
    if key is None or not scope.columns.has(column):
        return []
    step = int(found.panel.steps[found.template.start])
    x = known_value(scope.columns, column)
    query = (
        f"select {key} as uid, x, abs(x - middle) as size, sum(abs(x - middle)) filter (step = {step}) over () as total "
        f"from (select {key}, step, {x} as x, median({x}) over () as middle from rollouts where {scope.scope}) "
        f"where step = {step} and x is not null order by size desc limit {found.n_carriers}"
    )
    rows = scope.relations.sql(query, scope.params).to_pylist()
    return [Carrier(str(row["uid"]), step, float(row["size"] / row["total"])) for row in rows]


EXACT = 1e-4
"""Recovered weights have to give back each reward within this, relative to the rewards' size."""
DIGITS = 6
"""Decimals of a recovered weight."""
FEW_VALUES = 16
"""A column of more values on both sides is no way to part the reward."""
PARTED_BY = ("source", "engine", "stop_reason")


@dataclass(frozen=True)
class ComponentShare:
    """One component's part of the change of the mean reward.

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
    """One value's part of the change of the mean reward.

    Attributes:
        value: the value; None for unknown.
        weight_a: its share of A.
        weight_b: its share of B.
        mean_a: mean reward in A; None where A has none.
        mean_b: mean reward in B; None where B has none.
        mix: `(weight_a - weight_b) * (mean over both of its reward - overall mean)`; a value that one side alone
            has takes that side's mean.
        within: `mean of its weights * (mean_a - mean_b)`; 0 where one side has none.
    """

    value: str | None
    weight_a: float
    weight_b: float
    mean_a: float | None
    mean_b: float | None
    mix: float
    within: float


@dataclass(frozen=True)
class Decomposition:
    """The change of the mean reward, split exactly.

    Attributes:
        column: the column it was split by; `component` for the reward's components.
        change: mean of A minus mean of B.
        rows: the rollouts of A and of B that it is of.
        components: the parts by component.
        mixes: the parts by value.
        query: a SELECT of the rollouts and means of both sides.
    """

    column: str
    change: float
    rows: tuple[int, int]
    components: tuple[ComponentShare, ...] = ()
    mixes: tuple[MixShare, ...] = ()
    query: str = ""

    @property
    def mix(self) -> float:
        """The change by the mix."""
        return sum(part.mix for part in self.mixes)

    @property
    def within(self) -> float:
        """The change inside the parts."""
        return sum(part.within for part in self.mixes)


def decomposed(
    rows: SideRows,
    a: Selection,
    b: Selection,
    weights: Mapping[str, float] | None = None,
    further: Sequence[str] = (),
) -> list[Decomposition]:
    """The change of the mean reward by its components, and by source, engine and stop reason.

    Args:
        rows: both sides.
        a: one side.
        b: the other.
        weights: component -> weight, where declared; recovered by least squares where not.
        further: columns by which it is parted too.
    """
    if not rows.columns.has("reward"):
        return []
    found = [
        by_component(rows, weights),
        *(by_column(rows, name) for name in dict.fromkeys((*PARTED_BY, *further))),
    ]
    return [
        replace(each, query=_query_of_parts(rows.columns, a, b, each)) for each in found if each is not None
    ]


def by_component(rows: SideRows, weights: Mapping[str, float] | None = None) -> Decomposition | None:
    """The change by those components of the reward that some rollout of A or B knows, over the rollouts that know all of them.

    Args:
        rows: both sides.
        weights: component -> weight, where declared.

    Returns:
        None where there are no components, or no weights that give back the rewards.
    """
    compared = rows.side <= B
    of_project = [name for name in rows.columns.numbers if name.startswith("component/")]
    names = [name for name in of_project if np.isfinite(rows.number(name)[compared]).any()]
    if not names:
        return None
    reward = rows.number("reward")
    values = np.column_stack([rows.number(name) for name in names])
    known = compared & np.isfinite(reward) & np.isfinite(values).all(axis=1)
    a, b = (known & (rows.side == side) for side in (A, B))
    if not a.any() or not b.any():
        return None
    short = [name.removeprefix("component/") for name in names]
    if weights:
        given = np.asarray([weights.get(name, 0.0) for name in short])
    else:
        recovered = np.linalg.lstsq(values[known], reward[known], rcond=None)[0]
        error = float(np.sqrt(((reward - values @ recovered)[known] ** 2).mean()))
        if error > EXACT * max(float(np.sqrt((reward[known] ** 2).mean())), EXACT):
            return None
        given = np.asarray(recovered).round(DIGITS)
    means_a, means_b = values[a].mean(axis=0), values[b].mean(axis=0)
    change = float(reward[a].mean() - reward[b].mean())
    parts = given * (means_a - means_b)
    if abs(float(parts.sum()) - change) > EXACT * max(abs(change), EXACT):
        return None
    each = [
        ComponentShare(*row)
        for row in zip(short, given.tolist(), means_a.tolist(), means_b.tolist(), parts.tolist(), strict=True)
    ]
    of = int(a.sum()), int(b.sum())
    return Decomposition("component", change, of, tuple(sorted(each, key=lambda c: -abs(c.part))))


def by_column(rows: SideRows, column: str) -> Decomposition | None:
    """The change by the values of a text column: mix, and within (Kitagawa 1955).

    Args:
        rows: both sides.
        column: a text column.

    Returns:
        None where there is no such column, it has many values, or a side has no known rewards.
    """
    if column not in rows.texts:
        return None
    codes, values = rows.texts[column]
    reward = rows.number("reward")
    counts = []
    for side in (A, B):
        use = np.isfinite(reward) & (rows.side == side)
        n = np.bincount(codes[use] + 1, minlength=len(values) + 1).astype(float)
        counts.append((n, np.bincount(codes[use] + 1, reward[use], len(values) + 1)))
    (n_a, total_a), (n_b, total_b) = counts
    there = np.flatnonzero(n_a + n_b > 0)
    if not n_a.any() or not n_b.any() or not 1 <= len(there) <= FEW_VALUES:
        return None
    names = [None, *values]
    return kitagawa(column, [names[i] for i in there], n_a[there], total_a[there], n_b[there], total_b[there])


def kitagawa(
    column: str,
    values: Sequence[str | None],
    n_a: np.ndarray,
    total_a: np.ndarray,
    n_b: np.ndarray,
    total_b: np.ndarray,
) -> Decomposition:
    """Splits a difference of means into mix and within, against the overall mean.

    Args:
        column: what the values are of.
        values: [K].
        n_a: float [K], rows of A.
        total_a: float [K], their sum.
        n_b: float [K], rows of B.
        total_b: float [K], their sum.
    """
    with np.errstate(invalid="ignore"):
        own_a, own_b = total_a / np.where(n_a > 0, n_a, np.nan), total_b / np.where(n_b > 0, n_b, np.nan)
    mean_a, mean_b = np.where(n_a > 0, own_a, own_b), np.where(n_b > 0, own_b, own_a)
    weight_a, weight_b = n_a / n_a.sum(), n_b / n_b.sum()
    all_a, all_b = float(total_a.sum() / n_a.sum()), float(total_b.sum() / n_b.sum())
    mix = (weight_a - weight_b) * ((mean_a + mean_b) / 2 - (all_a + all_b) / 2) + 0.0  # no -0
    within = (weight_a + weight_b) / 2 * (mean_a - mean_b)
    parts = [
        MixShare(
            value,
            float(weight_a[i]),
            float(weight_b[i]),
            float(own_a[i]) if n_a[i] else None,
            float(own_b[i]) if n_b[i] else None,
            float(mix[i]),
            float(within[i]),
        )
        for i, value in enumerate(values)
    ]
    parts.sort(key=lambda part: -abs(part.mix + part.within))
    return Decomposition(column, all_a - all_b, (int(n_a.sum()), int(n_b.sum())), mixes=tuple(parts))


def _query_of_parts(columns: RolloutColumns, a: Selection, b: Selection, of: Decomposition) -> str:
    """A SELECT of the rollouts and means that the parts are made of."""
    reward, value, known = known_value(columns, "reward"), quoted(of.column), "true"
    what = f"count({reward}) as rollouts, avg({reward}) as reward"
    if of.components:
        means = {
            name: known_value(columns, name) for name in (f"component/{p.component}" for p in of.components)
        }
        what += "".join(f", avg({x}) as {quoted(name)}" for name, x in means.items())
        value, known = "null", " and ".join(f"{x} is not null" for x in (reward, *means.values()))
    parts, given = [], []
    for side, selection in ((A, a), (B, b)):
        condition, params = selection.condition(columns)
        parts.append(
            f"select {side} as side, {value} as value, {what} from rollouts where {condition} and {known} group by all"
        )
        given += params
    return written(" union all ".join(parts), given)
