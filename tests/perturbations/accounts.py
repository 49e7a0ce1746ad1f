"""What trainers log beside losses: counters, lengths and rewards with extremes, times, memory."""

from __future__ import annotations

import numpy as np

from tests.perturbations.habits import since
from tests.perturbations.layout import evaluation_steps, planned_groups
from tests.perturbations.logged import (
    COUNTED,
    DERIVED,
    MEASURED,
    SHARE,
    largest_of,
    means,
    put,
    sums,
)
from tests.perturbations.run import Run, sigmoid

PARTS = (("time_gen", 0.55), ("time_update", 0.3), ("time_sync", 0.05))
"""Shares of a usual step's time."""
LARGER = 1.7
"""How much longer a step takes with twice as many groups."""
QUESTIONS = 120
"""Answers of a second evaluation."""


def log_lengths(run: Run) -> None:
    """Logs lengths and rewards as mean, largest and smallest."""
    c = run.c
    if not run.spec.habits.extremes:
        return
    put(run, "length_mean", means(run, c["n_sampled"]), DERIVED)
    put(run, "length_max", largest_of(run, c["n_sampled"]), DERIVED)
    put(run, "length_min", -largest_of(run, -c["n_sampled"]), DERIVED)
    put(run, "truncated", means(run, (c["stop_reason"] == 1).astype(float)), SHARE)
    put(run, "reward_mean", means(run, c["reward"]), DERIVED)
    put(run, "reward_max", largest_of(run, c["reward"]), DERIVED)
    put(run, "reward_min", -largest_of(run, -c["reward"]), DERIVED)
    put(run, "equal", means(run, c["tied"]), SHARE)
    put(run, "clip_share", means(run, c["clip_share"]), DERIVED)
    put(run, "mismatch_max", largest_of(run, c["mismatch_abs_max"]), DERIVED)


def log_dropped(run: Run) -> None:
    """Logs how many groups were dropped, and how many batches were sampled to have enough."""
    if run.spec.habits.drops not in ("gone", "marked"):
        return
    n = run.spec.n_steps
    of_training = run.train & (run.c["sample"] == 0)
    dropped = np.bincount(run.c["step"], of_training & run.dropped, n)
    asked = np.maximum(np.bincount(run.c["step"], of_training, n), 1)
    put(run, "dropped", dropped, DERIVED)
    put(run, "gen_batches", np.ceil(1 / np.maximum(1 - dropped / asked, 0.1)), DERIVED)


def log_times(run: Run, usual: np.ndarray) -> None:
    """Logs a step's time, its parts, and what follows from it.

    Args:
        run: the run.
        usual: [n_steps] the time of a step of the first batch's size, without checkpoints and
            evaluations.
    """
    habits, n, rng = run.spec.habits, run.spec.n_steps, run.rng("times")
    t, middle = np.arange(n), float(np.exp(2.5))
    if habits.larger_batch:
        usual = np.where(t >= since(n, habits.larger_batch), LARGER * usual, usual)
    noise = rng.normal(0, 0.04, (len(PARTS) + 4, n))
    attempt = np.r_[0, np.diff(means(run, run.c["attempt"].astype(float), run.train))]
    begins = (t == 0) | (np.nan_to_num(attempt) > 0)
    saved = (t + 1) % habits.checkpoint_every == 0 if habits.checkpoint_every else np.zeros(n, bool)
    tested = np.isin(t, evaluation_steps(run.spec)) if habits.parts else np.zeros(n, bool)
    saving = habits.checkpoint * middle * np.exp(noise[-1]) * saved
    testing = 1.2 * middle * np.exp(noise[-2]) * tested
    spent = usual * (1 + habits.first_step * begins) + saving + testing
    logged = put(run, "time", spent)
    spent = np.maximum(np.where(np.isfinite(logged), logged, spent), 0.05 * usual)
    tokens = sums(run, run.c["n_sampled"] + run.c["n_prompt"])
    if habits.parts:
        for (name, share), one in zip(PARTS, noise, strict=False):
            put(run, name, usual * (1 + habits.first_step * begins) * share * np.exp(one))
        put(run, "time_save", saving, shown=saved)
        put(run, "time_eval", testing, shown=tested)
        put(run, "step_tokens", tokens, DERIVED)
        put(run, "throughput", tokens / spent / 8, DERIVED)
        put(run, "mfu", 0.35 * np.exp(noise[-3]) / (1 + habits.first_step * begins))
    if habits.counters:
        put(run, "elapsed", _restarted(np.cumsum(spent), begins) / 3600, COUNTED)
        put(run, "n_tokens", np.cumsum(tokens), COUNTED)
    _log_memory(run, tokens, rng)


def _restarted(values: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """A sum over the steps that begins at 0 with every attempt."""
    first = np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))
    return values - np.where(first > 0, values[first - 1], 0.0)


def _log_memory(run: Run, tokens: np.ndarray, rng: np.random.Generator) -> None:
    habits, n = run.spec.habits, run.spec.n_steps
    t = np.arange(n) / n
    now = 50 + 3 * tokens / max(float(tokens[: max(n // 5, 1)].mean()), 1) + rng.normal(0, 0.4, n)
    course = {
        "flat": now,
        "bends": now + 25 * np.maximum(0, t - habits.bend),
        "highest": np.maximum.accumulate(now),
    }
    if habits.memory:
        kind = COUNTED if habits.memory == "highest" else MEASURED
        put(run, "memory", course[habits.memory], kind)


def log_counters(run: Run) -> None:
    """Logs steps, samples and epochs, whole ones or with two decimals as the trainer has them."""
    if not run.spec.habits.counters:
        return
    groups = planned_groups(run)
    epoch = np.cumsum(groups) * run.spec.visits / groups.sum()
    put(run, "global_step", np.arange(run.spec.n_steps) + 1.0, COUNTED)
    put(run, "n_samples", np.cumsum(groups * run.spec.group_size), COUNTED)
    whole = run.spec.habits.trainer in ("verl", "areal")
    put(run, "epoch", np.floor(epoch) if whole else np.round(epoch, 2), COUNTED)


def log_for_a_while(run: Run, gained: np.ndarray) -> None:
    """Logs what begins late or is switched off: an evaluation, a profiler, a loss of the warm-up.

    Args:
        run: the run.
        gained: [n_steps] log-odds that the policy has gained.
    """
    habits, n, rng = run.spec.habits, run.spec.n_steps, run.rng("for a while")
    t = np.arange(n)
    solved = rng.binomial(QUESTIONS, sigmoid(gained - 1.0)) / QUESTIONS
    idle, loss = rng.normal(0.2, 0.02, n), np.exp(-t / (0.1 * n) + rng.normal(0, 0.1, n))
    if habits.benchmark:
        first, last = (since(n, when) for when in habits.benchmark)
        every = max(run.spec.evaluated_every, 2)
        put(run, "benchmark", solved, shown=(t >= first) & (t <= last) & (t % every == 0))
    put(run, "profiled", idle, shown=t < since(n, habits.profiled))
    put(run, "warmup_loss", loss, shown=t < since(n, habits.warmup_loss))
