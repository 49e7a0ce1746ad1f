"""What was written: phrases of A against B, and of winners against losers inside groups."""

from __future__ import annotations

import numpy as np

from rollout_traces.analysis.ngrams import Phrase, enriched
from rollout_traces.analysis.relations import Relations, RolloutColumns
from rollout_traces.analysis.selections import Selection
from rollout_traces.analysis.texts import read_texts

MOST = 8
MOST_COMPARED = 1_500
"""Rollouts of a side whose texts are read."""
EVERY_KEPT = "true"


def compare_texts(relations: Relations, columns: RolloutColumns, a: Selection, b: Selection) -> list[Phrase]:
    """Phrases that A's rollouts kept at random hold more often than B's."""
    sides = [read_texts(relations, columns, side, most=MOST_COMPARED) for side in (a, b)]
    if sides[0] is None or sides[1] is None:
        return []
    in_a = np.repeat([True, False], [len(side) for side in sides if side is not None])
    groups = [*sides[0].group.tolist(), *(-1 - sides[1].group).tolist()]
    return enriched(sides[0].written + sides[1].written, in_a, groups, sides[0].id + sides[1].id, MOST)


def winners_against_losers(relations: Relations, columns: RolloutColumns, a: Selection) -> list[Phrase]:
    """Phrases of the best rollouts of A's groups against the worst of the same groups.

    Conditional on the selection: best and worst ones are kept on purpose, so this says what winners of
    those groups wrote, not how often.
    """
    if not columns.has("reward"):
        return []
    found = read_texts(relations, columns, a, condition=EVERY_KEPT, most=MOST_COMPARED)
    if found is None:
        return []
    found = found.some(np.isfinite(found.reward))
    if not len(found):
        return []
    size = int(found.group.max()) + 1
    high, low = np.full(size, -np.inf), np.full(size, np.inf)
    np.maximum.at(high, found.group, found.reward)
    np.minimum.at(low, found.group, found.reward)
    best, worst = (found.reward == each[found.group] for each in (high, low))
    ends = found.some((best | worst) & (high > low)[found.group])
    won = ends.reward == high[ends.group]
    return enriched(ends.written, won, ends.group.tolist(), ends.id, MOST)
