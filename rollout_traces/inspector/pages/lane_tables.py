"""The tables below the lanes: the funnel, what became of what was loaded, sampled, failed, filtered and trained on, at a step
and over the run; and the reward functions by name, what they cost, how often they fail, and what they give, step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rollout_traces.inspector.pages.figures import Number, finite, scalars
from rollout_traces.inspector.workspace import SplitView, remembered
from rollout_traces.model.text import quoted, words
from rollout_traces.store.query.nodes import literal

LOADED = "funnel/prompts_loaded"
"""The scalar by which a trainer says how many prompts it took from its data at a step."""
FAILED_STOPS = words("abort aborted cancelled canceled error failed failure timeout timed_out")
"""Stop reasons of generations that did not come to an end of their own."""
REFUSALS = (
    r"(?i)^\W*(error( code)?\s*:|traceback \(most recent|\w*(connection|timeout|ratelimit|api)\w*error\b)"
)
"""First words of a reply that an engine's failure left in a conversation."""
ERROR_TEXT = "error_text"
"""The stage that texts are read for, of the step in sight alone."""
MOST_REASONS = 20
_STOPS = ", ".join(map(literal, FAILED_STOPS))
FAILED = f"(reward_status in ('error', 'timeout') or stop_reason in ({_STOPS}) or n_sampled = 0)"
STATUS = "stop_reason reward_status"
FAILURES: Mapping[str, str] = {
    "the reward function failed": "reward_status = 'error'",
    "the reward function took too long": "reward_status = 'timeout'",
    "nothing was sampled": "n_sampled = 0",
}


@dataclass(frozen=True)
class Stage:
    """A stage of the funnel.

    Attributes:
        title: what it is called.
        where: the filter that finds its rollouts; "" for all.
        needs: columns that have to be known anywhere in the run; of several one, where they are in one text.
        log: what to log where one is not.
    """

    title: str
    where: str
    needs: tuple[str, ...]
    log: str


STAGES: Mapping[str, Stage] = {
    "sampled": Stage("sampled", "", (), ""),
    "finished": Stage("finished", f"not {FAILED}", (STATUS,), "stop_reasons, or reward_statuses"),
    "failed": Stage("failed", FAILED, (STATUS,), "stop_reasons, or reward_statuses"),
    "failed_zero": Stage(
        "failed, in the update with reward 0",
        f"{FAILED} and trained and reward = 0",
        (STATUS, "trained"),
        "stop_reasons (or reward_statuses), and loss_mask",
    ),
    ERROR_TEXT: Stage(
        "in the update with reward 0, the kept reply an error",
        f"traced and trained and reward = 0 and reply ~ {literal(REFUSALS)}",
        ("trace_uid", "trained"),
        "traces, and loss_mask: text is known of kept rollouts alone",
    ),
    "filtered": Stage(
        "filtered by a rule",
        "discard_reason is not null",
        ("discard_reason",),
        "what was dropped too, with discard_reasons",
    ),
    "stale": Stage(
        "stale: sampled by older weights",
        "staleness_max > 0",
        ("staleness_max",),
        "versions of tokens, and train_version",
    ),
    "in_update": Stage("in the update", "trained", ("trained",), "loss_mask"),
    "weight_0": Stage(
        "of these with weight 0",
        "trained and (advantage_abs_max <= 1e-8 or advantage_abs_max is null and advantage >= -1e-8 and advantage <= 1e-8)",
        ("advantage_abs_max advantage",),
        "advantages",
    ),
}


@dataclass(frozen=True)
class Counted:
    """The number of rollouts, and their share of the tokens that were sampled; None where that is unobserved."""

    n: int | None
    tokens: Number


@dataclass(frozen=True)
class ShownStage:
    """A stage, or one reason of it.

    Attributes:
        of: the stage that a reason belongs to; empty for a stage.
        unit: rollouts or prompts.
        where: finds its rollouts; None where there is no list of them.
        unobserved: what to log to see it; empty where it is known.
    """

    name: str
    title: str
    step: Counted
    run: Counted
    of: str = ""
    unit: str = "rollouts"
    where: str | None = None
    unobserved: str = ""


@dataclass(frozen=True)
class FunnelAnswer:
    """The stages in their order."""

    step: int
    n_steps: int
    stages: list[ShownStage]


@remembered
def funnel(view: SplitView, step: int) -> FunnelAnswer:
    """Follows the rollouts of a step, and of the run, to what became of them."""
    superseded, known = _known(view)
    here = " and not superseded" if superseded else ""
    asked: dict[str, Stage] = {name: stage for name, stage in STAGES.items() if _is_known(stage, known)}
    reasons = _reasons(view)
    asked |= {f"{of}: {title}": Stage(title, where, (), "") for of, title, where in reasons}
    wheres = {name: stage.where for name, stage in asked.items()}
    if ERROR_TEXT in wheres:
        wheres[ERROR_TEXT] = f"step = {step} and {wheres[ERROR_TEXT]}"
    found = dict(zip(asked, _count(view, step, list(wheres.values())), strict=True))
    if ERROR_TEXT in found:
        found[ERROR_TEXT] = (found[ERROR_TEXT][0], Counted(None, None))
    shown = [*_prompts(view, step)]
    for name, stage in STAGES.items():
        nothing = (Counted(None, None), Counted(None, None))
        at_step, over_run = found.get(name, nothing)
        where = f"{stage.where or 'step >= 0'}{here}" if name in found else None
        lacking = "" if name in found else f"log {stage.log}"
        shown.append(ShownStage(name, stage.title, at_step, over_run, where=where, unobserved=lacking))
        for of, title, reason in reasons:
            if of == name and name in found:
                key, where = f"{of}: {title}", f"{reason}{here}"
                at_step, over_run = found[key]
                if over_run.n:
                    shown.append(ShownStage(key, title, at_step, over_run, of, where=where))
    return FunnelAnswer(step, len(view.steps()), shown)


def _is_known(stage: Stage, known: set[str]) -> bool:
    return all(not known.isdisjoint(need.split()) for need in stage.needs)


def _known(view: SplitView) -> tuple[bool, set[str]]:
    """Looks whether the run has superseded rollouts, and which of the stages' columns are known of any of its rollouts."""
    names = sorted({name for stage in STAGES.values() for need in stage.needs for name in need.split()})
    counts = ", ".join(f'count("{name}")' for name in names)
    row = _row(
        view, f"SELECT count(*) FILTER (WHERE superseded), {counts} FROM rollouts WHERE run = ? AND split = ?"
    )
    return bool(row[0]), {name for name, n in zip(names, row[1:], strict=True) if n}


def _reasons(view: SplitView) -> list[tuple[str, str, str]]:
    """Stage, name and filter of each reason, the most frequent first."""
    where = "run = ? AND split = ? AND NOT superseded"
    found = [("failed", title, where_of) for title, where_of in FAILURES.items()]
    for of, column in (("failed", "stop_reason"), ("filtered", "discard_reason")):
        table = view.store.table().sql(
            f"SELECT {column}, count(*) AS n FROM rollouts WHERE {where} AND {column} IS NOT NULL"
            " GROUP BY 1 ORDER BY n DESC, 1",
            [view.info.name, view.split],
        )
        names = [str(name) for name in table[column].to_pylist() if of == "filtered" or name in FAILED_STOPS]
        found += [
            (
                of,
                f"stopped: {quoted(name)}" if of == "failed" else quoted(name),
                f"{column} = {literal(name)}",
            )
            for name in names[:MOST_REASONS]
        ]
    return found


def _count(view: SplitView, step: int, wheres: Sequence[str]) -> list[tuple[Counted, Counted]]:
    """Of each filter what it finds at the step and over the run, superseded rollouts left out."""
    conditions: list[str] = []
    parameters: list[Any] = []
    for at, where in enumerate(wheres):
        condition, given = view.store.sql_condition(where)
        conditions.append(f"({condition}) AS c{at}")
        parameters += given
    figures = [
        f"{figure} FILTER (WHERE {place}c{at})"
        for at in range(len(wheres))
        for place in ("here AND ", "")
        for figure in ("count(*)", "sum(n_sampled)")
    ]
    row = _row(
        view,
        f"SELECT {', '.join(figures)}, sum(n_sampled) FILTER (WHERE here), sum(n_sampled) FROM (SELECT n_sampled, "
        f"step = {int(step)} AS here, {', '.join(conditions)} FROM rollouts WHERE run = ? AND split = ? AND NOT superseded)",
        parameters,
    )
    *counts, of_step, of_run = row

    def share(tokens: Any, whole: Any, n: int) -> Number:
        return (
            None if not whole else 0.0 if not n else None if tokens is None else float(tokens) / float(whole)
        )

    return [
        (Counted(n, share(tokens, of_step, n)), Counted(n_run, share(tokens_run, of_run, n_run)))
        for n, tokens, n_run, tokens_run in zip(*(iter(counts),) * (len(counts) // len(wheres)), strict=True)
    ]


def _prompts(view: SplitView, step: int) -> list[ShownStage]:
    """Prompts that were loaded, where the trainer says, and prompts that rollouts were sampled of."""
    steps, values = scalars(view).get(LOADED, ((), ()))
    loaded = dict(zip(steps, values, strict=True))
    here = Counted(int(loaded[step]) if step in loaded else None, None)
    over = Counted(int(sum(loaded.values())) if loaded else None, None)
    lacking = "" if loaded else f"log_scalars({{'{LOADED}': n}}, step=...)"
    of_step, of_run = _row(
        view,
        f'SELECT count(*) FILTER (WHERE step = {int(step)}), count(*) FROM (SELECT DISTINCT step, "group", attempt'
        ' FROM rollouts WHERE run = ? AND split = ? AND NOT superseded AND "group" IS NOT NULL)',
    )
    return [
        ShownStage("loaded", "prompts loaded", here, over, unit="prompts", unobserved=lacking),
        ShownStage(
            "prompts", "prompts sampled", Counted(of_step, None), Counted(of_run, None), unit="prompts"
        ),
    ]


def _row(view: SplitView, query: str, before: Sequence[Any] = ()) -> list[Any]:
    table = view.store.table().sql(query, [*before, view.info.name, view.split])
    return [table.column(at)[0].as_py() for at in range(table.num_columns)]


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
    steps = [info.step for info in view.steps()][-MOST_STEPS:]
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
