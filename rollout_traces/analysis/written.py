"""What was written: phrases of A against B, and of winners against losers inside groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_traces.analysis.phrases import Phrase, enriched
from rollout_traces.analysis.relations import Relations, RolloutColumns, known_number, unit
from rollout_traces.analysis.selections import Selection

MOST = 8
MOST_COMPARED = 1_500
"""Texts of a side that are read; of more, those with the lowest hash of their id."""


def compare_texts(relations: Relations, columns: RolloutColumns, a: Selection, b: Selection) -> list[Phrase]:
    """Phrases that A's traced rollouts hold more often than B's; those traced at random, where it is known."""
    rows = [*_texts(relations, columns, a, True), *_texts(relations, columns, b, False)]
    in_a = np.asarray([row["in_a"] for row in rows], bool)
    if not in_a.any() or in_a.all():
        return []
    return enriched(
        [r["reply"] for r in rows], in_a, [r["unit"] for r in rows], [r["id"] for r in rows], MOST
    )


def winners_against_losers(relations: Relations, columns: RolloutColumns, a: Selection) -> list[Phrase]:
    """Phrases of the best rollouts of A's groups against the worst of the same groups.

    Conditional on the selection: best and worst ones are traced on purpose, so this says what winners of
    those groups wrote, not how often.
    """
    if not columns.has("reward"):
        return []
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in _texts(relations, columns, a, True, everything=True):
        if row["reward"] is not None:
            groups.setdefault(row["unit"], []).append(row)
    chosen: list[dict[str, Any]] = []
    won: list[bool] = []
    for rows in groups.values():
        high, low = max(r["reward"] for r in rows), min(r["reward"] for r in rows)
        if high > low:
            pair = [r for r in rows if r["reward"] in (high, low)]
            chosen += pair
            won += [r["reward"] == high for r in pair]
    if not chosen:
        return []
    in_a = np.asarray(won, bool)
    return enriched(
        [r["reply"] for r in chosen], in_a, [r["unit"] for r in chosen], [r["id"] for r in chosen], MOST
    )


def _texts(
    relations: Relations, columns: RolloutColumns, side: Selection, in_a: bool, *, everything: bool = False
) -> list[dict[str, Any]]:
    if not columns.has("reply"):
        return []
    condition, params = side.condition(columns)
    if not everything and columns.has("selected_by"):
        condition += " and selected_by = 'random'"
    reward = known_number("reward") if columns.has("reward") else "cast(null as double)"
    query = (
        f"select reply, {unit(columns)} as unit, step, {reward} as reward, cast({columns.expression('id')} as varchar) as id "
        f"from rollouts where {condition} and reply is not null order by hash({columns.expression('id')}) limit {MOST_COMPARED}"
    )
    rows = relations.sql(query, params).to_pylist()
    return [{**row, "unit": (row["step"], row["unit"]), "in_a": in_a} for row in rows]
