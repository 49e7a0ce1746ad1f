"""The common parts of several pages: ranges, series over the steps, rollouts in lists, how rows were chosen, queries of a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from rollout_traces.alarms.worn import Worn
from rollout_traces.analysis.relations import Relations
from rollout_traces.inspector.payload import SEVERITIES
from rollout_traces.inspector.workspace import SplitView, remembered
from rollout_traces.model.text import words
from rollout_traces.store import StepGroups, TraceRow

MOST_READ = 10_000
"""Rows of one question to the store that a page reads."""
PAGE_ROWS = 100
"""Rows of a list that a page gets at a time."""
MOST_DRAWN = 200
"""Things of one kind that are drawn: lanes, branches, events."""
MOST_POINTS = 800
"""Points of a line sent to the page; longer ones are thinned."""

USUAL = words(
    """
    reward/mean reward/std success/mean tokens/completion/mean stop/length_share group/tie_share
    staleness/mean mismatch/k3 tools/errors_per_call entropy/mean nll_estimate update/top3_share
    """
)
LOSSES = words("train/loss loss train/actor/loss actor/pg_loss train/grad_norm grad_norm actor/grad_norm")
EVALUATION = ("eval-rollout/reward/mean", "eval-rollout/success/mean")
MOST_USUAL = 7
MOST_COMPONENTS = 4
TIMINGS = ("time/", "timeperf/")
"""Scalars of these prefixes are seconds spent."""
MOST_TIMINGS = 24
Logged = Mapping[str, tuple[list[int], list[float]]]
Number = float | None
"""A number; None where it is unknown or not finite."""
Range = tuple[float, float]
"""The lowest and the highest value."""


@dataclass(frozen=True)
class SeriesPoints:
    """Values over steps.

    Attributes:
        steps: ascending.
        values: one a step.
        superseded: the steps that only an older attempt of the run has.
    """

    steps: list[int]
    values: list[Number]
    superseded: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run at each step: rollouts seen and tokens sampled."""

    steps: list[int]
    rollouts: list[Number]
    tokens: list[Number]


@dataclass(frozen=True)
class RunSeries:
    """A run's logged numbers.

    Attributes:
        names: all there are.
        shown: those that were asked for, the usual ones when none.
        series: these, by name.
        resumed_at: the first step of every attempt but the first.
        timings: seconds spent, by name.
    """

    names: list[str]
    shown: list[str]
    series: dict[str, SeriesPoints]
    resumed_at: list[int]
    timings: dict[str, SeriesPoints]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """An answer with rollouts: the range of their rewards, and the severity of each flag."""

    range: Range
    severities: Mapping[str, str]


def drawn_by(view: SplitView) -> dict[str, Any]:
    """Gives the fields of `Drawn`."""
    return {"range": axis_range(view, "reward"), "severities": SEVERITIES}


def chosen_by(counts: Mapping[str, int]) -> str | None:
    """Says in words how the kept rollouts were chosen: `16 best, 8 random, 2 alarm: stalest`; None where all were."""
    if set(counts) <= {"all"}:
        return None
    return ", ".join(f"{count:,} {in_words(reason)}" for reason, count in counts.items())


def in_words(reason: str) -> str:
    """A reason of the selection as a person reads it: `discarded:zero_advantage`, `discarded: zero advantage`."""
    return reason.replace("_", " ").replace(":", ": ")


@remembered
def chosen_over_steps(view: SplitView) -> str | None:
    """Says in words how the kept rollouts of all steps of a split were chosen; None where no trace says it."""
    found = view.store.facets("selected_by", run=view.run, split=view.split)
    return chosen_by({str(reason): count for reason, count in found if reason is not None})


@remembered
def scalars(view: SplitView) -> Logged:
    """A run's logged numbers, one value a step (the last one), steps ascending."""
    return {name: _one_a_step(*values) for name, values in view.store.metrics(view.run).items()}


def split_series(view: SplitView, wanted: Sequence[str]) -> RunSeries:
    """Names of all series of a run, and the wanted ones (the usual ones when none) as points.

    Args:
        wanted: names of series; unknown ones are left out.
    """
    known = scalars(view)
    names = sorted(known, key=lambda name: (not name.startswith(f"{view.split}/"), name))
    shown = [name for name in wanted if name in known] or _usual(names, view.split)
    timings = [name for name in names if name.startswith(TIMINGS)][:MOST_TIMINGS]
    lost = view.remembered(("superseded", view.run), lambda: view.store.superseded_metrics(view.run))
    return RunSeries(
        names,
        shown,
        series={name: SeriesPoints(*thinned(*known[name]), sorted(lost.get(name, ()))) for name in shown},
        resumed_at=list(view.info.resumed_at),
        timings={name: SeriesPoints(*thinned(*known[name])) for name in timings},
    )


@remembered
def run_progress(view: SplitView) -> RunProgress:
    """Rollouts seen and tokens sampled by each step of the split, from all its rollouts: the axes beside steps."""
    from rollout_traces.analysis.runs import progress

    found = progress(view.store.table(), view.info.name, view.split)
    return RunProgress(*thinned(found.steps, found.rollouts), thinned(found.steps, found.tokens)[1])


def axis_range(view: SplitView, name: str) -> Range:
    """The range of `reward` or `component/<name>`: declared by the run, else observed in it; 0 to 1 when nothing is known."""
    settings = view.settings
    declared = settings.metric_ranges.get(name) or (settings.reward_range if name == "reward" else None)
    if declared is not None:
        return (declared.min, declared.max)
    metric = name.replace("component/", "reward/", 1)
    known = scalars(view)
    ends = [
        pick(values)
        for split in ("rollout", "eval-rollout")
        for end, pick in (("min", min), ("max", max))
        if (values := [v for v in known.get(f"{split}/{metric}/{end}", ((), ()))[1] if math.isfinite(v)])
    ]
    if not ends:
        return (0.0, 1.0)
    low, high = min(ends), max(ends)
    return (low, high) if low < high else (min(low, 0.0), max(high, 1.0))


def reward_ranges(view: SplitView, metadata: Mapping[str, Any]) -> dict[str, Range]:
    """The ranges of the reward and of the components that a trace has."""
    names = ["reward", *(key for key in metadata if key.startswith("component/"))]
    return {name: axis_range(view, name) for name in names}


def finite(value: float) -> Number:
    """A number, None where it is not finite."""
    return value if math.isfinite(value) else None


def thinned(
    steps: Sequence[int] | np.ndarray, values: Sequence[float] | np.ndarray, most: int = MOST_POINTS
) -> tuple[list[int], list[Number]]:
    """As many points of a line as `most` at about equal distances, and the last one: steps, values."""
    n = len(steps)
    kept = sorted({*range(0, n, max(1, math.ceil(n / most))), n - 1}) if n else []
    return [int(steps[at]) for at in kept], [finite(float(values[at])) for at in kept]


def _usual(names: Sequence[str], split: str) -> list[str]:
    """Reward, its components, evaluation, loss and gradient, then what else is usual; else the first there are."""
    known = set(names)
    own = [f"{split}/{name}" for name in USUAL if f"{split}/{name}" in known]
    parts = [name for name in names if _is_component(name, split)][:MOST_COMPONENTS]
    beside = [name for name in (*EVALUATION, *LOSSES) if name in known and name not in own]
    wanted = [*own[:1], *parts, *beside, *own[1:MOST_USUAL]]
    return wanted or list(names[:MOST_USUAL])


def _is_component(name: str, split: str) -> bool:
    """`rollout/reward/<component>/mean`."""
    parts = name.removeprefix(f"{split}/reward/").split("/")
    return name.startswith(f"{split}/reward/") and len(parts) == 2 and parts[1] == "mean"


def _one_a_step(steps: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    last = dict(zip(steps, values, strict=True))
    ordered = sorted(last)
    return ordered, [last[step] for step in ordered]


@dataclass(frozen=True)
class AnsweredQuery:
    """A statement with its answer: the first of its rows, or those around a step."""

    sql: str
    columns: list[str]
    rows: list[list[Any]]
    n_rows: int


@dataclass(frozen=True)
class QueriesAnswer:
    """The figures of a sentence, computed again."""

    queries: list[AnsweredQuery]


def answered_all(relations: Relations, queries: Sequence[str], around: int | None = None) -> QueriesAnswer:
    """Queries of the analysis, each with its rows; of many steps, those around the one that is given."""
    return QueriesAnswer([_answered(relations, query, around) for query in queries])


def _answered(relations: Relations, query: str, around: int | None) -> AnsweredQuery:
    found = relations.sql(query)
    first = 0
    if around is not None and "step" in found.column_names:
        n_before = sum(step is not None and step < around for step in found["step"].to_pylist())
        first = max(min(n_before - MOST_DRAWN // 2, found.num_rows - MOST_DRAWN), 0)
    rows = [[_plain(value) for value in row.values()] for row in found.slice(first, MOST_DRAWN).to_pylist()]
    return AnsweredQuery(query, found.column_names, rows, found.num_rows)


def _plain(value: Any) -> Any:
    """A value as JSON has it: DuckDB sums whole numbers as decimals."""
    return int(value) if isinstance(value, Decimal) else value


AS_STORED = words(
    """
    snippet discard_reason stop_reason selected_by group sample reward advantage n_tokens n_sampled staleness_max
    """
)


@dataclass(frozen=True, kw_only=True)
class Card:
    """A rollout as lists show it.

    Attributes:
        flags: those that it wears: abnormal for the run.
        explains: under each of these those that it explains.
        usual_flags: those that are usual for the run, or of its group.
        late: it came after its step was closed.
        superseded: a later attempt of the run trained its step, or one before.
        sorted_by: the value that the list is sorted by.
    """

    id: str | None
    step: int
    words: str
    prompt: str
    snippet: str | None
    flags: list[str]
    explains: dict[str, list[str]] = field(default_factory=dict)
    usual_flags: list[str] = field(default_factory=list)
    labels: list[str]
    discard_reason: str | None
    late: bool
    superseded: bool
    stop_reason: str | None
    selected_by: str | None
    group: int | None
    sample: int | None
    reward: Number
    advantage: Number
    n_tokens: int | None
    n_sampled: int | None
    staleness_max: int | None
    sorted_by: float | str | None = None


@dataclass(frozen=True, kw_only=True)
class KeptRollouts:
    """Numbers of the rollouts that there were and that were kept, and how these were chosen, in words."""

    n_traced: int
    n_rows: int | None
    chosen_by: str | None


@dataclass(frozen=True, kw_only=True)
class KeptOfStep(KeptRollouts):
    """The same of one step."""

    step: int


def population(view: SplitView, step: int) -> KeptOfStep:
    """Counts how many rollouts of a step were kept, and says how they were chosen."""
    return KeptOfStep(step=step, **vars(population_of(view.groups(step))))


def population_of(groups: StepGroups) -> KeptRollouts:
    """The same, of groups that were read: where no ledger says how many there were, the traces may."""
    populations = [row["population"] for group in groups.groups for row in group.traces]
    n_rows = groups.n_rollouts or max((n for n in populations if isinstance(n, int)), default=None)
    return KeptRollouts(n_traced=groups.n_traces, n_rows=n_rows, chosen_by=chosen_by(groups.selected_by))


def population_over_steps(view: SplitView) -> KeptRollouts:
    """The same of all steps of a split."""
    steps = view.steps()
    return KeptRollouts(
        n_traced=sum(info.n_traces for info in steps),
        n_rows=sum(info.n_rollouts or 0 for info in steps) or None,
        chosen_by=chosen_over_steps(view),
    )


def sample_card(row: TraceRow, worn: Worn | None = None, sorted_by: str | None = None) -> Card:
    """Makes the card of a rollout, as the list shows it.

    Args:
        worn: which of its flags are abnormal for the run; all are shown when None.
        sorted_by: the column that the list is sorted by first.
    """
    known = row.values
    value = None if sorted_by is None else row.get(sorted_by)
    stored: dict[str, Any] = {name: known.get(name) for name in AS_STORED}
    return Card(
        id=row.id,
        step=row.step,
        words=known.get("reply") or known.get("prompt") or "",
        prompt=known.get("prompt") or "",
        labels=list(known.get("labels") or ()),
        late=bool(known.get("late")),
        superseded=bool(known.get("superseded")),
        sorted_by=value if isinstance(value, (int, float, str)) else None,
        **({"flags": list(known.get("flags") or ())} if worn is None else worn_listed(worn)),
        **stored,
    )


def worn_listed(worn: Worn) -> dict[str, Any]:
    """Lists a row's flags for its card: `flags` that it wears, and under each those that it explains."""
    return {
        "flags": list(worn.names),
        "explains": {name: list(names) for name, names in worn.worn if names},
        "usual_flags": [*worn.usual, *worn.of_group],
    }
