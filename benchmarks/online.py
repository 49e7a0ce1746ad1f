"""What judging a closed step costs in the worker, against the steps before it, in a run of 120 and of 2,000 steps.

    python -m benchmarks.online

Processor time of a step of 512 rollouts: its figures from the ledger and what is found in them, median, 95 % and most, over
the steps from the twelfth on; and of a call of 60 logged scalars. Nothing moves, so that no alarm is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from rollout_traces.alarms.figures import Figures, figures_of, scalar_figures
from rollout_traces.alarms.online import Trail, judge
from rollout_traces.analysis.screen import FEWEST_STEPS
from tests.alarms.steps import ledger

GROUPS, SIZE, SCALARS = 64, 8, 60
STEPS = (120, 2000)


def rollouts(step: int) -> Callable[[Trail], Figures]:
    """A step of an agent's run with 30 columns."""
    rng = np.random.default_rng(step)
    n = GROUPS * SIZE
    numbers = ("n_sampled", "n_prompt", "n_environment", "n_thinking", "n_turns", "mean_logprob", "mismatch_k1", "mismatch_k3",
               "mismatch_abs_max", "log_ratio_sum", "clip_share", "update_share", "advantage", "staleness_max")  # fmt: skip
    one = ledger(
        {"truncated": 0.05, "repetition": 0.01, "stale": 0.3, "tied_group": 0.2, "tool_error": 0.1},
        n_groups=GROUPS, size=SIZE, seed=step,
        reward=(rng.random(n) < 0.4).astype(float), stop_reason=np.where(rng.random(n) < 0.05, "length", "stop").astype(object),
        reward_status=np.full(n, "ok", object),
        **{name: rng.lognormal(0, 0.5, n) for name in numbers},
        **{f"component/c{i}": rng.normal(0, 1, n) for i in range(4)},
        **{f"sample/s{i}": rng.normal(0, 1, n) for i in range(6)},
    )  # fmt: skip
    return lambda trail: figures_of(one, step, trail.names)


def scalars(step: int) -> Callable[[Trail], Figures]:
    """A call of a trainer."""
    values = np.random.default_rng(step).normal(1, 0.1, SCALARS)
    return lambda trail: scalar_figures(named(values), step)


def lasting(step: int) -> Callable[[Trail], Figures]:
    """The same, of numbers whose noise lasts for ten steps."""
    before = np.stack(
        [np.random.default_rng(step - i).normal(0, 0.05, SCALARS) for i in range(min(step, 40) + 1)]
    )
    values = 1 + (0.9 ** np.arange(len(before))) @ before
    return lambda trail: scalar_figures(named(values), step)


def named(values: np.ndarray) -> dict[str, float]:
    return {f"train/k{i}": float(value) for i, value in enumerate(values)}


def spent(n_steps: int, make: Callable[[int], Callable[[Trail], Figures]]) -> tuple[np.ndarray, int, int]:
    """Milliseconds of each step from the twelfth on, series, and steps that raised an alarm."""
    trail, found, alarms = Trail(), [], 0
    for step in range(n_steps):
        figures = make(step)
        start = time.process_time()
        judged = judge(trail, figures(trail))
        found.append(1e3 * (time.process_time() - start))
        trail = judged.trail
        alarms += bool(judged.found)
    return np.asarray(found[FEWEST_STEPS:]), len(trail.names), alarms


def main() -> None:
    for n_steps in STEPS:
        for name, make in (
            ("512 rollouts", rollouts),
            (f"{SCALARS} scalars", scalars),
            (f"{SCALARS} lasting", lasting),
        ):
            cost, n_series, alarms = spent(n_steps, make)
            print(
                f"{n_steps:5} steps, {name:12} {n_series:3} series: median {np.median(cost):.2f} ms, "
                f"95 % {np.quantile(cost, 0.95):.2f}, most {cost.max():.2f}; {alarms} alarms",
                flush=True,
            )


if __name__ == "__main__":
    main()
