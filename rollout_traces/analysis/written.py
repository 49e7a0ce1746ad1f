"""What was written: phrases of A against B, and of winners against losers inside groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rollout_traces.analysis.phrase_queries import counts_query
from rollout_traces.analysis.phrases import Phrase, enriched
from rollout_traces.analysis.relations import Relations, RolloutColumns, known_number, unit, written
from rollout_traces.analysis.selections import Selection

MOST = 8
MOST_COMPARED = 1_500
"""Texts of a side that are read; of more, those with the lowest hash of their id."""


def compare_texts(relations: Relations, columns: RolloutColumns, a: Selection, b: Selection) -> list[Phrase]:
    """Phrases that A's traced rollouts hold more often than B's; those traced at random, where it is known."""
    if not columns.has("reply"):
        return []
    sides = [_texts(columns, side, columns.has("selected_by")) for side in (a, b)]
    return _enriched(
        relations,
        f"select true as in_a, reply, unit, step, reward, id from ({sides[0]}) union all select false as in_a, reply, unit, step, reward, id from ({sides[1]})",
    )


def winners_against_losers(relations: Relations, columns: RolloutColumns, a: Selection) -> list[Phrase]:
    """Phrases of the best rollouts of A's groups against the worst of the same groups.

    Conditional on the selection: best and worst ones are traced on purpose, so this says what winners of
    those groups wrote, not how often.
    """
    if not columns.has("reward", "reply"):
        return []
    best, worst = "max(reward) over (partition by step, unit)", "min(reward) over (partition by step, unit)"
    ranked = f"select reply, unit, step, reward, id, {best} as high, {worst} as low from ({_texts(columns, a, False)}) where reward is not null"
    return _enriched(
        relations,
        f"select reward = high as in_a, reply, unit, step, reward, id from ({ranked}) where high > low and reward in (high, low)",
    )


def _enriched(relations: Relations, texts: str) -> list[Phrase]:
    """Phrases of the texts with `in_a` against the others, each with its query."""
    rows = relations.sql(f"{texts} order by id").to_pylist()
    in_a = np.asarray([row["in_a"] for row in rows], bool)
    if not in_a.any() or in_a.all():
        return []
    found = enriched(
        [r["reply"] for r in rows],
        in_a,
        [(r["step"], r["unit"]) for r in rows],
        [r["id"] for r in rows],
        MOST,
    )
    return [replace(each, query=counts_query(texts, each.phrase)) for each in found]


def _texts(columns: RolloutColumns, side: Selection, only_random: bool) -> str:
    """A SELECT of the texts of a side that are read, its values written into it."""
    condition, params = side.condition(columns)
    if only_random:
        condition += " and selected_by = 'random'"
    reward = known_number("reward") if columns.has("reward") else "cast(null as double)"
    ident = columns.expression("id")
    return written(
        f"select reply, {unit(columns)} as unit, step, {reward} as reward, cast({ident} as varchar) as id "
        f"from rollouts where {condition} and reply is not null order by hash({ident}) limit {MOST_COMPARED}",
        params,
    )
