"""What a plain run does by design beside learning: its schedules, its data, what its trainer logs.

A world without habits logs six scalars and goes straight from its start to its end. Real runs warm
up, drop groups, go over their prompts again, write checkpoints, and log counters and settings. Each
habit is drawn for itself, so that some runs of a world have it and some do not. Times are shares of
the run, since the same world may be short.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Habits:
    """The habits of a world; the defaults are a world without any.

    Attributes:
        trainer: whose names the scalars have: `plain`, `verl`, `trl` or `areal`.
        schedule: course of the learning rate: `constant`, `warm-up`, `cosine`, `linear` or `wsd`.
        peak: the highest learning rate.
        warmup: share of the run in which it rises; the former five steps where it is 0.
        floor: the lowest learning rate at the end, as a share of the peak.
        learning: course of the log-odds in place of the world's own: `plateaus`, `fast`, `late`
            or `hinge`.
        memorized: log-odds gained each time that a prompt comes again.
        same_order: whether every epoch goes over the prompts in the same order.
        entropy: course of the entropy: `linear`, `falls`, `bends` or `flat`.
        kl: course of the divergence: `linear`, `late` or `saturating`.
        grad: course of the gradient's norm: `flat`, `falls` or `bends`.
        bend: when a course bends.
        curriculum: when the shares of the sources change by design; 0 for never.
        larger_batch: when twice as many groups make a step; 0 for never.
        drops: groups whose rollouts all succeed or all fail: `` stay, `gone` leave no rows,
            `marked` have a reason; `overlong` marks rollouts that hit the limit instead.
        evaluated: first and last time of an evaluation.
        counters: whether tokens, samples, epochs, steps and hours are counted.
        settings: whether the clip range, the batch and the temperature are logged.
        annealed: whether the temperature falls in a straight line.
        kl_coef: coefficient of the divergence: `` not logged, `fixed` or `adaptive`.
        extremes: whether lengths and rewards are logged as mean, largest and smallest.
        parts: whether the parts of a step's time and the throughput are logged.
        first_step: how much longer the first step takes, in usual steps.
        checkpoint_every: steps between checkpoints that take time; 0 for none.
        checkpoint: how long one takes, in usual steps.
        memory: course of the memory: `` not logged, `flat`, `bends` or `highest`.
        benchmark: when a second evaluation is begun and when it is switched off; () for none.
        profiled: until when a profiler is on; 0 for none.
        warmup_loss: until when a loss of the warm-up is logged; 0 for none.
    """

    trainer: str = "plain"
    schedule: str = "warm-up"
    peak: float = 1e-6
    warmup: float = 0.0
    floor: float = 0.0
    learning: str = ""
    memorized: float = 0.0
    same_order: bool = False
    entropy: str = "linear"
    kl: str = "linear"
    grad: str = "flat"
    bend: float = 0.4
    curriculum: float = 0.0
    larger_batch: float = 0.0
    drops: str = ""
    evaluated: tuple[float, float] = (0.0, 1.0)
    counters: bool = False
    settings: bool = False
    annealed: bool = False
    kl_coef: str = ""
    extremes: bool = False
    parts: bool = False
    first_step: float = 0.0
    checkpoint_every: int = 0
    checkpoint: float = 0.0
    memory: str = ""
    benchmark: tuple[float, ...] = ()
    profiled: float = 0.0
    warmup_loss: float = 0.0


def draw_habits(rng: np.random.Generator) -> Habits:
    """The habits of a world, each drawn for itself."""

    def one_of(*names: str) -> str:
        return str(rng.choice(names))

    def at_times(chance: float, low: float, high: float) -> float:
        when = float(rng.uniform(low, high))
        return when if rng.random() < chance else 0.0

    def happens(chance: float) -> bool:
        return bool(rng.random() < chance)

    return Habits(
        trainer=one_of("plain", "verl", "trl", "areal"),
        schedule=one_of("constant", "warm-up", "cosine", "linear", "wsd"),
        peak=float(rng.choice([5e-7, 1e-6, 3e-6, 1e-5])),
        warmup=at_times(0.7, 0.02, 0.15),
        floor=float(rng.choice([0.0, 0.1])),
        learning=one_of("", "", "plateaus", "fast", "late", "hinge"),
        memorized=at_times(0.5, 0.03, 0.15),
        same_order=happens(0.3),
        entropy=one_of("linear", "linear", "falls", "bends", "flat"),
        kl=one_of("linear", "late", "saturating"),
        grad=one_of("flat", "flat", "falls", "bends"),
        bend=float(rng.uniform(0.2, 0.7)),
        curriculum=at_times(0.25, 0.3, 0.7),
        larger_batch=at_times(0.15, 0.3, 0.7),
        drops=one_of("", "", "", "gone", "marked", "overlong"),
        evaluated=_evaluated(rng),
        counters=happens(0.6),
        settings=happens(0.5),
        annealed=happens(0.3),
        kl_coef=one_of("", "fixed", "adaptive"),
        extremes=happens(0.6),
        parts=happens(0.6),
        first_step=at_times(0.7, 0.5, 6.0),
        checkpoint_every=int(rng.choice([0, 0, 5, 10, 20, 25])),
        checkpoint=float(rng.uniform(0.2, 2.0)),
        memory=one_of("", "flat", "bends", "highest"),
        benchmark=_benchmark(rng),
        profiled=at_times(0.2, 0.1, 0.4),
        warmup_loss=at_times(0.2, 0.1, 0.3),
    )


def _evaluated(rng: np.random.Generator) -> tuple[float, float]:
    """Now and then the evaluation begins late or is switched off."""
    late, early = float(rng.uniform(0.2, 0.5)), float(rng.uniform(0.6, 0.9))
    times = ((0.0, 1.0), (late, 1.0), (0.0, early))
    return times[int(rng.choice(3, p=[0.8, 0.1, 0.1]))]


def _benchmark(rng: np.random.Generator) -> tuple[float, ...]:
    """A second evaluation for all of the run, its second part or its first."""
    middle = float(rng.uniform(0.3, 0.7))
    times = ((), (0.0, 1.0), (middle, 1.0), (0.0, middle))
    return times[int(rng.choice(4, p=[0.5, 0.2, 0.15, 0.15]))]


def since(n_steps: int, when: float) -> int:
    """The step of a time that is a share of the run."""
    return round(when * n_steps)
