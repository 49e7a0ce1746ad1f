"""Texts that were written, of rollouts that were kept at random, in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.relations import (
    KEPT_AT_RANDOM,
    Relations,
    RolloutColumns,
    as_arrays,
    known_reward,
    unit_over_steps,
)
from rollout_traces.analysis.selections import Selection

MOST_TEXTS = 4_000
"""Rollouts whose texts are read at once; of more, as many of each step, those with the lowest hash of their uid."""
READ = ("written", "tool_results", "prompt", "system", "tools", "ground_truth")
"""KeptTexts of a rollout, as `texts` of the relations gives them."""
EVERY_KEPT = "true"


@dataclass(frozen=True, eq=False)
class KeptTexts:
    """Kept rollouts with their texts, by step.

    Attributes:
        uid: [N].
        id: [N], what opens each.
        step: int [N].
        group: int [N], the same for one group of one step.
        prompt_key: object [N], None where unknown.
        parts: text column -> object [N], None where unknown.
        reward: float [N], NaN where unknown.
        weight: float [N], 1 / the probability of having been kept.
        texts: name of `READ` -> object [N], None where unknown.
    """

    uid: list[str]
    id: list[str]
    step: np.ndarray
    group: np.ndarray
    prompt_key: np.ndarray
    parts: dict[str, np.ndarray]
    reward: np.ndarray
    weight: np.ndarray
    texts: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.uid)

    @property
    def written(self) -> list[str]:
        """Text of the policy; empty where it is unknown."""
        return [text or "" for text in self.texts["written"].tolist()]

    def some(self, which: np.ndarray) -> KeptTexts:
        """Takes those at some positions, or where a mask holds."""
        at = np.flatnonzero(which) if which.dtype == bool else which
        return KeptTexts(
            [self.uid[i] for i in at],
            [self.id[i] for i in at],
            self.step[at],
            self.group[at],
            self.prompt_key[at],
            {name: each[at] for name, each in self.parts.items()},
            self.reward[at],
            self.weight[at],
            {name: each[at] for name, each in self.texts.items()},
        )


def read_texts(
    relations: Relations,
    columns: RolloutColumns,
    which: Selection,
    *,
    condition: str = KEPT_AT_RANDOM,
    most: int = MOST_TEXTS,
    parts: Sequence[str] = (),
) -> KeptTexts | None:
    """The texts of a selection's kept rollouts; None where no text is to be had: unobserved.

    Args:
        relations: where to read.
        columns: what `rollouts` has.
        which: the rollouts.
        condition: which of them; those kept at random, which alone may stand for all.
        most: how many at most.
        parts: text columns that are read beside.
    """
    ask = getattr(relations, "texts", None)
    if ask is None or not columns.has("traced", "selected_by", "uid"):
        return None
    scope, params = which.condition(columns)
    inner = f"""
        select coalesce(uid, cast({columns.expression("id")} as varchar)) as uid,
            cast({columns.expression("id")} as varchar) as id, step, {unit_over_steps(columns, one_run=False)} as unit,
            {columns.expression("prompt_key")} as prompt_key, {known_reward(columns)} as reward,
            {" ".join(f"cast({columns.expression(name)} as varchar) as p{i}," for i, name in enumerate(parts))}
            coalesce(1 / nullif({columns.expression("selected_probability")}, 0), 1) as weight,
            row_number() over (partition by step order by hash(uid)) as place, count(distinct step) over () as steps
        from rollouts where {scope} and traced and step is not null and {condition}"""
    found = as_arrays(
        relations.sql(
            f"select * from ({inner}) where place <= greatest({int(most)} // steps, 1) order by step, uid",
            params,
        )
    )
    if not len(found["step"]):
        return None
    uids = found["uid"].tolist()
    given = ask(uids)
    place = {uid: at for at, uid in enumerate(given.column("uid").to_pylist())}
    at = np.asarray([place.get(uid, -1) for uid in uids])
    there = np.flatnonzero(at >= 0)
    if not len(there):
        return None
    values = {name: np.asarray(given.column(name).to_pylist(), object)[at[there]] for name in READ}
    groups = np.unique(found["unit"][there], return_inverse=True)[1]
    return KeptTexts(
        [uids[i] for i in there],
        [str(found["id"][i] or uids[i]) for i in there],
        found["step"][there].astype(np.int64),
        groups,
        found["prompt_key"][there],
        {name: found[f"p{i}"][there] for i, name in enumerate(parts)},
        found["reward"][there].astype(float),
        found["weight"][there].astype(float),
        values,
    )
