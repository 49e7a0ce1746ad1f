"""Reward functions by name: what they cost, how often they fail, and what they give, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rollout_traces.inspector.pages.figures import Number, finite
from rollout_traces.inspector.workspace import SplitView, remembered

COMPONENT = "component/"
SECONDS = "timing/score/"
ONE_REWARD = "reward"
"""The name of the only function of a run that logs no components."""
MOST_STEPS = 500
FAR = 5.0
"""Median absolute deviations from the step's median beyond which a value is an outlier."""
LOG_TIME = "their time is unobserved: give spans of kind score with a name in timings, which TRL's hook does (docs/schema.md)"


@dataclass(frozen=True)
class FunctionFigures:
    """The figures of a reward function over some rollouts.

    Attributes:
        rollouts: those whose reward it is part of.
        seconds: spent in it; None where that was not logged.
        no_value: rollouts that it gave none, as where it raised; None where its values were not logged.
        zeros: share of its values that are 0; `one_value`: of the most frequent one.
        outliers: share of its values far from the step's median.
    """

    rollouts: int
    seconds: Number
    no_value: int | None
    zeros: Number
    one_value: Number
    outliers: Number


@dataclass(frozen=True)
class RewardFunction:
    """A reward function: in all, and at each step of the answer."""

    name: str
    column: str
    whole: FunctionFigures
    steps: list[FunctionFigures]


@dataclass(frozen=True)
class RewardFunctionsAnswer:
    """The slowest first, then by name.

    Attributes:
        steps: the last 500 of the run.
        unobserved: what was not logged, with what to log.
    """

    steps: list[int]
    functions: list[RewardFunction]
    unobserved: list[str]


@remembered
def reward_functions(view: SplitView) -> RewardFunctionsAnswer:
    """Tells what each reward function of a run cost and gave."""
    steps = [info.step for info in view.store.steps(view.run, view.split)][-MOST_STEPS:]
    if not steps:
        return RewardFunctionsAnswer([], [], ["No rollouts in this split."])
    there = [
        column.name for column in view.store.columns("all") if column.name.startswith((COMPONENT, SECONDS))
    ]
    table = view.store.rollouts(
        columns=["step", "reward", "superseded", *there],
        runs=[view.run],
        splits=[view.split],
        steps=(steps[0], steps[-1]),
    )
    rows = ~table["superseded"].to_numpy(zero_copy_only=False).astype(bool)
    columns = {
        name: table[name].cast("float64").to_numpy(zero_copy_only=False)[rows] for name in ("reward", *there)
    }
    at_step = table["step"].to_numpy(zero_copy_only=False)[rows]
    known = {name: values for name, values in columns.items() if np.isfinite(values).any()}
    names = sorted({name.removeprefix(COMPONENT).removeprefix(SECONDS) for name in known} - {ONE_REWARD})
    if not any(name.startswith(COMPONENT) for name in known) and ONE_REWARD in known:
        names = names if len(names) == 1 else [*names, ONE_REWARD]
    found = [_function(name, at_step, steps, known) for name in names]
    found.sort(key=lambda function: (-(function.whole.seconds or 0.0), function.name))
    unobserved = [] if all(function.whole.seconds is not None for function in found) else [LOG_TIME]
    if not found:
        unobserved = ["No reward was logged: give rewards, or reward_components by the functions' names."]
    return RewardFunctionsAnswer(steps, found, unobserved)


def _function(
    name: str, at_step: np.ndarray, steps: list[int], known: Mapping[str, np.ndarray]
) -> RewardFunction:
    """One function; where no components were logged the only one's values are the reward."""
    column = COMPONENT + name if any(other.startswith(COMPONENT) for other in known) else ONE_REWARD
    is_known = column in known
    values = known[column] if is_known else np.full(len(at_step), np.nan)
    seconds = known.get(SECONDS + name)
    order = np.argsort(at_step, kind="stable")
    edges = np.searchsorted(at_step[order], [*steps, steps[-1] + 1])
    far = np.zeros(len(values), bool)
    each = []
    for begin, end in pairwise(edges.tolist()):
        rows = order[begin:end]
        far[rows] = _far(values[rows])
        each.append(_figures(values[rows], None if seconds is None else seconds[rows], far[rows], is_known))
    return RewardFunction(name, column, _figures(values, seconds, far, is_known), each)


def _figures(
    values: np.ndarray, seconds: np.ndarray | None, far: np.ndarray, is_known: bool
) -> FunctionFigures:
    given = values[np.isfinite(values)]
    timed = None if seconds is None else seconds[np.isfinite(seconds)]
    counts = np.unique(given, return_counts=True)[1]
    n = len(given)
    return FunctionFigures(
        len(values),
        None if timed is None or not len(timed) else finite(float(timed.sum())),
        len(values) - n if is_known else None,
        float((given == 0).mean()) if n else None,
        float(counts.max() / n) if n else None,
        float(far.sum() / n) if n else None,
    )


def _far(values: np.ndarray) -> np.ndarray:
    """bool [B]: far from the median, where values differ from it by half at least."""
    given = values[np.isfinite(values)]
    if not len(given):
        return np.zeros(len(values), bool)
    middle = np.median(given)
    spread = np.median(np.abs(given - middle))
    with np.errstate(invalid="ignore"):
        return (np.abs(values - middle) > FAR * spread) & (spread > 0)
