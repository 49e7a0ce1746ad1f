"""Numbers that trainers log in healthy runs: which alerts they raise, and how soon one that jumps does.

    python -m tests.alarms.healthy_numbers [--runs 200] [--first 0]

Each run has 60 to 100 steps and fifteen numbers: noise without and with a memory, curves of learning, heavy tails, times,
checkpoints, schedules, controllers. One line of alerts a run; then, for a jump of several standard deviations of one
number's noise in such a run, how often it raised an alert that names it and after how many steps, and the other alerts.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from rollout_traces.alarms.alerts import alerts_of
from rollout_traces.alarms.figures import scalar_figures
from rollout_traces.alarms.online import Trail, judge
from rollout_traces.model.transcript import Alert

Draw = Callable[[np.random.Generator, int], np.ndarray]
STEPS = 60, 100
SIZES = 3, 5, 8


def white(rng: np.random.Generator, n: int) -> np.ndarray:
    """Noise without a memory around a level."""
    return np.asarray(rng.normal(rng.normal(0, 2), rng.lognormal(-2, 1), n))


def remembering(rng: np.random.Generator, n: int, low: float = 0.5, high: float = 0.95) -> np.ndarray:
    """Noise of first order, from its stationary state on, of standard deviation 1."""
    memory = rng.uniform(low, high)
    found = rng.normal(0, 1, n)
    for t in range(1, n):
        found[t] = memory * found[t - 1] + np.sqrt(1 - memory**2) * found[t]
    return np.asarray(found)


def curve(rng: np.random.Generator, n: int) -> np.ndarray:
    """A curve of learning from 0 to 1, at once or late."""
    t = np.arange(n)
    if rng.random() < 1 / 2:
        return np.asarray(1 - np.exp(-t / rng.uniform(10, n)))
    return np.asarray(1 / (1 + np.exp(-(t - rng.uniform(0, n)) / rng.uniform(6, n / 3))))


def learned(rng: np.random.Generator, n: int) -> np.ndarray:
    """A curve of 2 to 15 standard deviations of its noise."""
    noise = rng.normal(0, 1, n) if rng.random() < 1 / 2 else remembering(rng, n, 0.3, 0.9)
    return np.asarray(
        rng.normal() + 0.05 * (noise + rng.choice([-1, 1]) * rng.uniform(2, 15) * curve(rng, n))
    )


def heavy_tailed(rng: np.random.Generator, n: int) -> np.ndarray:
    """Student's t."""
    return np.asarray(1 + 0.1 * rng.standard_t(rng.uniform(3, 6), n))


def seconds(rng: np.random.Generator, n: int) -> np.ndarray:
    """A time, of factors."""
    noise = rng.normal(0, 1, n) if rng.random() < 1 / 2 else remembering(rng, n)
    return np.asarray(rng.lognormal(3, 1) * np.exp(rng.uniform(0.03, 0.5) * noise))


def compiles(rng: np.random.Generator, n: int) -> np.ndarray:
    """A time whose first step compiles."""
    found = seconds(rng, n)
    found[0] *= rng.uniform(2, 20)
    return found


def checkpoints(rng: np.random.Generator, n: int) -> np.ndarray:
    """A time that is longer at every so many steps."""
    found, every = seconds(rng, n), int(rng.choice([5, 10, 20, 25]))
    found[every - 1 :: every] *= rng.uniform(1.5, 5)
    return found


def learning_rate(rng: np.random.Generator, n: int) -> np.ndarray:
    """A warm-up, then constant, linear or a cosine."""
    t, warm = np.arange(n), int(rng.choice([0, 3, 10, 20]))
    left = np.clip((t - warm) / max(n - warm, 1), 0, 1)
    shapes = (np.ones(n), 1 - left, (1 + np.cos(np.pi * left)) / 2)
    return np.asarray(1e-6 * np.minimum((t + 1) / max(warm, 1), 1) * shapes[int(rng.integers(3))])


def controlled(rng: np.random.Generator, n: int) -> np.ndarray:
    """A coefficient that a controller multiplies, as the divergence is above its target or below."""
    kind, found, kl = int(rng.integers(3)), np.ones(n), remembering(rng, n, 0.3, 0.9)
    for t in range(1, n):
        off = kl[t] / 2 - np.log(found[t - 1])
        by = (1 + 0.1 * np.clip(off, -0.2, 0.2), 1.5 if off > 1 else 1 / 1.5 if off < -1 else 1.0, 1.1 if off > 0 else 1 / 1.1)  # fmt: skip
        found[t] = found[t - 1] * by[kind]
    return np.asarray(rng.choice([0.001, 0.05, 0.2]) * found)


def divergence(rng: np.random.Generator, n: int) -> np.ndarray:
    """The distance of a policy from where it began, which grows."""
    away = np.cumsum(np.abs(rng.normal(1, 0.5, n)))
    return np.asarray(
        1e-3 * away ** rng.uniform(0.4, 1) * np.exp(rng.uniform(0.05, 0.3) * rng.normal(0, 1, n))
    )


def gradient_norm(rng: np.random.Generator, n: int) -> np.ndarray:
    """Factors that are now and then large, and fewer later."""
    tail = rng.standard_t(5, n) * rng.uniform(0.1, 0.35)
    return np.asarray(rng.lognormal(0, 1) * np.exp(tail - rng.uniform(0, 1) * curve(rng, n)))


def rare_share(rng: np.random.Generator, n: int) -> np.ndarray:
    """A share of a few rows that is mostly 0."""
    return np.asarray(rng.binomial(int(rng.choice([64, 256])), rng.uniform(0.001, 0.01), n) / 256)


def share(rng: np.random.Generator, n: int) -> np.ndarray:
    """A share of rows that is learned."""
    solved = 0.2 + 0.5 * curve(rng, n)
    return np.asarray(rng.binomial(128, solved) / 128)


KINDS: dict[str, Draw] = {
    "white": white,
    "remembers a little": lambda rng, n: remembering(rng, n, 0.5, 0.8),
    "remembers": lambda rng, n: 0.3 * remembering(rng, n, 0.8, 0.95),
    "loss": learned,
    "entropy": lambda rng, n: 2 + learned(rng, n),
    "share": share,
    "rare share": rare_share,
    "heavy tails": heavy_tailed,
    "time": seconds,
    "first compiles": compiles,
    "checkpoints": checkpoints,
    "learning rate": learning_rate,
    "coefficient": controlled,
    "divergence": divergence,
    "gradient norm": gradient_norm,
}  # fmt: skip
NOISY = ("white", "remembers a little", "loss", "heavy tails", "time", "gradient norm")
"""Numbers in which a jump is planted."""


def healthy_run(seed: int) -> dict[str, np.ndarray]:
    """The numbers of a run, float [T] each."""
    rng = np.random.default_rng([seed, 23])
    n = int(rng.integers(STEPS[0], STEPS[1] + 1))
    return {f"train/{name}": draw(rng, n) for name, draw in KINDS.items()}


def with_jump(seed: int, size: float, kind: str) -> tuple[dict[str, np.ndarray], int]:
    """A run in which a number is off from a step on, by so many standard deviations of its noise around a parabola; and the step."""
    found = healthy_run(seed)
    rng, values = np.random.default_rng([seed, 29]), found[f"train/{kind}"]
    at = int(rng.integers(25, len(values) - 12))
    by_factors = kind in ("time", "gradient norm")
    plain, t = np.log(values) if by_factors else values, np.linspace(-1, 1, len(values))
    noise = float(np.std(plain - np.polyval(np.polyfit(t, plain, 2), t)))
    jumped = plain + np.where(np.arange(len(values)) >= at, size * noise, 0.0)
    found[f"train/{kind}"] = np.exp(jumped) if by_factors else jumped
    return found, at


def alerts_while_logged(numbers: dict[str, np.ndarray]) -> list[tuple[int, Alert]]:
    """The alerts of a run's numbers, each with its step."""
    trail, found = Trail(), []
    for step in range(max(map(len, numbers.values()))):
        now = {name: float(values[step]) for name, values in numbers.items()}
        judged = judge(trail, scalar_figures(now, step))
        trail = judged.trail
        found += [(step, alert) for alert in alerts_of(judged, step, 0, "", {})]
    return found


def _names(alert: Alert, number: str) -> bool:
    return number in alert.text


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jumps", type=int, default=10)
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.runs)
    of_kind: Counter[str] = Counter()
    n = 0
    for seed in seeds:
        for step, alert in alerts_while_logged(healthy_run(seed)):
            n += 1
            of_kind.update(name for name in KINDS if _names(alert, f"train/{name}"))
            print(f"  run {seed} step {step} {alert.level}: {alert.text}", flush=True)
    print(
        f"{n} alerts in {len(seeds)} healthy runs, {n / max(len(seeds), 1):.3f} a run; {dict(of_kind)}",
        flush=True,
    )
    for size in SIZES:
        for kind in NOISY:
            after, others, levels = [], 0, Counter[str]()
            for seed in seeds[: options.jumps]:
                numbers, at = with_jump(seed, size, kind)
                raised = alerts_while_logged(numbers)
                own = [(s, a) for s, a in raised if s >= at and _names(a, f"train/{kind}")]
                after += [own[0][0] - at + 1] if own else []
                levels.update([own[0][1].level] if own else [])
                others += len(raised) - bool(own)
            print(f"{size} sd, {kind:18}: {len(after)} of {len(seeds[: options.jumps])} raised, after "
                  f"{np.median(after) if after else np.nan:.0f} steps, most {max(after, default=0)}; {dict(levels)}; {others} others", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
