"""Who carried a change: whether a few rollouts make most of the difference of a mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rollout_traces.analysis.finding import Finding
from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    as_arrays,
    known_number,
    written,
)
from rollout_traces.analysis.selections import Selection

FEW = 0.05
"""At most this part of the rollouts counts as few ..."""
MOST_OF_IT = 0.5
"""... when they make at least this part of the change."""
MOST_ROWS = 50_000
"""Rollouts of A above which nothing is said of who carried it: so many are not few steps."""


@dataclass(frozen=True)
class Carried:
    """A few rollouts that make most of a change.

    Attributes:
        column: the number that changed.
        rows: how many rollouts.
        of: rollouts of A.
        share: their share of the change of the mean.
        ids: the rollouts, the largest contribution first.
        query: a SELECT that gives the figures again.
    """

    column: str
    rows: int
    of: int
    share: float
    ids: tuple[str, ...]
    query: str = ""

    @property
    def sentence(self) -> str:
        """In words: `2 of 512 rollouts make 78 % of the change of reward`."""
        what = "the update" if self.column == "update_share" else f"the change of {self.column}"
        return f"{self.rows} of {self.of:,} rollouts make {100 * self.share:.0f} % of {what}"


def who_carried(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection, findings: Sequence[Finding]
) -> list[Carried]:
    """The changes of means that few rollouts carry, and the update if few rollouts carry it.

    A row's contribution is `(x - mean of B) / n of A`; they add up to the change of the mean.
    """
    wanted = {f.column: f.b for f in findings if f.value is None}
    if columns.has("update_share"):
        wanted["update_share"] = 0.0
    if not wanted or not columns.has("id"):
        return []
    condition, params = a.condition(columns)
    names = list(wanted)
    parts = ", ".join(f"{known_number(name)} as c{i}" for i, name in enumerate(names))
    rows = as_arrays(
        relations.sql(
            f"select cast(id as varchar) as id, {parts} from rollouts where {condition} limit {MOST_ROWS + 1}",
            params,
        )
    )
    if len(rows["id"]) > MOST_ROWS:
        return []
    found = [
        carried(name, rows["id"], rows[f"c{i}"].astype(float), wanted[name]) for i, name in enumerate(names)
    ]
    return [
        replace(each, query=_query(each, condition, params, wanted[each.column]))
        for each in found
        if each is not None
    ]


def _query(of: Carried, condition: str, params: Sequence[Any], level: float) -> str:
    """A SELECT of how many rollouts there are, and of the part that the largest contributions make."""
    moved = f"{known_number(of.column)} - {level!r}"
    query = (
        f"select {of.rows} as rollouts, count(*) as of, least(sum(moved) filter (place <= {of.rows}) / sum(moved), 1) as share from ("
        "select moved, row_number() over (order by moved*way desc) as place from ("
        f"select {moved} as moved, sign(sum({moved}) over ()) as way from rollouts where {condition} and {known_number(of.column)} is not null))"
    )
    return written(query, params)


def carried(column: str, ids: np.ndarray, values: np.ndarray, level: float) -> Carried | None:
    """The fewest rollouts that make half of the change of a mean, where these are few.

    Args:
        column: the number's name.
        ids: [N].
        values: float [N], NaN where unknown.
        level: the mean it is compared with.
    """
    known = np.isfinite(values)
    if known.sum() < 20:
        return None
    ids, moved = ids[known], values[known] - level
    change = float(moved.sum())
    if change == 0:
        return None
    order = np.argsort(-moved * np.sign(change), kind="stable")
    shares = np.cumsum(moved[order]) / change
    k = int(np.argmax(shares >= MOST_OF_IT)) + 1
    if shares[k - 1] < MOST_OF_IT or k > max(FEW * len(ids), 1) or k > 20:
        return None
    return Carried(
        column, k, len(ids), float(min(shares[k - 1], 1.0)), tuple(str(each) for each in ids[order][:k])
    )
