"""What training makes of the rewards: advantages, the update's weights, flags, and the scalars that a trainer logs."""

from __future__ import annotations

import numpy as np

from tests.perturbations.accounts import (
    log_counters,
    log_dropped,
    log_for_a_while,
    log_lengths,
    log_times,
)
from tests.perturbations.habits import Habits
from tests.perturbations.layout import evaluation_steps
from tests.perturbations.logged import SCHEDULE, means, put
from tests.perturbations.run import Run
from tests.perturbations.schedules import learning_rate, log_settings
from tests.perturbations.spec import Spec

DRAWN_FLAGS = {
    "repetition": 0.01,
    "thinking_unclosed": 0.03,
    "retokenized": 0.02,
    "mask_leak": 0.0,
    "gibberish": 0.0,
}
"""Flags that hang on nothing else, with their usual share."""


def update(run: Run) -> None:
    """Computes entropies, mismatches, advantages and each row's share of its step's update."""
    spec, c, rng = run.spec, run.c, run.rng("update")
    t = c["step"] / spec.n_steps
    entropy = _entropy_course(spec.habits, t) + run.walk("entropy", 0.015)[c["step"]]
    c["entropy"] = run.at("entropy", entropy + rng.normal(0, 0.08, run.n))
    c["mean_logprob"] = -np.maximum(c["entropy"] + rng.normal(0, 0.03, run.n), 0.01)
    distance = rng.normal(-6.8, 0.5, run.n) + run.walk("mismatch", 0.1)[c["step"]] + 0.15 * c["lag"]
    distance = np.clip(run.at("mismatch", distance), -20, 3)
    c["mismatch_k3"] = np.exp(distance)
    c["mismatch_k1"] = run.at("mismatch_k1", rng.normal(0, 0.004, run.n))
    c["mismatch_abs_max"] = np.exp(0.5 * distance + 2.7 + rng.normal(0, 0.3, run.n))
    clipped = 0.02 + 0.1 * np.sqrt(c["mismatch_k3"]) + 0.01 * c["lag"] + rng.normal(0, 0.01, run.n)
    c["clip_share"] = np.clip(run.at("clip_share", clipped), 0, 1)
    c["advantage"] = run.at("advantage", _advantages(run))
    weight = np.abs(np.nan_to_num(c["advantage"])) * rng.gamma(4.0, 0.25, run.n) * np.sqrt(c["n_sampled"])
    weight = run.at("weight", weight) * run.train * run.kept * (c.get("discard_reason", -1) < 0)
    total = np.bincount(c["step"], weight, spec.n_steps)[c["step"]]
    with np.errstate(invalid="ignore", divide="ignore"):
        c["update_share"] = np.where(run.train & (total > 0), weight / total, np.nan)


def _advantages(run: Run) -> np.ndarray:
    normalized, spread = group_normalized(run, np.where(run.kept, run.c["reward"], np.nan))
    run.c["tied"] = (spread < 1e-9).astype(float)
    return np.where(run.train, normalized, np.nan)


def group_normalized(run: Run, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[N] rewards less their group's mean over its spread, NaN where unknown; and [N] that spread."""
    known = np.isfinite(reward)
    n = np.maximum(np.bincount(run.group, known), 1)
    mean = np.bincount(run.group, np.where(known, reward, 0)) / n
    centred = np.where(known, reward - mean[run.group], 0.0)
    spread = np.sqrt(np.bincount(run.group, centred**2) / n)[run.group]
    return np.where(known, centred / (spread + 1e-4), np.nan), spread


def flag(run: Run) -> None:
    """Raises the flags of every row."""
    c, rng = run.c, run.rng("flags")
    run.flags["tied_group"] = c["tied"] > 0
    run.flags["truncated"] = c["stop_reason"] == 1
    run.flags["stale"] = c["lag"] > 4
    run.flags["logprob_mismatch"] = c["mismatch_k3"] > 0.01
    run.flags["tool_error"] = c["n_tool_errors"] > 0
    for name, share in DRAWN_FLAGS.items():
        run.flags[name] = rng.random(run.n) < run.at(f"flag {name}", np.full(run.n, share))
    with np.errstate(invalid="ignore"):
        run.flags["dominates_update"] = c["update_share"] > 0.1


def log(run: Run, gained: np.ndarray) -> None:
    """Computes the scalars that the trainer logs, from each step's rows and noise of their own.

    Args:
        run: the run.
        gained: [n_steps] log-odds that the policy has gained.
    """
    spec, c, rng = run.spec, run.c, run.rng("log")
    n, rows = spec.n_steps, run.train & run.kept
    size = np.sqrt(np.nan_to_num(means(run, c["advantage"] ** 2)))
    off = np.nan_to_num(means(run, np.sqrt(c["mismatch_k3"])))
    share = np.nan_to_num(c["update_share"])[rows]
    longest = np.sqrt(np.bincount(c["step"][rows], share**2, n))
    carried = np.bincount(c["step"][rows], np.clip(share - 0.15, 0, 1), n)
    loss = (
        0.4 * carried + 0.01 + 0.02 * rng.standard_t(5, n) * size + 0.5 * off * size + run.walk("loss", 0.005)
    )
    grad = np.exp(rng.normal(-0.5, 0.15, n) + run.walk("grad", 0.1)) * (0.2 + size) * (1 + 2 * off + longest)
    tools = np.nan_to_num(means(run, c["timing/tool"])) if "timing/tool" in c else 0.0
    put(run, "loss", loss)
    put(run, "grad_norm", grad * _bent(spec.habits.grad, spec))
    kl = put(run, "kl", _divergence(run, off, rng.normal(0, 0.0008, n)))
    put(run, "entropy", means(run, c["entropy"]))
    put(run, "lr", learning_rate(run), SCHEDULE)
    longer = 1 + np.nan_to_num(means(run, c["n_sampled"])) / 2000
    log_times(run, np.exp(rng.normal(2.5, 0.1, n)) * longer + tools)
    if spec.logs_reward:
        put(run, "rollout/reward/mean", means(run, c["reward"]))
    if spec.evaluated_every:
        shown = np.isin(np.arange(n), evaluation_steps(spec))
        put(run, "score", means(run, c["success"], ~run.train), shown=shown)
    log_settings(run, kl)
    log_lengths(run)
    log_dropped(run)
    log_counters(run)
    log_for_a_while(run, gained)


def _bent(course: str, spec: Spec) -> np.ndarray:
    """[n_steps] a factor around 1 that falls from the start or rises from a bend on."""
    t = np.arange(spec.n_steps) / spec.n_steps
    falls, bends = np.exp(0.8 * np.exp(-t / 0.15)), 1 + np.maximum(0, t - spec.habits.bend)
    return {"falls": falls, "bends": bends}.get(course, np.ones(spec.n_steps))


def _divergence(run: Run, off: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """[n_steps] the divergence: in a line, late behind a flat start, or up to a ceiling."""
    habits, n = run.spec.habits, run.spec.n_steps
    t = np.arange(n) / n
    if habits.kl == "linear":
        return 0.002 + 0.01 * t + 0.05 * off + np.abs(noise)
    late, saturating = 0.02 * np.maximum(0, t - habits.bend), 0.012 * (1 - np.exp(-t / 0.15))
    course = late if habits.kl == "late" else saturating
    return (0.0005 + course) * np.exp(noise / 0.006) + 0.01 * off


def _entropy_course(habits: Habits, t: np.ndarray) -> np.ndarray:
    """The entropy at times between 0 and 1."""
    courses = {
        "falls": 0.3 + 0.25 * np.exp(-t / 0.15),
        "bends": 0.55 - 0.3 * np.maximum(0, t - habits.bend),
        "flat": np.full(len(t), 0.5),
    }
    return courses.get(habits.entropy, 0.55 - 0.2 * t)
