"""Carriers of a change: whether a few rollouts make most of what departs from B's mean, or of a spike of a series."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rollout_traces.analysis.compare import odd_p
from rollout_traces.analysis.detected_movement import Moved
from rollout_traces.analysis.diagnosis import Carrier
from rollout_traces.analysis.in_words import column_text
from rollout_traces.analysis.relations import RolloutColumns, known_number, sql_text, written
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
    query = _query(rows.columns, a, name, level, ids)
    return Carried(name, len(those), len(mine), share, ids, p or 0.0, query) if share >= MOST_OF_IT else None


def _largest(parts: np.ndarray, few: int) -> float:
    """The share of the few largest of all."""
    total = float(parts.sum())
    return float(np.sort(parts)[-few:].sum()) / total if total > 0 else 0.0


def _query(columns: RolloutColumns, a: Selection, name: str, level: float, ids: tuple[str, ...]) -> str:
    if not ids:
        return ""
    condition, params = a.condition(columns)
    value, few = known_number(name), f"filter (cast(id as varchar) in ({', '.join(map(sql_text, ids))}))"
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
    x = known_number(column)
    query = (
        f"select {key} as uid, x, abs(x - middle) as size, sum(abs(x - middle)) filter (step = {step}) over () as total "
        f"from (select {key}, step, {x} as x, median({x}) over () as middle from rollouts where {scope.scope}) "
        f"where step = {step} and x is not null order by size desc limit {found.n_carriers}"
    )
    rows = scope.relations.sql(query, scope.params).to_pylist()
    return [Carrier(str(row["uid"]), step, float(row["size"] / row["total"])) for row in rows]
