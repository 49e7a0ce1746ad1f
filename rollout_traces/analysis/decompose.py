"""Decomposes a change of the mean reward: its components, and the mix of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.relations import RolloutColumns, known_number, quoted, written
from rollout_traces.analysis.selections import Selection
from rollout_traces.analysis.two_sides import A, B, SideRows

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
        components: the parts by component.
        mixes: the parts by value.
        query: a SELECT of the rollouts and means of both sides.
    """

    column: str
    change: float
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
    return [replace(each, query=_query(rows.columns, a, b, each)) for each in found if each is not None]


def by_component(rows: SideRows, weights: Mapping[str, float] | None = None) -> Decomposition | None:
    """The change by reward component.

    Args:
        rows: both sides.
        weights: component -> weight, where declared.

    Returns:
        None where there are no components, or no weights that give back the rewards.
    """
    names = [name for name in rows.columns.numbers if name.startswith("component/")]
    if not names:
        return None
    reward = rows.number("reward")
    values = np.column_stack([rows.number(name) for name in names])
    known = np.isfinite(reward) & np.isfinite(values).all(axis=1)
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
    return Decomposition("component", change, components=tuple(sorted(each, key=lambda c: -abs(c.part))))


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
    return Decomposition(column, all_a - all_b, mixes=tuple(parts))


def _query(columns: RolloutColumns, a: Selection, b: Selection, of: Decomposition) -> str:
    """A SELECT of the rollouts and means that the parts are made of."""
    what = f"count({known_number('reward')}) as rollouts, avg({known_number('reward')}) as reward"
    value = "null"
    if of.components:
        names = [f"component/{part.component}" for part in of.components]
        what += "".join(f", avg({known_number(name)}) as {quoted(name)}" for name in names)
    else:
        value = quoted(of.column)
    parts, given = [], []
    for side, selection in ((A, a), (B, b)):
        condition, params = selection.condition(columns)
        parts.append(
            f"select {side} as side, {value} as value, {what} from rollouts where {condition} group by all"
        )
        given += params
    return written(" union all ".join(parts), given)
