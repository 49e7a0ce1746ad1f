"""Courses that somebody planned and settings that somebody chose, logged without any noise."""

from __future__ import annotations

import numpy as np

from tests.perturbations.habits import since
from tests.perturbations.layout import planned_groups, planned_shares
from tests.perturbations.logged import COUNTED, DESIGN, SCHEDULE, SETTING, put
from tests.perturbations.run import Run

FEW = 5
"""Steps of a warm-up that is not drawn."""
TARGET, RATE = 0.008, 0.1
"""The divergence that an adaptive coefficient aims at, and how fast it follows."""


def learning_rate(run: Run) -> np.ndarray:
    """[n_steps] the learning rate of each step."""
    habits, n = run.spec.habits, run.spec.n_steps
    t = np.arange(n)
    warmup = max(since(n, habits.warmup), 1) if habits.warmup else FEW
    rising = np.minimum(1, (t + 1) / warmup)
    left = np.clip((n - t) / max(n - warmup, 1), 0, 1)
    falling = {
        "cosine": 0.5 * (1 - np.cos(np.pi * left)),
        "linear": left,
        "wsd": np.clip((n - t) / max(0.2 * n, 1), 0, 1),
    }.get(habits.schedule, np.ones(n))
    course = habits.floor + (1 - habits.floor) * falling
    return habits.peak * course * (1 if habits.schedule == "constant" else rising)


def log_settings(run: Run, kl: np.ndarray) -> None:
    """Logs the settings of a run.

    Args:
        run: the run.
        kl: [n_steps] the divergence, which an adaptive coefficient follows.
    """
    habits, n, rng = run.spec.habits, run.spec.n_steps, run.constants("settings")
    clip, coef = rng.choice([0.2, 0.28, 3e-4]), rng.choice([0.001, 0.01, 0.04])
    hot, planned = rng.choice([0.6, 0.8, 1.0, 1.2]), planned_groups(run)
    if habits.settings:
        put(run, "clip_range", np.full(n, clip), SETTING)
        cooled = np.linspace(hot, 0.6 * hot, n) if habits.annealed else np.full(n, hot)
        put(run, "temperature", cooled, SCHEDULE if habits.annealed else SETTING)
    if habits.settings or habits.larger_batch:
        put(run, "batch", planned * run.spec.group_size, DESIGN)
    if habits.curriculum and len(run.spec.sources) > 1 and not run.spec.alternating:
        for source, share in zip(run.spec.sources, planned_shares(run).T, strict=True):
            put(run, f"data/share/{source}", share, DESIGN)
    if habits.kl_coef == "fixed":
        put(run, "kl_coef", np.full(n, coef), SETTING)
    elif habits.kl_coef == "adaptive":
        error = np.clip(np.nan_to_num(kl, nan=TARGET)[:-1] / TARGET - 1, -0.2, 0.2)
        put(run, "kl_coef", coef * np.cumprod(np.r_[1.0, 1 + RATE * error]), COUNTED)
