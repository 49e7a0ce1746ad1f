"""Whether the training reward still follows what it is for: the evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.change_points import noise
from rollout_traces.analysis.relations import as_arrays, current, known_number
from rollout_traces.analysis.series import RunSeries

FEWEST = 6
"""Evaluations that are needed."""


@dataclass(frozen=True)
class PurposeGap:
    """How training reward and evaluation moved from a step on.

    Attributes:
        step: where they part the most.
        train_z: change of the training reward, in standard errors of that change.
        eval_z: change of the evaluation, in the same way.
    """

    step: int
    train_z: float
    eval_z: float

    @property
    def parted(self) -> bool:
        """Whether the training reward rises while the evaluation falls, both far beyond their noise."""
        return self.train_z >= 5 and self.eval_z <= -2.5


def purpose_gap(run: RunSeries) -> PurposeGap | None:
    """The step from which training reward and evaluation differ most in their course.

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
    best: PurposeGap | None = None
    for i in range(2, len(steps) - 2):
        at = int(np.searchsorted(reward.steps, steps[i]))
        if at < 6 or len(reward.values) - at < 6:
            continue
        gap = PurposeGap(int(steps[i]), _change(reward.adjusted, at), _change(scores, i))
        if best is None or abs(gap.train_z - gap.eval_z) > abs(best.train_z - best.eval_z):
            best = gap
    return best


def evaluation_scores(run: RunSeries) -> tuple[str, np.ndarray, np.ndarray] | None:
    """The mean score of each evaluation of a run: what was scored, steps, scores; None without evaluations."""
    c = run.columns
    score = "success" if c.has("success") else "reward"
    if not c.has(score, "split"):
        return None
    query = (
        f"select step, avg({known_number(score)}) as score from rollouts where run = ? and split like 'eval%' and "
        f"{current(c)} and step is not null group by step having score is not null order by step"
    )
    found = as_arrays(run.relations.sql(query, [run.run]))
    if not len(found["step"]):
        return None
    return score, found["step"].astype(np.int64), found["score"].astype(float)


def _change(values: np.ndarray, at: int) -> float:
    """Difference of the means of the later half of what follows and of what came just before, over its error."""
    before = values[max(0, at - max(3, len(values) // 5)) : at]
    rest = values[at:]
    after = rest[len(rest) // 2 :]
    sigma, rho = noise(values) if len(values) >= 6 else (float(np.std(values)), 0.0)
    error = max(sigma, 1e-9) * np.sqrt((1 / len(before) + 1 / len(after)) * (1 + rho) / (1 - rho))
    return float((after.mean() - before.mean()) / error)
