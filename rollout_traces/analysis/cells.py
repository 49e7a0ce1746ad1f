"""Both sides counted by the values of their text columns together, in one reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.relations import Relations, RolloutColumns, as_arrays, known_number, quoted
from rollout_traces.analysis.selections import Selection, sql_union

FEW_VALUES = 16
"""A text column of at most so many values on both sides is counted together with the others."""
PROBED = 10_000
"""Rollouts of each side by which columns of many values are recognised."""
MOST_CELLS = 4096
"""Combinations of values that are counted in one reading."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Rollouts by the values of one text column.

    Attributes:
        side: int [K], 0 for A and 1 for B.
        value: object [K], None where unknown.
        n: float [K], rollouts.
        known: float [K], rollouts with a known reward.
        total: float [K], sum of those rewards.
    """

    side: np.ndarray
    value: np.ndarray
    n: np.ndarray
    known: np.ndarray
    total: np.ndarray


def read_cells(relations: Relations, columns: RolloutColumns, a: Selection, b: Selection) -> dict[str, Cells]:
    """Text column -> its cells, for the columns of at most `FEW_VALUES` values, one of them known."""
    found: dict[str, Cells] = {}
    for names in _read_together(_probed(relations, columns, a, b)):
        found.update(_counted(relations, columns, a, b, names))
    return found


def _probed(relations: Relations, columns: RolloutColumns, a: Selection, b: Selection) -> dict[str, int]:
    """Text column -> values in the first rollouts of both sides, where they are few."""
    if not columns.texts:
        return {}
    names = ", ".join(quoted(name) for name in columns.texts)
    given, parts = [], []
    for side in (a, b):
        condition, params = side.condition(columns)
        parts.append(f"(select {names} from rollouts where {condition} limit {PROBED})")
        given += params
    counts = ", ".join(f"count(distinct {quoted(name)}) as d{i}" for i, name in enumerate(columns.texts))
    [row] = relations.sql(f"select {counts} from ({' union all '.join(parts)})", given).to_pylist()
    return {name: row[f"d{i}"] for i, name in enumerate(columns.texts) if row[f"d{i}"] <= FEW_VALUES}


def _read_together(probed: Mapping[str, int]) -> list[list[str]]:
    """The columns in parts whose combinations are not too many."""
    parts: list[list[str]] = []
    size = 1
    for name, n in sorted(probed.items(), key=lambda item: item[1]):
        size *= n + 1
        if not parts or size > MOST_CELLS:
            parts.append([])
            size = n + 1
        parts[-1].append(name)
    return parts


def _counted(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection, names: Sequence[str]
) -> dict[str, Cells]:
    reward = known_number("reward") if columns.has("reward") else "cast(null as double)"
    what = [f"cast({quoted(name)} as varchar) as t{i}" for i, name in enumerate(names)]
    union, params = sql_union(columns, [(0, a), (1, b)], ", ".join([*what, f"{reward} as r"]))
    keys = ", ".join(["side", *(f"t{i}" for i in range(len(names)))])
    query = f"select {keys}, count(*) as n, count(r) as known, sum(r) as total from ({union}) group by all"
    found = as_arrays(relations.sql(query, params))
    side = found["side"].astype(int)
    sums = [np.nan_to_num(found[name].astype(float)) for name in ("n", "known", "total")]
    cells = {name: _of_column(side, found[f"t{i}"], sums) for i, name in enumerate(names)}
    return {name: each for name, each in cells.items() if 1 <= _n_values(each) <= FEW_VALUES}


def _of_column(side: np.ndarray, value: np.ndarray, sums: Sequence[np.ndarray]) -> Cells:
    index: dict[tuple[int, str | None], int] = {}
    at = np.asarray(
        [index.setdefault(key, len(index)) for key in zip(side.tolist(), value, strict=True)], int
    )
    n, known, total = (np.bincount(at, each, len(index)) for each in sums)
    values = np.asarray([v for _, v in index], dtype=object)
    return Cells(np.asarray([s for s, _ in index], int), values, n, known, total)


def _n_values(cells: Cells) -> int:
    return len(set(cells.value.tolist()) - {None})
