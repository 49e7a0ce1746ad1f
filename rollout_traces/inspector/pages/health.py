"""Is the run well: measures of every step over all its rollouts, each point with its examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from rollout_traces.alarms.worn import Usual
from rollout_traces.errors import StoreError
from rollout_traces.flags import needs_text
from rollout_traces.inspector.pages.figures import (
    Card,
    Drawn,
    KeptRollouts,
    Number,
    chosen_over_steps,
    drawn_by,
    finite,
    population_of,
)
from rollout_traces.inspector.pages.incidents import cards, run_alarms
from rollout_traces.inspector.pages.measures import BY, FLAGGED, MEASURES, StepMeasure, flagged_share
from rollout_traces.inspector.payload import SEVERITIES
from rollout_traces.inspector.workspace import InParts, SplitView
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.metrics import StepView
from rollout_traces.metrics.groups import tie_causes
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.store import StepInfo
from rollout_traces.store.query.nodes import literal
from rollout_traces.store.step_metrics import by_step, ledger_metrics, logged_metrics, of_closed_step, off_in

EXAMPLES = 24
STEPS_AT_ONCE = 64
MEASURES_OF_TRAINING = (
    "group/tie_share",
    "group/wasted_token_share",
    "discarded/share",
    "update/top3_share",
)
"""Measures that mean nothing where nothing is trained on."""
MEASURES_OF_ALL = (FLAGGED, "discarded/share")
"""Measures that a trainer's own traces do not show: they carry flags of text alone, and none that was left out."""
WORST_FIRST = ("error", "warn", "info")
Shares = Mapping[str, tuple[float, int]]
"""Name -> a share and a number."""


@dataclass(frozen=True)
class StepSummary:
    """The figures of one step's rows.

    Attributes:
        metrics: by key.
        late: rows that came after the step was closed: what it logged does not speak of them.
        flags: flag -> its share and its number of rows.
        discards: the same of discard reasons.
        ties: the same of what tied groups have in common; numbers of groups.
    """

    metrics: Mapping[str, float]
    late: int
    flags: Shares
    discards: Shares
    ties: Shares


@dataclass(frozen=True, kw_only=True)
class ShownMeasure(StepMeasure):
    """A measure over the steps."""

    values: list[Number]


@dataclass(frozen=True)
class HeatRow:
    """A flag or reason: its share and number at each step; `estimated` where kept rows alone know it."""

    name: str
    values: list[float]
    counts: list[int]
    estimated: bool


@dataclass(frozen=True)
class HealthAnswer(InParts):
    """Measures, flags, discard and tie reasons over the steps.

    Attributes:
        usual: the flags that are properties of the run.
        by: columns by which a measure can be taken apart.
        late: step -> rollouts that came after it was closed: what it logged does not speak of them.
        kept_only: no step has a ledger: figures are over the kept rollouts.
        off: flags and metrics that were switched off, in words.
        counters: what the run's logger counted and what waits in its spool on this machine; None over a server.
        stored: how much is stored of what was handed over on this machine, and what was lost; None where no spool is left.
    """

    steps: list[int]
    measures: list[ShownMeasure]
    flags: list[HeatRow]
    usual: list[Usual]
    discards: list[HeatRow]
    ties: list[HeatRow]
    severities: Mapping[str, str]
    by: list[str]
    n_traced: int
    n_rows: int
    late: dict[int, int]
    kept_only: bool
    chosen_by: str | None
    off: dict[str, str]
    counters: dict[str, float] | None = None
    stored: str | None = None


@dataclass(frozen=True)
class ExamplesAnswer(Drawn):
    """Kept rollouts behind a point.

    Attributes:
        where: the filter that finds them.
        n_matched: kept ones of the step.
        n_rows: all ones of the step; None where only traces know it.
        population: of the step.
    """

    where: str
    order: str
    samples: list[Card]
    n_matched: int
    n_rows: int | None
    population: KeptRollouts


def health(view: SplitView) -> HealthAnswer:
    """Measures, flags, discard and tie reasons of every step that has a ledger; of the kept rollouts where none has."""
    steps = tuple(view.steps())
    found = view.remembered(("health", view.run, view.split, hash(steps)), lambda: _health(view))
    counters, stored = _handed_over(view) if view.workspace.is_local else (None, None)
    return replace(found, counters=counters, stored=stored)


def _health(view: SplitView) -> HealthAnswer:
    store = view.store
    counted, kept_only = _counted(view)
    steps = [info.step for info in counted]
    keys = [key for measure in MEASURES for key in measure.keys]
    logged = logged_metrics(store, view.run, view.split, keys)
    there = {key for metrics in logged.values() for key in metrics}
    summaries = _summaries(view, counted, tuple(key for key in keys if key not in there), kept_only=kept_only)
    metrics = [{**summaries[step].metrics, **logged.get(step, {})} for step in steps]
    evaluates = view.split.startswith("eval")
    left_out = (*(MEASURES_OF_ALL if kept_only else ()), *(MEASURES_OF_TRAINING if evaluates else ()))
    measures = [
        ShownMeasure(**vars(m), values=[_first_of(each, m.keys) for each in metrics])
        for m in MEASURES
        if m.key not in left_out
    ]
    shown = [summaries[step] for step in steps]
    return HealthAnswer(
        steps=steps,
        measures=[each for each in measures if any(value is not None for value in each.values)],
        flags=flag_matrix([each.flags for each in shown]),
        usual=run_alarms(view).listed(),
        discards=matrix([each.discards for each in shown]),
        ties=matrix([each.ties for each in shown]),
        severities=SEVERITIES,
        by=[name for name in BY if counted and _is_known(view, counted[-1].step, name, kept_only)],
        n_traced=sum(info.n_traces for info in counted),
        n_rows=sum(info.n_rollouts or 0 for info in counted),
        late={step: found.late for step, found in summaries.items() if found.late},
        kept_only=kept_only,
        chosen_by=chosen_over_steps(view),
        off={
            "flags": off_in(store, view.run, view.split, "flags_off") or "",
            "metrics": off_in(store, view.run, view.split, "metrics_off") or "",
        },
    )


def _counted(view: SplitView) -> tuple[list[StepInfo], bool]:
    """The steps that have a ledger; where none has, those that have traces, and True."""
    steps = view.steps()
    counted = [info for info in steps if info.n_rollouts]
    return (counted, False) if counted else ([info for info in steps if info.n_traces], True)


def _is_known(view: SplitView, step: int, column: str, kept_only: bool) -> bool:
    """Tells whether a step's ledger, or its kept rollouts where there is none, know a column."""
    read = view.store.kept_rows if kept_only else view.store.ledger_rows
    values = read(view.run, view.split, steps=step).get(column)
    return any(value not in (None, NULL_INT) for value in values.tolist())


def examples(view: SplitView, step: int, name: str, what: str = "measure") -> ExamplesAnswer:
    """Kept rollouts behind a point of Health; `what`: measure, flags, discards or ties."""
    where, order = _question(what, name)
    at = (step, step)
    page = view.query(where=where, order_by=order or None, steps=at, limit=EXAMPLES, attempts="newest")
    groups = view.groups(step)
    unknown = groups.n_rollouts is None or (what == "flags" and needs_text(name))
    return ExamplesAnswer(
        where=where,
        order=order,
        samples=cards(view, page.rows),
        n_matched=page.total,
        n_rows=None if unknown else _in_ledger(view, step, where),
        **drawn_by(view),
        population=population_of(groups),
    )


def _in_ledger(view: SplitView, step: int, where: str) -> int | None:
    """Counts, among all rollouts of the step, those that satisfy a filter; None where only traces know its columns."""
    try:
        return view.store.count(view.run, split=view.split, where=where, steps=(step, step), rows="all")
    except StoreError:
        return None


def _question(what: str, name: str) -> tuple[str, str]:
    quoted = literal(name)
    if what == "flags":
        return f"flags has {quoted}", ""
    if what == "discards":
        return f"discard_reason = {quoted}", ""
    if what == "ties":
        return "flags has 'tied_group'", ""
    measure: StepMeasure | None = next((m for m in MEASURES if m.key == name), None)
    if measure is None:
        raise StoreError(f"measure: no {name!r}. Measures: {', '.join(m.key for m in MEASURES)}.")
    return measure.where, measure.order


def _first_of(metrics: Mapping[str, float], keys: Sequence[str]) -> Number:
    return next((finite(metrics[key]) for key in keys if key in metrics), None)


def _summaries(
    view: SplitView, counted: Sequence[StepInfo], keys: tuple[str, ...], *, kept_only: bool
) -> dict[int, StepSummary]:
    """Step -> what its rows say; a step is read again only when its number of rows changed.

    Args:
        keys: the metrics that are computed here, as the run logs them at no step.
        kept_only: no step has a ledger, so that the kept rollouts are read.
    """
    seen = view.workspace.steps_seen
    place = (view.project, view.run, view.split)
    key_of = {
        info.step: (*place, info.step, info.n_rollouts or info.n_traces, info.digest_id, keys)
        for info in counted
    }
    missing = [step for step, key in key_of.items() if key not in seen]
    read = view.store.kept_rows if kept_only else view.store.ledger_rows
    for at in range(0, len(missing), STEPS_AT_ONCE):
        part = missing[at : at + STEPS_AT_ONCE]
        rows_of = dict(by_step(read(view.run, view.split, steps=(part[0], part[-1]))))
        for step in part:
            seen[key_of[step]] = summarise(rows_of.get(step, Ledger({})), view.split, keys, view.settings)
    return {step: seen[key] for step, key in key_of.items()}


def summarise(ledger: Ledger, split: str, keys: Sequence[str], settings: RunSettings) -> StepSummary:
    """The metrics and counts of one step's rows.

    Args:
        ledger: all rollouts of the step.
        split: `rollout` or `eval-rollout`.
        keys: the metrics to compute.
        settings: what the run declares.
    """
    n_rows = max(ledger.n_rows, 1)
    discards = Counter(reason for reason in ledger.get("discard_reason").tolist() if reason is not None)
    metrics = ledger_metrics(ledger, split, keys, settings) if ledger.n_rows and keys else {}
    return StepSummary(
        {**metrics, FLAGGED: flagged_share(ledger)},
        int((ledger.get("late") == 1).sum()),
        flag_shares(ledger),
        {name: (count / n_rows, count) for name, count in discards.items()},
        tie_reasons(ledger, settings),
    )


def tie_reasons(ledger: Ledger, settings: RunSettings) -> dict[str, tuple[float, int]]:
    """Tied groups of a step by what they have in common, as `group/tie_cause/<cause>_share` counts them.

    Returns:
        Reason -> its share of the groups of two or more, and its number of groups. Groups that have nothing in
        common but their reward say which one.
    """
    if not ledger.n_rows:
        return {}
    view = StepView(of_closed_step(ledger), None, settings)
    several = max(int((view.groups.sizes >= 2).sum()), 1)
    reasons: Counter[str] = Counter()
    for cause, reward in zip(tie_causes(view), view.groups.max(view.rewards), strict=True):
        if cause is not None:
            reasons[f"all at {reward:.3g}" if cause == "other" else cause.replace("_", " ")] += 1
    return {reason: (n / several, n) for reason, n in reasons.items()}


def flag_shares(ledger: Ledger) -> dict[str, tuple[float, int]]:
    """Flag -> its share and its number of rows.

    A flag found without text is a share of all rows. One that needs text is known for kept rows alone,
    so its share is that of the rows kept at random (of all kept ones where none was); the number counts
    every kept row that carries it.
    """
    names = ledger.get("flags").tolist()
    counts = Counter(chain.from_iterable(names))
    kept = [row for row, uid in enumerate(ledger.get("trace_uid").tolist()) if uid is not None]
    reasons = ledger.get("selected_by")
    sample = [row for row in kept if reasons[row] == "random"] or kept or range(ledger.n_rows)
    shares = {}
    for name, count in counts.items():
        if needs_text(name):
            shares[name] = (sum(name in names[row] for row in sample) / max(len(sample), 1), count)
        else:
            shares[name] = (count / max(ledger.n_rows, 1), count)
    return shares


def flag_matrix(steps: Sequence[Shares]) -> list[HeatRow]:
    """The rows of flags: the worst severity first; shares of flags that need text are estimated."""
    rows = [replace(row, estimated=needs_text(row.name)) for row in matrix(steps)]
    ranks = {severity: rank for rank, severity in enumerate(WORST_FIRST)}
    return sorted(rows, key=lambda row: ranks.get(SEVERITIES.get(row.name, ""), len(ranks)))


def matrix(steps: Sequence[Shares]) -> list[HeatRow]:
    """Rows of a heat table, the largest first: name -> a share and a count for each step."""
    names = {name for step in steps for name in step}
    rows = []
    for name in names:
        values, counts = zip(*(step.get(name, (0.0, 0)) for step in steps), strict=True)
        rows.append(HeatRow(name, list(values), list(counts), estimated=False))
    return sorted(rows, key=lambda row: (-sum(row.values), row.name))


def _handed_over(view: SplitView) -> tuple[dict[str, float], str | None]:
    """Reads what the run's logger counted and what waits in its spools on this machine; and what became of it, in words."""
    from rollout_traces.worker.recovery import find_left

    found: Counter[str] = Counter()
    accounts = []
    for left in find_left(view.project):
        if view.run in (left.run_name, left.manifest.run_id):
            found.update(left.folder.status().get("counters", {}))
            found["records_waiting"] += left.n_records
            accounts.append(str(left.account))
    return dict(found), "; ".join(accounts) or None
