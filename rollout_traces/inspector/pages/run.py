"""Is the run healthy, and if not since when and why: diagnoses, timeline, the metrics that matter, unobserved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.alarms.worn import Usual
from rollout_traces.analysis import Event, RunReport
from rollout_traces.analysis.curves import (
    Series,
    evaluation_curve,
    heaviest_curve,
    logged_series,
    mean_curves,
    n_steps_and_rows,
    tied_curve,
)
from rollout_traces.analysis.diagnosis import TIERS, Diagnosis
from rollout_traces.analysis.in_words import part_text, series_text
from rollout_traces.analysis.relations import Relations
from rollout_traces.analysis.selections import RunScope
from rollout_traces.analysis.unobserved import Unobserved
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import (
    MOST_DRAWN,
    Number,
    QueriesAnswer,
    RunProgress,
    answered_all,
    run_progress,
    thinned,
)
from rollout_traces.inspector.pages.incidents import run_alarms, run_diagnosed, run_events, run_scope
from rollout_traces.inspector.pages.runs import SettingsSince, since_run_before
from rollout_traces.inspector.workspace import SplitView, T, remembered, taken
from rollout_traces.model.text import quoted

MOST_POINTS = 400
"""Points of a chart."""
MATTERS = (
    ("reward", "Reward, mean", "number"),
    ("success", "Solved", "share"),
    ("n_sampled", "Sampled tokens, mean", "number"),
    ("group/tie_share", "Tied groups", "share"),
    ("mismatch_k3", "Mismatch of a rollout, k3", "number"),
    ("update/top3_share", "Update in three rollouts", "share"),
    ("staleness_max", "Staleness, oldest token", "number"),
)
"""Columns and measures of the ledger that a run is read by: key, title, unit."""
LOGGED = (("loss", "Loss"), ("grad_norm", "Gradient norm"), ("entropy", "Entropy"), ("kl", "KL"))
"""Endings of the names of logged numbers that matter, and their titles."""
MOST_COMPONENTS = 3
MOST_CHARTS = 3
"""Diagnoses that are shown with the curve of their first series."""


@dataclass(frozen=True)
class Chart:
    """A metric that matters."""

    key: str
    title: str
    unit: str
    steps: list[int]
    values: list[Number]


@dataclass(frozen=True)
class ShownDiagnosis:
    """A diagnosis and what follows from it.

    Attributes:
        in_force: whether it is there at the newest step.
        is_sure: whether it is hardly chance.
        flips: of an evaluation that fell: its split and the two steps whose prompts to compare.
        chart: the level of its first series at each step, of the first diagnoses of what is wrong.
    """

    name: str
    series: list[str]
    part: str
    shape: str
    sentence: str
    severity: str
    tier: str
    step: int | None
    last: int | None
    in_force: bool
    is_sure: bool
    where: str | None
    advice: str | None
    flips: tuple[str, int, int] | None
    consequences: list[ShownDiagnosis]
    chart: Chart | None = None


@dataclass(frozen=True)
class RunCurves:
    """The metrics that matter of a run and split.

    Attributes:
        kept_only: no step has a ledger: figures are over the kept rollouts.
        steps: the first and the last.
    """

    run: str
    split: str
    n_steps: int
    n_rows: int
    kept_only: bool
    steps: list[int]
    metrics: list[Chart]
    progress: RunProgress | None


@dataclass(frozen=True)
class RunAnswer(RunCurves):
    """The Run page: the metrics that matter, diagnoses in causal order, events, settings, what is unobserved."""

    verdict: Verdict
    tiers: tuple[str, ...]
    diagnoses: list[ShownDiagnosis]
    usual: list[Usual]
    events: tuple[Event, ...]
    n_events: int
    settings: SettingsSince | None
    unobserved: tuple[Unobserved, ...]
    remarks: tuple[str, ...]
    problems: tuple[str, ...]


@remembered
def run_curves(view: SplitView) -> RunCurves:
    """The metrics that matter of a run: the part of the Run page that takes no looking for changes."""
    run = run_scope(view)
    steps, n_rows = n_steps_and_rows(run)
    infos = view.steps()
    return RunCurves(
        run=run.run,
        split=run.split,
        n_steps=steps[2] if steps else 0,
        n_rows=n_rows,
        kept_only=bool(infos) and not any(info.n_rollouts for info in infos),
        steps=list(steps[:2]),
        metrics=_metrics(run) if steps else [],
        progress=run_progress(view) if steps else None,
    )


def run_report(view: SplitView) -> RunAnswer:
    """Is a run healthy: diagnoses in causal order, events, the metrics that matter, settings."""
    report = run_diagnosed(view)
    found = run_events(view)
    return RunAnswer(
        **vars(run_curves(view)),
        verdict=verdict(report),
        tiers=tuple(TIERS),
        diagnoses=_diagnoses(view, report),
        usual=run_alarms(view).listed(),
        events=without_queries(found[:MOST_DRAWN]),
        n_events=len(found),
        settings=since_run_before(view),
        unobserved=report.unobserved,
        remarks=report.remarks,
        problems=report.problems,
    )


def without_queries(found: Sequence[T]) -> tuple[T, ...]:
    """What is shown of events and sentences: the query of one's figures is given with its answer, where that is asked for."""
    return tuple(replace(each, query="") for each in found)  # type: ignore[type-var]


def diagnosis_figures(view: SplitView, diagnosis: int = 0, event: int | None = None) -> QueriesAnswer:
    """The figures of a diagnosis of the Run page and of its consequences, or of an event, computed again.

    Raises:
        StoreError: there is no such diagnosis or event.
    """
    table = view.store.table()
    if event is not None:
        events = run_events(view)
        if not 0 <= event < len(events) or not events[event].query:
            raise StoreError(f"event {event}: no query gives its figures again.")
        return answered_all(table, [events[event].query], events[event].step)
    found = run_diagnosed(view).diagnoses
    if not 0 <= diagnosis < len(found):
        raise StoreError(f"diagnosis {diagnosis}: there are {len(found)}.")
    head = found[diagnosis]
    queries = list(dict.fromkeys(q for d in (head, *head.consequences) for q in d.queries))
    return answered_all(table, queries, head.step)


def shown_diagnosis(d: Diagnosis, newest: int | None) -> ShownDiagnosis:
    """A diagnosis and what follows from it; `newest` is the run's last step."""
    return taken(
        ShownDiagnosis,
        d,
        series=[str(name) for name in d.series],
        part=part_text(d.part),
        tier=TIERS[d.tier],
        in_force=d.touches(newest, newest),
        consequences=[shown_diagnosis(each, newest) for each in d.consequences],
    )


def _diagnoses(view: SplitView, report: RunReport) -> list[ShownDiagnosis]:
    """The diagnoses as they are shown, the first of what is wrong with their curves."""
    charted = [at for at, d in enumerate(report.diagnoses) if d.severity != "info"][:MOST_CHARTS]
    return [
        replace(
            shown_diagnosis(d, report.last_step),
            chart=_curve_of(view.store.table(), d) if at in charted else None,
        )
        for at, d in enumerate(report.diagnoses)
    ]


def _curve_of(table: Relations, d: Diagnosis) -> Chart | None:
    """The level of a diagnosis' first series at each step, by the query that gives it again; None without one."""
    if not d.series or not d.queries:
        return None
    found = table.sql(d.queries[0])
    if not {"step", "level"} <= set(found.column_names):
        return None
    name = d.series[0]
    rows = [row for row in found.to_pylist() if row["step"] is not None and row["level"] is not None]
    if len(rows) < 2:
        return None
    title = " ".join(filter(None, (series_text(name), f"on {part_text(d.part)}" if d.part else "")))
    steps, levels = [row["step"] for row in rows], [float(row["level"]) for row in rows]
    unit = "share" if name.statistic in ("share", "text") else "number"
    return Chart(str(name), title, unit, *thinned(steps, levels, MOST_POINTS))


def _metrics(run: RunScope) -> list[Chart]:
    """The series that matter, chosen by what there is."""
    components = [name for name in run.columns.numbers if name.startswith("component/")][:MOST_COMPONENTS]
    means = [key for key, _, _ in MATTERS] + components + ["mean_logprob"]
    curves = (*mean_curves(run, means), *tied_curve(run), *heaviest_curve(run))
    whole = {curve.name.column: curve for curve in curves}
    logged = logged_series(run.relations, run.run)
    units = {key: unit for key, _, unit in MATTERS}
    found = []
    for key, title, unit in MATTERS:
        if key in whole:
            found.append(_chart(key, title, unit, whole[key]))
        if key == "reward":
            found += [
                _chart("evaluation", f"Evaluation, {curve.name.column}", units[curve.name.column], curve)
                for curve in evaluation_curve(run)
            ]
    for name in components:
        if name in whole:
            found.append(_chart(name, f"Component {quoted(name.split('/', 1)[1])}", "number", whole[name]))
    for ending, title in LOGGED:
        curve = _logged(logged, ending)
        if curve is not None:
            found.append(_chart(curve.name.column, f"{title} ({curve.name.column})", "number", curve))
    if "mean_logprob" in whole and not any("ntropy" in chart.title for chart in found):
        estimate = whole["mean_logprob"]
        line = thinned(estimate.steps, -np.asarray(estimate.values), MOST_POINTS)
        found.append(Chart("mean_logprob", "Entropy, estimated by −logprob", "number", *line))
    return found


def _logged(series: Sequence[Series], ending: str) -> Series | None:
    endings = (f"/{ending}", f"{ending}/mean", f"{ending}/avg")
    named = ((s, s.name.column) for s in series)
    return next((s for s, n in named if n.lower().endswith(endings) and not n.startswith("eval")), None)


def _chart(key: str, title: str, unit: str, series: Series) -> Chart:
    return Chart(key, title, unit, *thinned(series.steps, series.values, MOST_POINTS))


WORDS = {"error": "{n} {things} wrong", "warn": "{n} {things} to look at"}


@dataclass(frozen=True)
class Verdict:
    """The line.

    Attributes:
        severity: "error", "warn", "unknown" after too few steps, "" where nothing was found.
        text: in words.
        since: the first step that any of it began at; None where none is known.
    """

    severity: str
    text: str
    since: int | None = None


def verdict(report: RunReport) -> Verdict:
    """Counts what the diagnoses say.

    Args:
        report: the run's diagnoses.
    """
    for severity, words in WORDS.items():
        steps = [d.step for d in report.diagnoses if d.severity == severity]
        if steps:
            text = words.format(n=len(steps), things="thing" if len(steps) == 1 else "things")
            return Verdict(severity, text, min(steps))
    if not report.is_looked_at:
        return Verdict("unknown", "Too early to say")
    n = len(report.diagnoses)
    return Verdict(
        "", f"No warning; {n} {'thing' if n == 1 else 'things'} to know" if n else "Nothing stands out"
    )
