"""What a world is like: its sizes, its parts, its learning, its noise. Everything is drawn from the world's seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tests.perturbations.habits import Habits, draw_habits


def stream(*keys: int | str) -> np.random.Generator:
    """Random numbers of their own for every combination of keys, whatever else is drawn."""
    return np.random.default_rng([zlib.crc32(k.encode()) if isinstance(k, str) else k for k in keys])


@dataclass(frozen=True)
class Spec:
    """The constants of a world.

    Attributes:
        world: its name.
        seed: of the constants that all its replicates share.
        n_steps: steps of training.
        groups: fewest and most groups of a step.
        group_size: rollouts of a group.
        sources: names of the sources.
        alternating: whether every step has one source, in turn.
        visits: how often a prompt comes in the run, on average.
        engines: inference engines.
        hosts: machines; an engine runs on one.
        engine_of: `row` or `group`, what an engine is drawn for.
        tools: mean calls of tools a rollout; 0 for none.
        components: weight of each component of the reward; `correct` alone is the plain reward.
        graded: whether `correct` is a share of tests instead of 0 or 1.
        learning: `linear`, `sigmoid`, `saturating` or `flat` log-odds of success over the run.
        gain: log-odds gained over the whole run.
        log_length: mean log tokens of a rollout.
        length_tail: degrees of freedom of log lengths; large for a normal tail.
        length_growth: gain of log tokens over the run.
        limit: most tokens sampled.
        lag: most versions that a sample is old in a healthy run.
        walk: standard deviation of the steps' own log-odds.
        rho: their correlation with the step before.
        reward_noise: heavy-tailed noise on the reward.
        evaluated_every: steps between evaluations; 0 for none.
        eval_prompts: prompts of an evaluation, two samples each.
        workers: values of `extra/worker`; 0 for no such column.
        suites: values of `extra/suite`, a property of the prompt; 0 for no such column.
        cap: traces a step; 0 for all.
        resumed: whether a second attempt goes on at some step, with nothing changed.
        feedback: how much of the log-odds is learned from the mean advantage-weighted reward (held-out worlds).
        shifting: whether the shares of sources drift over the run.
        logs_reward: whether the mean reward is logged too.
        habits: what it does by design beside learning, and what its trainer logs.
    """

    world: str
    seed: int
    n_steps: int
    groups: tuple[int, int]
    group_size: int
    sources: tuple[str, ...]
    alternating: bool = False
    visits: float = 3.0
    engines: int = 2
    hosts: int = 2
    engine_of: str = "row"
    tools: float = 0.0
    components: Mapping[str, float] | None = None
    graded: bool = False
    learning: str = "linear"
    gain: float = 1.2
    log_length: float = 6.0
    length_tail: float = 30.0
    length_growth: float = 0.2
    limit: int = 4096
    lag: int = 1
    walk: float = 0.1
    rho: float = 0.5
    reward_noise: float = 0.0
    evaluated_every: int = 0
    eval_prompts: int = 60
    workers: int = 0
    suites: int = 0
    cap: int = 16
    resumed: bool = False
    feedback: float = 0.0
    shifting: bool = False
    logs_reward: bool = False
    habits: Habits = field(default_factory=Habits)


Draw = Callable[[np.random.Generator], dict[str, object]]


def _steps(rng: np.random.Generator) -> int:
    return int(rng.choice([40, 60, 120, 200], p=[0.45, 0.2, 0.25, 0.1]))


def _agent(rng: np.random.Generator) -> dict[str, object]:
    return {
        "n_steps": _steps(rng),
        "groups": (8, 12),
        "group_size": int(rng.choice([4, 8])),
        "sources": ("retail", "airline"),
        "engines": 4,
        "hosts": 2,
        "tools": rng.uniform(1.5, 3.0),
        "components": {"correct": 1.0, "format": 0.2},
        "learning": "sigmoid",
        "gain": rng.uniform(1.0, 2.5),
        "log_length": rng.uniform(5.8, 6.6),
        "lag": 2,
        "workers": int(rng.choice([0, 3])),
        "evaluated_every": int(rng.choice([0, 10])),
    }


def _short_math(rng: np.random.Generator) -> dict[str, object]:
    return {
        "n_steps": int(rng.choice([40, 80, 400], p=[0.5, 0.3, 0.2])),
        "groups": (4, 6),
        "group_size": int(rng.choice([8, 16])),
        "sources": ("math",),
        "engines": int(rng.choice([1, 2])),
        "engine_of": "group",
        "log_length": rng.uniform(4.5, 5.5),
        "visits": rng.uniform(1.0, 6.0),
        "gain": rng.uniform(0.0, 2.0),
        "learning": str(rng.choice(["linear", "flat"])),
        "suites": int(rng.choice([0, 3])),
        "cap": 8,
    }


def _long_code(rng: np.random.Generator) -> dict[str, object]:
    return {
        "n_steps": _steps(rng),
        "groups": (6, 20),
        "group_size": int(rng.choice([4, 8])),
        "sources": ("code", "repair"),
        "engines": 4,
        "hosts": int(rng.choice([2, 4])),
        "components": {"correct": 1.0, "brevity": 0.3},
        "graded": True,
        "log_length": rng.uniform(7.2, 7.8),
        "length_tail": 4.0,
        "length_growth": rng.uniform(0, 0.5),
        "limit": 6144,
        "lag": int(rng.choice([2, 4])),
        "workers": 4,
        "reward_noise": rng.choice([0.0, 0.05]),
        "resumed": bool(rng.random() < 0.3),
    }


def _alternating(rng: np.random.Generator) -> dict[str, object]:
    return {
        "n_steps": int(rng.choice([60, 120, 240], p=[0.5, 0.4, 0.1])),
        "groups": (10, 16),
        "group_size": 8,
        "sources": ("math", "code", "search"),
        "alternating": True,
        "engines": 3,
        "hosts": 3,
        "components": {"correct": 1.0, "format": 0.2, "judge": 0.4},
        "learning": "saturating",
        "gain": rng.uniform(1.0, 2.6),
        "cap": 32,
        "logs_reward": True,
    }


def _evaluated(rng: np.random.Generator) -> dict[str, object]:
    return {
        "n_steps": int(rng.choice([60, 120, 200], p=[0.4, 0.4, 0.2])),
        "groups": (6, 8),
        "group_size": int(rng.choice([4, 8])),
        "sources": ("math", "science"),
        "visits": rng.uniform(3.0, 8.0),
        "engines": 2,
        "components": {"correct": 1.0, "judge": 0.5},
        "learning": str(rng.choice(["linear", "saturating"])),
        "evaluated_every": int(rng.choice([2, 5, 10])),
        "eval_prompts": int(rng.choice([50, 120])),
        "suites": 3,
    }


def _large_steps(rng: np.random.Generator) -> dict[str, object]:
    return {
        "n_steps": 40,
        "groups": (32, 48),
        "group_size": 8,
        "sources": ("math", "code", "chat"),
        "engines": 8,
        "hosts": 4,
        "components": {"correct": 1.0, "format": 0.1, "judge": 0.3},
        "learning": "sigmoid",
        "lag": 3,
        "walk": 0.15,
        "rho": 0.7,
        "cap": 32,
        "reward_noise": 0.1,
    }


def _judged_chat(rng: np.random.Generator) -> dict[str, object]:
    return {
        "n_steps": _steps(rng),
        "groups": (8, 24),
        "group_size": int(rng.choice([4, 6, 12])),
        "sources": ("chat", "roleplay", "safety", "summary", "mail"),
        "engines": 3,
        "hosts": 3,
        "components": {"judge": 1.0, "correct": 0.2},
        "learning": "saturating",
        "reward_noise": 0.2,
        "length_tail": 6.0,
        "shifting": True,
        "suites": 4,
        "walk": 0.12,
        "rho": 0.8,
        "evaluated_every": 5,
    }


def _search_swarm(rng: np.random.Generator) -> dict[str, object]:
    return {
        "n_steps": _steps(rng),
        "groups": (5, 30),
        "group_size": int(rng.choice([5, 10])),
        "sources": ("search",),
        "engines": 6,
        "hosts": 2,
        "engine_of": "group",
        "tools": 4.0,
        "components": {"correct": 1.0, "format": 0.3, "judge": 0.2},
        "lag": 6,
        "workers": 5,
        "feedback": 0.5,
        "learning": "linear",
        "length_tail": 5.0,
        "visits": 1.5,
        "resumed": bool(rng.random() < 0.5),
    }


def _replayed(rng: np.random.Generator) -> dict[str, object]:
    return {
        "n_steps": 40,
        "groups": (8, 8),
        "group_size": 8,
        "sources": ("arithmetic",),
        "engines": int(rng.choice([2, 4])),
        "hosts": 2,
        "components": {"correct": 0.8, "format": 0.15, "brevity": 0.05},
        "evaluated_every": 8,
        "cap": 16,
    }


def _anything(rng: np.random.Generator) -> dict[str, object]:
    """Every constant for itself, from a wide range, so that no two worlds of it are alike."""
    fewest = int(rng.integers(3, 25))
    weighted = [name for name in ("format", "judge", "brevity") if rng.random() < 0.4]
    components = {"correct": float(rng.uniform(0.2, 1.0))}
    components |= {name: float(rng.uniform(0.05, 0.6)) for name in weighted}
    return {
        "n_steps": int(rng.choice([40, 50, 75, 100, 150, 250])),
        "groups": (fewest, fewest + int(rng.choice([0, 2, 12]))),
        "group_size": int(rng.choice([2, 3, 4, 6, 8, 12, 16])),
        "sources": ("math", "code", "search", "chat", "mail", "games")[: int(rng.integers(1, 7))],
        "alternating": bool(rng.random() < 0.2),
        "shifting": bool(rng.random() < 0.2),
        "visits": rng.uniform(1.0, 8.0),
        "engines": int(rng.integers(1, 9)),
        "hosts": int(rng.integers(1, 5)),
        "engine_of": str(rng.choice(["row", "group"])),
        "tools": float(rng.choice([0.0, rng.uniform(0.5, 5.0)])),
        "components": components if weighted else None,
        "graded": bool(rng.random() < 0.3),
        "learning": str(rng.choice(["linear", "sigmoid", "saturating", "flat"])),
        "gain": rng.uniform(0.0, 3.0),
        "log_length": rng.uniform(3.5, 8.0),
        "length_tail": float(rng.choice([3.0, 5.0, 10.0, 30.0])),
        "length_growth": rng.uniform(-0.3, 0.6),
        "lag": int(rng.integers(0, 9)),
        "walk": rng.uniform(0.02, 0.25),
        "rho": rng.uniform(0.0, 0.85),
        "reward_noise": float(rng.choice([0.0, rng.uniform(0.02, 0.3)])),
        "evaluated_every": int(rng.choice([0, 2, 5, 10])),
        "eval_prompts": int(rng.choice([20, 60, 200])),
        "workers": int(rng.choice([0, 2, 6])),
        "suites": int(rng.choice([0, 2, 4])),
        "cap": int(rng.choice([4, 16, 64])),
        "resumed": bool(rng.random() < 0.3),
        "feedback": float(rng.choice([0.0, 0.5])),
        "logs_reward": bool(rng.random() < 0.5),
    }


WORLDS: Mapping[str, Draw] = {
    "agent": _agent,
    "short math": _short_math,
    "long code": _long_code,
    "alternating": _alternating,
    "evaluated": _evaluated,
    "large steps": _large_steps,
    "replayed": _replayed,
}
HELD_OUT: Mapping[str, Draw] = {
    "judged chat": _judged_chat,
    "search swarm": _search_swarm,
    "anything": _anything,
}
"""Worlds that nothing is tuned on; run by name alone."""


def draw_spec(world: str, seed: int, n_steps: int | None = None) -> Spec:
    """The constants of a world of a seed.

    Args:
        world: a name of `WORLDS` or `HELD_OUT`.
        seed: everything is drawn from it.
        n_steps: steps of training, in place of the drawn number.
    """
    drawn = (WORLDS | HELD_OUT)[world](stream(seed, world, "spec"))  # type: ignore[operator]
    if n_steps is not None:
        drawn["n_steps"] = n_steps
    if world != "replayed":
        drawn["habits"] = draw_habits(stream(seed, world, "habits"))
    return Spec(world=world, seed=seed, **drawn)  # type: ignore[arg-type]
