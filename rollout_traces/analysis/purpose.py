"""Whether the training reward still follows what it is for: the evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.change_points import MOST_CORRELATED, noise
from rollout_traces.analysis.relations import as_arrays, current, known_number, sql_text
from rollout_traces.analysis.series import RunSeries

FEWEST = 6
"""Evaluations that are needed."""
ONSET = 0.9
"""They part at the first step at which they part by this much of the most."""
CORRELATED_FROM = 20
"""Values from which on their autocorrelation is known at all."""
ENOUGH = (4.0, 2.5)
"""Standard errors by which the training reward has to rise, and the evaluation to fall."""


Window = tuple[int, int, int]
"""First and last step before a change, and the first of those after it, which go on to the end."""


@dataclass(frozen=True)
class PurposeGap:
    """How training reward and evaluation moved from a step on.

    Attributes:
        step: where they part the most.
        train_z: change of the training reward, in standard errors of that change.
        eval_z: change of the evaluation, in the same way.
        windows: the steps that are compared, of the training reward and of the evaluation.
    """

    step: int
    train_z: float
    eval_z: float
    windows: tuple[Window, Window]

    @property
    def parted(self) -> bool:
        """Whether the training reward rises while the evaluation falls, both far beyond their noise."""
        return self.strength >= 1

    @property
    def strength(self) -> float:
        """How far both go apart, 1 where it is enough to say so."""
        return min(self.train_z / ENOUGH[0], -self.eval_z / ENOUGH[1])


def purpose_gap(run: RunSeries) -> PurposeGap | None:
    """The step from which training reward and evaluation part: the first at which they do so nearly as far as they ever do.

    Args:
        run: the training split's series.

    Returns:
        None with fewer than six evaluations, or without rewards: unobserved.
    """
    if not run.columns.has("reward", "split") or not len(run.steps):
        return None
    found = evaluation_scores(run)
    if found is None or len(found[1]) < FEWEST:
        return None
    reward = next((s for s in run.numbers() if s.column == "reward" and s.segment is None), None)
    if reward is None or len(reward.values) < 2 * FEWEST:
        return None
    _, steps, scores = found
    gaps: list[PurposeGap] = []
    for i in range(2, len(steps) - 2):
        at = int(np.searchsorted(reward.steps, steps[i]))
        if at < 6 or len(reward.values) - at < 6:
            continue
        windows = (_window(reward.steps, at), _window(steps, i))
        gap = PurposeGap(int(steps[i]), _change(reward.adjusted, at), _change(scores, i), windows)
        gaps.append(gap)
    best = max(gaps, key=lambda gap: gap.strength, default=None)
    if best is None or not best.parted:
        return best
    return next(gap for gap in gaps if gap.strength >= max(1.0, ONSET * best.strength))


def evaluation_scores(run: RunSeries) -> tuple[str, np.ndarray, np.ndarray] | None:
    """The mean score of each evaluation of a run: what was scored, steps, scores; None without evaluations."""
    query = _scores_query(run)
    if not query:
        return None
    found = as_arrays(run.relations.sql(f"{query} order by step"))
    if not len(found["step"]):
        return None
    return _scored(run), found["step"].astype(np.int64), found["value"].astype(float)


def _scored(run: RunSeries) -> str:
    return "success" if run.columns.has("success") else "reward"


def _scores_query(run: RunSeries) -> str:
    """A SELECT of the mean score of each evaluation; empty where there is nothing to score."""
    score = _scored(run)
    if not run.columns.has(score, "split"):
        return ""
    mean = f"avg({known_number(score)})"
    return (
        f"select step, {mean} as value, {mean} as adjusted from rollouts where run = {sql_text(run.run)} "
        f"and split like 'eval%' and {current(run.columns)} and step is not null group by step having {mean} is not null"
    )


def gap_query(run: RunSeries, gap: PurposeGap) -> str:
    """A SELECT of training reward and evaluation before and after, and the z of each change.

    Args:
        run: where it was seen.
        gap: where they part.
    """
    source = run.columns.expression("source")
    reward = (
        f"select step, {source} as source, {known_number('reward')} as reward from rollouts "
        f"where {run.with_values(run.scope)} and {known_number('reward')} is not null"
    )
    training = (
        "select step, avg(reward) as value, avg(reward - usual) as adjusted from "
        f"(select step, reward, avg(reward) over (partition by source) as usual from ({reward})) group by step"
    )
    return " union all ".join(
        _change_query(what, query, window)
        for what, query, window in zip(
            ("training reward", "evaluation"), (training, _scores_query(run)), gap.windows, strict=True
        )
    )


def _change_query(what: str, series: str, window: Window) -> str:
    """A SELECT of the levels before and after and of `_change`, with the noise of `change_points.noise`."""
    first, last, start = window
    earlier, later = f"filter (step between {first} and {last})", f"filter (step >= {start})"

    def variance(of: str) -> str:
        drawn_in = f"greatest(least({of} - middle_{of}, 3*1.4826*mad_{of}), -3*1.4826*mad_{of})"
        return f"avg(case when {of} is not null then {drawn_in}*{drawn_in} end)"

    return f"""
        select '{what}' as what, before, after,
            moved / (greatest(sqrt(first / (2*(1 - rho))), 1e-9)*sqrt((1 / n_before + 1 / n_after)*(1 + rho) / (1 - rho))) as z
        from (
            select before, after, moved, n_before, n_after, first,
                case when n < {CORRELATED_FROM} then 0
                    else coalesce(least(greatest(second / nullif(first, 0) - 1, 0), {MOST_CORRELATED}), 0) end as rho
            from (
                with by_step as ({series}),
                differences as (
                    select adjusted - lag(adjusted) over (order by step) as one,
                        adjusted - lag(adjusted, 2) over (order by step) as two from by_step),
                middles as (
                    select median(one) as middle_one, mad(one) as mad_one, median(two) as middle_two, mad(two) as mad_two
                    from differences),
                noise as (select {variance("one")} as first, {variance("two")} as second from differences, middles),
                levels as (
                    select avg(value) {earlier} as before, avg(value) {later} as after,
                        avg(adjusted) {later} - avg(adjusted) {earlier} as moved,
                        count(value) {earlier} as n_before, count(value) {later} as n_after, count(value) as n from by_step)
                select before, after, moved, n_before, n_after, n, first, second from levels, noise))"""


def _window(steps: np.ndarray, at: int) -> Window:
    """The steps that `_change` compares."""
    return (
        int(steps[max(0, at - max(3, len(steps) // 5))]),
        int(steps[at - 1]),
        int(steps[at + (len(steps) - at) // 2]),
    )


def _change(values: np.ndarray, at: int) -> float:
    """Difference of the means of the later half of what follows and of what came just before, over its error."""
    before = values[max(0, at - max(3, len(values) // 5)) : at]
    rest = values[at:]
    after = rest[len(rest) // 2 :]
    sigma, rho = noise(values) if len(values) >= 6 else (float(np.std(values)), 0.0)
    if len(values) < CORRELATED_FROM:
        sigma, rho = sigma * float(np.sqrt(1 - rho)), 0.0
    error = max(sigma, 1e-9) * np.sqrt((1 / len(before) + 1 / len(after)) * (1 + rho) / (1 - rho))
    return float((after.mean() - before.mean()) / error)
