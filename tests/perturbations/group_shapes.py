"""Figures of groups over the steps: ties, spread, sizes, and how the reward goes with another column inside them."""

from __future__ import annotations

import numpy as np

from tests.perturbations.named import Figures, Series
from tests.perturbations.run import Run

LENGTHS = {"length": "n_sampled", "turns": "n_turns", "tool_calls": "n_tool_calls"}


def group_figures(run: Run, series: Series, rows: np.ndarray) -> Figures | None:
    """A figure of groups per step, over some rows; None where its name is not known."""
    name = series.column.removeprefix("group/").removesuffix("/mean").removesuffix("_mean")
    if series.statistic in ("covariance", "correlation") or name.startswith("reward_corr_"):
        other = name.removeprefix("reward_corr_")
        column = LENGTHS.get(other, other)
        beside = series.value if series.value in run.c else "reward"
        beside = "success" if column == beside == "reward" else beside
        if column not in run.c or column in run.values:
            return None
        return _together(run, column, str(beside), rows, series.statistic == "covariance")
    if name == "prompts":
        return _by_step(run, *_asked_again(run, rows)) if series.value == "again" else None
    of = _of_groups(run, name, rows)
    return None if of is None else _by_step(run, *of)


def _of_groups(run: Run, name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """A number of every group and whether it counts."""
    n = int(run.group.max()) + 1
    reward = run.c["reward"]
    known = rows & np.isfinite(reward)
    count = np.bincount(run.group[known], minlength=n)
    total = np.bincount(run.group[known], reward[known], n)
    mean = total / np.maximum(count, 1)
    centred = np.where(known, reward - mean[run.group], 0.0)
    spread = np.sqrt(np.bincount(run.group, centred**2, n) / np.maximum(count, 1))
    solved = np.bincount(run.group[rows], np.nan_to_num(run.c["success"])[rows], n)
    size = np.bincount(run.group[rows], minlength=n)
    counted = count > 1
    if name in ("size", "group_size", "groups"):
        return size.astype(float), size > 0
    if name in ("solve_none_share", "solve_all_share", "solve_partial_share"):
        none, every = solved == 0, solved == size
        chosen = {"solve_none_share": none, "solve_all_share": every}.get(name, ~none & ~every)
        return chosen.astype(float), size > 1
    if name.startswith(("tie", "zero_advantage", "wasted", "noise")):
        return (spread < 1e-9).astype(float), counted
    if name.startswith(("reward_std", "reward_spread", "reward_gini", "std", "spread")):
        return spread, counted
    column = name.removesuffix("_std").removesuffix("_spread").removesuffix("/std").removesuffix("_cv")
    column = LENGTHS.get(column, column)
    if column not in run.c or column in run.values:
        return None
    return _spread(run, run.c[column], rows, n)


def _spread(run: Run, values: np.ndarray, rows: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    known = rows & np.isfinite(values)
    count = np.bincount(run.group[known], minlength=n)
    mean = np.bincount(run.group[known], values[known], n) / np.maximum(count, 1)
    centred = np.where(known, values - mean[run.group], 0.0)
    return np.sqrt(np.bincount(run.group, centred**2, n) / np.maximum(count, 1)), count > 1


def _by_step(run: Run, values: np.ndarray, counted: np.ndarray) -> Figures:
    step = np.zeros(len(values), np.int64)
    step[run.group] = run.c["step"]
    n = run.spec.n_steps
    count = np.bincount(step[counted], minlength=n).astype(float)
    total = np.bincount(step[counted], values[counted], n)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Figures(np.where(count > 0, total / count, np.nan), count)


def _asked_again(run: Run, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every group whether another group of its step, or one of the step before it, has its prompt."""
    n = int(run.group.max()) + 1
    groups, first = np.unique(run.group[rows], return_index=True)
    step, prompt = run.c["step"][rows][first], run.c["prompt"][rows][first].astype(np.int64)
    asked, counted = np.zeros(n), np.zeros(n, bool)
    width = prompt.max(initial=0) + 1
    keys, index, many = np.unique(step * width + prompt, return_inverse=True, return_counts=True)
    asked[groups] = (many[index] > 1) | np.isin((step - 1) * width + prompt, keys)
    counted[groups] = True
    return asked, counted


def _together(run: Run, column: str, beside: str, rows: np.ndarray, covariance: bool) -> Figures:
    """How two columns go together inside groups, per step: the mean product of deviations, or their correlation."""
    a, b = run.c[column].astype(float), run.c[beside].astype(float)
    known = rows & np.isfinite(a) & np.isfinite(b)
    n, groups = run.spec.n_steps, int(run.group.max()) + 1
    count = np.maximum(np.bincount(run.group[known], minlength=groups), 1)

    def centred(x: np.ndarray) -> np.ndarray:
        mean = np.bincount(run.group[known], x[known], groups) / count
        return x[known] - mean[run.group[known]]

    a, b, step = centred(a), centred(b), run.c["step"][known]
    ab, aa, bb = (np.bincount(step, x, n) for x in (a * b, a * a, b * b))
    rows_of = np.bincount(step, minlength=n).astype(float)
    if covariance:
        return Figures(np.where(rows_of > 0, ab / np.maximum(rows_of, 1), np.nan), rows_of)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Figures(np.where(aa * bb > 1e-18, ab / np.sqrt(aa * bb), np.nan), rows_of)
