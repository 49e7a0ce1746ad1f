"""Whose rollouts something is seen in: the value of a text column that nearly all of them have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.diagnoses.base import percent
from rollout_traces.analysis.movement import Part
from rollout_traces.analysis.relations import as_arrays, quoted, sql_text
from rollout_traces.analysis.series import RunSeries

NEARLY_ALL = 0.8
"""Share of the rollouts with it that have the value ..."""
A_FEW = 0.4
"""... which at most this share of all rollouts has."""
FEWEST = 10


@dataclass(frozen=True)
class Holders:
    """Whose rollouts something is seen in.

    Attributes:
        text: in words, to go on with a sentence; empty where it is nobody's.
        part: the part of the rollouts.
        queries: a SELECT of the shares that are said.
    """

    text: str = ""
    part: Part | None = None
    queries: tuple[str, ...] = ()


def whose(run: RunSeries, condition: str, step: int) -> Holders:
    """The value of a text column that nearly all rollouts with something have, and few of the others.

    Args:
        run: the run.
        condition: SQL for the rollouts with it.
        step: they are looked at from this step on.
    """
    best: tuple[float, str, str] | None = None
    for name in (*run.segments, *run.further):
        column = quoted(name)
        found = as_arrays(
            run.relations.sql(
                f"select {column} as v, count(*) as n, count(*) filter ({condition}) as hits from rollouts "
                f"where {run.with_values(run.scope)} and step >= {step} group by 1"
            )
        )
        n, hits = found["n"].astype(float), found["hits"].astype(float)
        if hits.sum() < FEWEST:
            continue
        top = int(np.argmax(hits))
        share, of_all = hits[top] / hits.sum(), n[top] / n.sum()
        sure = share >= NEARLY_ALL and of_all <= A_FEW and share >= 2 * of_all
        if sure and found["v"][top] is not None and (best is None or share / of_all > best[0]):
            best = share / of_all, name, str(found["v"][top])
    if best is None:
        return Holders()
    _, name, value = best
    query = (
        f"select avg(cast(held as int)) filter (has) as of_them, avg(cast(held as int)) as of_all, count(*) filter (has) as rollouts "
        f"from (select coalesce({quoted(name)} = {sql_text(value)}, false) as held, coalesce({condition}, false) as has "
        f"from rollouts where {run.with_values(run.scope)} and step >= {step})"
    )
    row = run.relations.sql(query).to_pylist()[0]
    text = (
        f", {percent(row['of_them'])} of them on {name} {value}, which {percent(row['of_all'])} of all have"
    )
    return Holders(text, Part(name, (value,)), (query,))
