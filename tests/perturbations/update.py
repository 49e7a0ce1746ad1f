"""What training makes of the rewards: advantages, the update's weights, flags, and the scalars that a trainer logs."""

from __future__ import annotations

import numpy as np

from tests.perturbations.run import Run

DRAWN_FLAGS = {
    "repetition": 0.01,
    "thinking_unclosed": 0.03,
    "retokenized": 0.02,
    "mask_leak": 0.0,
    "gibberish": 0.0,
}
"""Flags that hang on nothing else, with their usual share."""
SCALARS = ("train/loss", "train/grad_norm", "train/kl", "train/entropy", "train/lr", "time/step")


def update(run: Run) -> None:
    """Computes entropies, mismatches, advantages and each row's share of its step's update."""
    spec, c, rng = run.spec, run.c, run.rng("update")
    t = c["step"] / spec.n_steps
    c["entropy"] = run.at(
        "entropy", 0.55 - 0.2 * t + run.walk("entropy", 0.015)[c["step"]] + rng.normal(0, 0.08, run.n)
    )
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
    weight = run.at("weight", weight) * run.train * run.kept
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


def log(run: Run) -> None:
    """Computes the scalars that the trainer logs, from the rows of each step and noise of their own."""
    spec, c, rng = run.spec, run.c, run.rng("log")
    n, rows = spec.n_steps, run.train & run.kept
    t = np.arange(n) / n

    def mean(values: np.ndarray, over: np.ndarray = rows) -> np.ndarray:
        known = over & np.isfinite(values)
        total = np.bincount(c["step"][known], values[known], n)
        count = np.bincount(c["step"][known], minlength=n)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    size = np.sqrt(np.nan_to_num(mean(c["advantage"] ** 2)))
    off = np.nan_to_num(mean(np.sqrt(c["mismatch_k3"])))
    longest = np.bincount(c["step"][rows], np.nan_to_num(c["update_share"])[rows] ** 2, n)
    longest = np.sqrt(longest)
    carried = np.bincount(c["step"][rows], np.clip(np.nan_to_num(c["update_share"])[rows] - 0.15, 0, 1), n)
    loss = (
        0.4 * carried + 0.01 + 0.02 * rng.standard_t(5, n) * size + 0.5 * off * size + run.walk("loss", 0.005)
    )
    grad = np.exp(rng.normal(-0.5, 0.15, n) + run.walk("grad", 0.1)) * (0.2 + size) * (1 + 2 * off + longest)
    tools = np.nan_to_num(mean(c["timing/tool"])) if "timing/tool" in c else 0.0
    series = {
        "train/loss": loss,
        "train/grad_norm": grad,
        "train/kl": 0.002 + 0.01 * t + 0.05 * off + np.abs(rng.normal(0, 0.0008, n)),
        "train/entropy": mean(c["entropy"]),
        "train/lr": 1e-6 * np.minimum(1, (np.arange(n) + 1) / 5),
        "time/step": np.exp(rng.normal(2.5, 0.1, n)) * (1 + np.nan_to_num(mean(c["n_sampled"])) / 2000)
        + tools,
    }
    if spec.logs_reward:
        series["rollout/reward/mean"] = mean(c["reward"])
    if spec.evaluated_every:
        series["eval/score"] = mean(c["success"], ~run.train)
    for key, values in series.items():
        run.logged[key] = perturbed_scalar(run, key, values)


def perturbed_scalar(run: Run, key: str, values: np.ndarray) -> np.ndarray:
    """A scalar with what perturbs it alone: `add` in its own standard deviations, `scale`, `set` and `null`."""
    for p in run.perturbations:
        for change in p.changes:
            if change.node != f"logged {key}":
                continue
            amount = p.envelope()
            if change.how == "add":
                spread = float(np.nanstd(np.diff(values[np.isfinite(values)]))) / np.sqrt(2)
                values = values + change.size * amount * max(spread, 1e-9)
            elif change.how == "scale":
                values = values * np.exp(change.size * amount)
            else:
                values = np.where(
                    amount > 0.5, np.nan if change.how == "null" else float(change.value or 0), values
                )
    return values
