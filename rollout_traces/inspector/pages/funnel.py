"""The funnel: what became of what was loaded, sampled, failed, filtered and trained on, at a step and over the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_traces.inspector.pages.figures import Number, scalars
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
        "trained and advantage_abs_max <= 1e-8",
        ("advantage_abs_max",),
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
    return FunnelAnswer(step, len(view.store.steps(view.run, view.split)), shown)


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
            [_run(view), view.split],
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
    table = view.store.table().sql(query, [*before, _run(view), view.split])
    return [table.column(at)[0].as_py() for at in range(table.num_columns)]


def _run(view: SplitView) -> str:
    return view.store.run(view.run).name
