"""What a trainer logs: a scalar with what perturbs it, its kind, and when it is there."""

from __future__ import annotations

import numpy as np

from tests.perturbations.keys import key_of
from tests.perturbations.run import Run

MEASURED, SCHEDULE, SETTING = "measured", "schedule", "setting"
"""Scalars with noise of their own, a planned course, a number that somebody chose."""
DESIGN = "design"
"""A plan of the data, which nothing perturbs."""
DERIVED, SHARE = "derived", "share"
"""Figures and shares of rows, which are perturbed in their place and show the sizes."""
COUNTED = "counted"
"""What goes on from its own value a step before, so that one step moves all that follow."""
UNSIZED = (DERIVED, SHARE, COUNTED)
"""Kinds on which no size is measured."""


def put(
    run: Run, name: str, values: np.ndarray, kind: str = MEASURED, shown: np.ndarray | None = None
) -> np.ndarray:
    """Logs a scalar, where the trainer logs such a one at all.

    Args:
        run: the run.
        name: a name of `KEYS`, or a key.
        values: [n_steps] its values.
        kind: its kind.
        shown: [n_steps] bool, the steps at which it is logged; all where None.

    Returns:
        [n_steps] the values with what perturbs them.
    """
    key = key_of(run.spec.habits.trainer, name)
    if key is None or (shown is not None and not shown.any()):
        return values
    values = perturbed_scalar(run, key, np.asarray(values, float))
    run.kinds[key] = kind
    if shown is not None:
        run.shown[key] = shown
        values = np.where(shown, values, np.nan)
    run.logged[key] = values
    return values


def perturbed_scalar(run: Run, key: str, values: np.ndarray) -> np.ndarray:
    """A scalar with what perturbs it alone.

    `add` is in its own standard deviations; the others are as in `Change`.
    """
    for p in run.perturbations:
        for change in p.changes:
            if change.node != f"logged {key}":
                continue
            amount = p.envelope()
            if change.how == "add":
                spread = float(np.nanstd(np.diff(values[np.isfinite(values)]))) / np.sqrt(2)
                values = values + change.size * amount * max(spread, 1e-9)
            elif change.how in ("scale", "times"):
                values = values * np.exp(change.size * amount)
            elif change.how == "again":
                values = np.where(amount > 0.5, begun_again(values, p.onset), values)
            else:
                written = np.nan if change.how == "null" else float(change.value or 0)
                values = np.where(amount > 0.5, written, values)
    return values


def begun_again(values: np.ndarray, onset: int) -> np.ndarray:
    """[n_steps] a course that goes from its start once more at a step."""
    return np.r_[values[:onset], values[: len(values) - onset]]


def means(run: Run, values: np.ndarray, over: np.ndarray | None = None) -> np.ndarray:
    """[n_steps] the mean of a column [N] over training's kept rows, or over others; NaN of none."""
    n, step = run.spec.n_steps, run.c["step"]
    known = (run.train & run.kept if over is None else over) & np.isfinite(values)
    total = np.bincount(step[known], values[known], n)
    count = np.bincount(step[known], minlength=n)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def sums(run: Run, values: np.ndarray) -> np.ndarray:
    """[n_steps] the sum of a column [N] over training's kept rows."""
    rows = run.train & run.kept
    return np.bincount(run.c["step"][rows], np.nan_to_num(values[rows]), run.spec.n_steps)


def largest_of(run: Run, values: np.ndarray) -> np.ndarray:
    """[n_steps] the largest of a column [N] over training's kept rows; NaN where there are none."""
    known = run.train & run.kept & np.isfinite(values)
    found = np.full(run.spec.n_steps, -np.inf)
    np.maximum.at(found, run.c["step"][known], values[known])
    return np.where(np.isfinite(found), found, np.nan)
