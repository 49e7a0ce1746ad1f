"""Power of `explain` at one step, beside the paired test on the changed column alone; and false claims over nulls.

A run of `--steps` steps of `--groups` groups over a pool of prompts that come again, each with a difficulty of its
own, and with the columns that a run has. In the last step the chance of every prompt to be solved rises by a given
amount. The oracle knows the column: a paired t test of each prompt's solved share against its own earlier visits, at
the p that the report held the column to. Seeds are drawn anew unless `--seed` is given.

python -m benchmarks.step_power --runs 60
"""

from __future__ import annotations

import argparse
import secrets

import numpy as np
import pyarrow as pa
from scipy.stats import ttest_rel

from benchmarks.analysis import Database
from rollout_traces.analysis import explanation
from rollout_traces.analysis.compare import DISCOVERY
from rollout_traces.analysis.explanation import Explanation, explain
from rollout_traces.analysis.selections import Selection

RISES = (0.0, 0.1, 0.15, 0.2, 0.3, 0.4)
SIZES = (4, 8, 16)
FURTHER = (
    "n_prompt",
    "mean_logprob",
    "mismatch_k1",
    "mismatch_k3",
    "mismatch_abs_max",
    "clip_share",
    "staleness_max",
)
"""Columns beside those that the success moves."""


def run_of(
    rng: np.random.Generator, steps: int, groups: int, size: int, prompts: int, rise: float
) -> pa.Table:
    """A run whose last step solves more.

    Args:
        rng: what everything is drawn from.
        steps: how many steps.
        groups: groups of a step.
        size: rollouts of a group.
        prompts: prompts of the pool, asked in turn in an order that is drawn anew each time.
        rise: by how much the last step solves more.
    """
    n = steps * groups * size
    order = np.concatenate([rng.permutation(prompts) for _ in range(1 + steps * groups // prompts)])[
        : steps * groups
    ]
    step = np.repeat(np.arange(steps), groups * size)
    prompt = np.repeat(order, size)
    difficulty = np.clip(rng.beta(1.5, 1.5, prompts), 0.02, 0.98 - rise)
    chance = difficulty[prompt] + rise * (step == steps - 1)
    success = (rng.random(n) < chance).astype(np.int64)
    format_ok = (rng.random(n) < 0.9).astype(float)
    length = np.exp(rng.normal(6, 0.4, n) + 0.5 * (1 - difficulty[prompt]))
    columns = {
        "run": pa.repeat(pa.scalar("run"), n),
        "split": pa.repeat(pa.scalar("rollout"), n),
        "id": pa.array([str(i) for i in range(n)]),
        "step": pa.array(step),
        "group": pa.array(np.repeat(np.arange(steps * groups) % groups, size)),
        "prompt_key": pa.array([f"p{i}" for i in prompt]),
        "source": pa.array(np.where(prompt % 3 == 0, "math", "code")),
        "engine": pa.array(np.asarray(["vllm-0", "vllm-1"])[rng.integers(0, 2, n)]),
        "success": pa.array(success),
        "reward": pa.array(success + 0.2 * format_ok),
        "component/correct": pa.array(success.astype(float)),
        "component/format": pa.array(format_ok),
        "n_sampled": pa.array(length.astype(np.int64)),
        "stop_reason": pa.array(np.where(rng.random(n) < 0.05, "length", "stop")),
        "flags": pa.array([["truncated"] if r < 0.05 else [] for r in rng.random(n)], pa.list_(pa.string())),
    }
    columns |= {name: pa.array(rng.normal(0, 1, n)) for name in FURTHER}
    return pa.table(columns)


def oracle_p(table: pa.Table) -> float:
    """p of the paired t test on the success of each prompt of the last step against its own earlier visits."""
    step, success = table["step"].to_numpy(), table["success"].to_numpy()
    keys, prompt = np.unique(table["prompt_key"].to_pylist(), return_inverse=True)
    last = step == step.max()
    now, before = (
        np.bincount(prompt[which], success[which], len(keys))
        / np.maximum(np.bincount(prompt[which], minlength=len(keys)), 1)
        for which in (last, ~last)
    )
    both = np.bincount(prompt[last], minlength=len(keys)) > 0
    both &= np.bincount(prompt[~last], minlength=len(keys)) > 0
    p = float(ttest_rel(now[both], before[both]).pvalue)
    return p if np.isfinite(p) else 1.0


def asked(table: pa.Table) -> tuple[Explanation, float]:
    """The report on the last step, and the p up to which the success would have been told."""
    cuts: list[float] = []
    weighing = explanation._weights

    def weighed(tested, carried):  # type: ignore[no-untyped-def]
        weights = weighing(tested, carried)
        at = next(i for i, f in enumerate(tested) if f.is_outcome and f.part is None)
        found = explanation.discovered([*(f.effect.p for f in tested), *(c.p for c in carried)], weights)
        cuts.append(DISCOVERY * max(found.sum(), 1) * weights[at] / sum(weights))
        return weights

    explanation._weights = weighed
    try:
        last = int(table["step"].to_numpy().max())
        return explain(Database(table), Selection("run", "rollout", (last, last))), cuts[-1]
    finally:
        explanation._weights = weighing


def told(found: Explanation) -> bool:
    """Whether the report says that the success, or what is made of it, moved."""
    every = [each for f in found.findings if f.is_sure for each in (f, *f.consequences)]
    return any(f.column in ("success", "reward", "component/correct") for f in every)


def main() -> None:
    """Prints the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60, help="runs for each rise and group size")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rises", type=float, nargs="*", default=RISES)
    given = parser.parse_args()
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    print(
        f"seed {seed}; {given.runs} runs each; {given.steps} steps of {given.groups} groups, {given.prompts} prompts"
    )
    print(
        "rise and size of groups; power of the report, of the paired test at the report's own p, and at p 0.01; false claims"
    )
    for size in SIZES:
        for rise in given.rises:
            found = oracle = plain = false = 0
            for i in range(given.runs):
                rng = np.random.default_rng([seed, size, int(1000 * rise), i])
                table = run_of(rng, given.steps, given.groups, size, given.prompts, rise)
                report, cut = asked(table)
                p = oracle_p(table)
                found, oracle, plain = (
                    found + told(report),
                    oracle + (p <= cut),
                    plain + (p <= DISCOVERY),
                )
                false += bool(any(f.is_sure for f in report.findings) or report.carried) if rise == 0 else 0
            share = [each / given.runs for each in (found, oracle, plain)]
            claims = f"  any claim {false / given.runs:.3f}" if rise == 0 else ""
            print(
                f"+{rise:.2f} of {size:2}: {share[0]:.2f} {share[1]:.2f} {share[2]:.2f}{claims}", flush=True
            )


if __name__ == "__main__":
    main()
