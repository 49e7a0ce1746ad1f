"""The numbers that the trainer logged, at A's steps against B's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollout_traces.analysis.compare import Effect, cliffs_delta, step_p
from rollout_traces.analysis.finding import Finding
from rollout_traces.analysis.relations import Relations, as_arrays, sql_text
from rollout_traces.analysis.selections import Selection

KEPT_IN_LEDGER = ("rollout/", "eval-rollout/")
"""What begins the numbers that are made of the rollouts themselves, which are compared as columns."""
FEWEST = 3
"""Values on either side, where neither is a single step."""


def compare_logged(
    relations: Relations, a: Selection, b: Selection, before: tuple[int, int] | None
) -> Iterator[Finding]:
    """Every logged number compared.

    A single step is measured by how far each earlier step was from the ten before it, on a log scale where all
    values are positive. Ranges are compared by rank; their values follow each other, so that fewer count:
    n (1 - r) / (1 + r), r the autocorrelation at lag 1.

    Args:
        relations: where to read.
        a: A, of one run.
        b: B, of one run.
        before: first and last of the steps before A that tell how far steps differ; None where B is no earlier steps.
    """
    if a.run is None or b.run is None:
        return
    series_b = _read(relations, b.run, b.steps)
    earlier = _read(relations, a.run, before) if before is not None else {}
    for key, (steps, values) in _read(relations, a.run, a.steps).items():
        others = series_b.get(key)
        if others is None:
            continue
        if before is not None and len(values) == 1:
            effect = _at_a_step(values, others[1], earlier[key][1] if key in earlier else np.empty(0))
        else:
            effect = _between_ranges(values, others[1])
        if effect is not None:
            a_mean, b_mean = float(values.mean()), float(others[1].mean())
            n_a, n_b = len(values), len(others[1])
            query = _query(key, ((a.run, steps), (b.run, others[0])))
            yield Finding(key, None, a_mean, b_mean, n_a, n_b, n_a, n_b, effect, logged=True, query=query)


def _at_a_step(now: np.ndarray, neighbours: np.ndarray, earlier: np.ndarray) -> Effect | None:
    whole = np.concatenate([earlier, neighbours, now])
    p = step_p(np.log(whole) if (whole > 0).all() else whole)
    if p is None:
        return None
    delta = float(np.sign(now[0] - neighbours).mean())
    return Effect(delta, delta, delta, p)


def _between_ranges(a: np.ndarray, b: np.ndarray) -> Effect | None:
    from scipy.stats import norm

    if min(len(a), len(b)) < FEWEST:
        return None
    found = cliffs_delta(a, b)
    kept = min(_independent(a), _independent(b))
    p = float(2 * norm.sf(norm.isf(found.p / 2) * np.sqrt(kept)))
    return Effect(found.effect, found.low, found.high, p)


def _independent(values: np.ndarray) -> float:
    """The part of some values in a row that counts as independent."""
    spread = values - values.mean()
    total = float((spread**2).sum())
    r = float((spread[1:] * spread[:-1]).sum()) / total if total > 0 else 0.0
    return (1 - r) / (1 + r) if r > 0 else 1.0


def _read(
    relations: Relations, run: str, steps: tuple[int | None, int | None]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Key -> int [T] steps and float [T] values, the last attempt's where a step was logged twice."""
    query = """
        select coalesce(split || '/', '') as split, key, step, arg_max(value, coalesce(attempt, '')) as value from metrics
        where run = ? and isfinite(cast(value as double)) and step between ? and ? and not coalesce(superseded, false)
        group by 1, 2, 3 order by 1, 2, 3"""
    ends = [0 if steps[0] is None else steps[0], np.iinfo(np.int64).max if steps[1] is None else steps[1]]
    found = as_arrays(relations.sql(query, [run, int(ends[0]), int(ends[1])]))
    names = [
        key if key.startswith(split) else f"{split}{key}"
        for split, key in zip(found["split"].tolist(), found["key"].tolist(), strict=True)
    ]
    places: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        if not name.startswith(KEPT_IN_LEDGER):
            places.setdefault(name, []).append(at)
    steps_of, values = found["step"].astype(np.int64), found["value"].astype(float)
    return {name: (steps_of[at], values[at]) for name, at in places.items()}


def _query(key: str, sides: tuple[tuple[str, np.ndarray], ...]) -> str:
    """The levels of both sides: side 0 for A and 1 for B."""
    return (
        " union all ".join(
            f"select {side} as side, avg(value) as level, count(*) as steps from ("
            f"select step, arg_max(value, coalesce(attempt, '')) as value from metrics where run = {sql_text(run)} "
            f"and (key = {sql_text(key)} or split || '/' || key = {sql_text(key)}) and not coalesce(superseded, false) "
            f"and isfinite(cast(value as double)) and step in ({', '.join(map(str, steps.tolist()))}) group by step)"
            for side, (run, steps) in enumerate(sides)
        )
        + " order by side"
    )
