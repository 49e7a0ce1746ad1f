"""What the same prompts got when they were asked before: the largest noise in a small step, taken out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.relations import Relations, RolloutColumns, as_arrays, quoted
from rollout_traces.analysis.selections import Selection
from rollout_traces.analysis.two_sides import A, SideRows

FEWEST_VISITED, MOSTLY = 5, 0.5
"""Groups of A, and of the others, whose prompts came before, and their part of A: below, nothing is adjusted."""


@dataclass(frozen=True, eq=False)
class EarlierVisits:
    """Every visit of some prompts, ordered by prompt and step.

    Attributes:
        start: int [G], where the visits of each group's prompt begin.
        stop: int [G], where those before its own step end.
        count: column -> float [V + 1], rollouts that know it, summed up to each visit.
        total: column -> float [V + 1], their sum.
    """

    start: np.ndarray
    stop: np.ndarray
    count: dict[str, np.ndarray]
    total: dict[str, np.ndarray]

    def mean(self, name: str) -> np.ndarray:
        """float [G]: mean over the earlier visits of each group's prompt, NaN where there were none."""
        n = self.count[name][self.stop] - self.count[name][self.start]
        total = self.total[name][self.stop] - self.total[name][self.start]
        return np.where(n > 0, total / np.maximum(n, 1), np.nan)

    def adjusted(self, name: str, means: np.ndarray, side: np.ndarray) -> np.ndarray | None:
        """Group means net of what the prompts' earlier visits let expect: their mean, drawn to that of all prompts.

        A mean over n rollouts counts by n / (n + k), k the variance inside prompts over that between them (empirical
        Bayes; Efron and Morris 1975). Both come from the groups that are not A's.

        Args:
            name: the column.
            means: float [G], NaN where unknown.
            side: int [G].

        Returns:
            NaN for groups whose prompt did not come before; None where too few did.
        """
        if name not in self.count:
            return None
        before = self.mean(name)
        both = np.isfinite(before) & np.isfinite(means)
        others = both & (side != A)
        mine = int((both & (side == A)).sum())
        few = others.sum() < FEWEST_VISITED or mine < FEWEST_VISITED
        if few or mine < MOSTLY * (np.isfinite(means) & (side == A)).sum():
            return None
        n = self.count[name][self.stop] - self.count[name][self.start]
        x, y = before - before[others].mean(), means - means[others].mean()
        between = float((x * y)[others].mean())
        if between <= 0:
            return None
        within = max(float((x[others] ** 2).mean()) - between, 0.0) / float((1 / n[others]).mean())
        return np.where(both, means - n / np.maximum(n + within / between, 1.0) * x, np.nan)


def read_earlier_visits(
    relations: Relations, columns: RolloutColumns, a: Selection, rows: SideRows
) -> EarlierVisits | None:
    """Reads all visits of the prompts in some rows; None where no prompt came twice.

    Args:
        relations: where to read.
        columns: what `rollouts` has.
        a: a step or some, of one run and split; what came later is no earlier visit.
        rows: the rollouts whose prompts are meant.
    """
    if not columns.has("prompt_key") or not rows.prompts or not columns.numbers:
        return None
    last = int(rows.step.max())
    condition, params = replace(a, steps=(None, last)).condition(columns)
    sums = ", ".join(
        f"count({quoted(n)}) as k{i}, avg({quoted(n)}) as m{i}" for i, n in enumerate(columns.numbers)
    )
    found = as_arrays(
        relations.sql(
            f"select prompt_key, step, {sums} from rollouts where {condition} and prompt_key in (select unnest(?)) "
            "group by prompt_key, step",
            [*params, list(rows.prompts)],
        )
    )
    code = {key: i for i, key in enumerate(rows.prompts)}
    prompt = np.asarray([code[key] for key in found["prompt_key"]], np.int64)
    place = prompt * (last + 2) + found["step"].astype(np.int64)
    order = np.argsort(place, kind="stable")
    place = place[order]
    known = rows.group_prompt >= 0
    base = np.where(known, rows.group_prompt, 0) * (last + 2)
    start = np.where(known, np.searchsorted(place, base), 0)
    stop = np.where(known, np.searchsorted(place, base + np.maximum(rows.group_step, 0)), 0)
    if not (stop > start).any():
        return None
    count, total = {}, {}
    for i, name in enumerate(columns.numbers):
        mean, n = found[f"m{i}"].astype(float)[order], found[f"k{i}"].astype(float)[order]
        n = np.where(np.isfinite(mean), n, 0.0)
        count[name] = np.concatenate([[0.0], np.cumsum(n)])
        total[name] = np.concatenate([[0.0], np.cumsum(np.where(n > 0, mean, 0.0) * n)])
    return EarlierVisits(start, stop, count, total)
