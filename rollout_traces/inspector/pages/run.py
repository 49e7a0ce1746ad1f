"""Is the run healthy, and if not since when and why: diagnoses, timeline, the metrics that matter, unobserved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rollout_traces.analysis.curves import (
    evaluation_curve,
    heaviest_curve,
    mean_curves,
    n_steps_and_rows,
    tied_curve,
)
from rollout_traces.analysis.diagnosis import TIERS, Diagnosis
from rollout_traces.analysis.in_words import part_text
from rollout_traces.analysis.logged import logged_series
from rollout_traces.analysis.scope import RunScope
from rollout_traces.analysis.step_series import Series
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.diagnosed import run_diagnosed, run_events, run_scope
from rollout_traces.inspector.pages.explain import answered_all, explain, figures, without_queries
from rollout_traces.inspector.pages.figures import run_progress
from rollout_traces.inspector.pages.incidents import run_alarms, usual_listed
from rollout_traces.inspector.pages.settings_between import since_run_before
from rollout_traces.inspector.pages.share import share
from rollout_traces.inspector.pages.verdict import verdict
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.quoting import quoted

MOST_POINTS = 400
"""Points of a chart."""
MOST_EVENTS = 200
MATTERS = (
    ("reward", "Reward, mean", "number"),
    ("success", "Solved", "share"),
    ("n_sampled", "Sampled tokens, mean", "number"),
    ("group/tie_share", "Tied groups", "share"),
    ("mismatch_k3", "Trainer against sampler, k3", "number"),
    ("update/top3_share", "Update in three rollouts", "share"),
    ("staleness_max", "Staleness, mean of the oldest token", "number"),
)
"""Columns and measures of the ledger that a run is read by: key, title, unit."""
LOGGED = (("loss", "Loss"), ("grad_norm", "Gradient norm"), ("entropy", "Entropy"), ("kl", "KL"))
"""What ends the name of a logged number that matters, and its title."""
MOST_COMPONENTS = 3


def _kept_only(workspace: Workspace, request: Request) -> bool:
    """Whether no step has a ledger, so that the kept rollouts are all that is known."""
    steps = workspace.store(request.project).steps(request.run, request.split)
    return bool(steps) and not any(info.n_rollouts for info in steps)


def run_curves(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The metrics that matter of a run and split: what the page draws before the diagnoses are there."""
    run = run_scope(workspace, request)
    key = ("run curves", run.run, request.split)
    return workspace.remembered(key, request.project, lambda: _curves(workspace, request, run))


def _curves(workspace: Workspace, request: Request, run: RunScope) -> dict[str, Any]:
    steps, n_rows = n_steps_and_rows(run)
    return {
        "run": run.run,
        "split": run.split,
        "n_steps": steps[2] if steps else 0,
        "n_rows": n_rows,
        "kept_only": _kept_only(workspace, request),
        "steps": steps[:2],
        "metrics": _metrics(run) if steps else [],
        "progress": run_progress(workspace, request) if steps else None,
    }


def run_report(workspace: Workspace, request: Request) -> dict[str, Any]:
    """What `run_curves` gives, and diagnoses in causal order, events and what is unobserved."""
    report = run_diagnosed(workspace, request)
    found = run_events(workspace, request)
    alarms = run_alarms(workspace, request)
    return {
        **run_curves(workspace, request),
        "verdict": verdict(report),
        "tiers": TIERS,
        "diagnoses": [_diagnosis(d, report.last_step) for d in report.diagnoses],
        "usual": usual_listed(alarms),
        "events": [without_queries(asdict(event)) for event in found[:MOST_EVENTS]],
        "n_events": len(found),
        "settings": since_run_before(workspace, request),
        "unobserved": [{**asdict(missing), "text": str(missing)} for missing in report.unobserved],
        "remarks": list(report.remarks),
        "problems": list(report.problems),
    }


def diagnosis_figures(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The figures of a diagnosis and of its consequences, or of an event, computed again by the queries that the page shows.

    Raises:
        StoreError: there is no such diagnosis or event.
    """
    report = run_diagnosed(workspace, request)
    table = workspace.store(request.project).table()
    event = request.number("event")
    if event is not None:
        found = run_events(workspace, request)
        if not 0 <= event < len(found) or not found[event].query:
            raise StoreError(f"event {event}: no query gives its figures again.")
        return answered_all(table, [found[event].query])
    at = request.number("diagnosis") or 0
    if not 0 <= at < len(report.diagnoses):
        raise StoreError(f"diagnosis {at}: there are {len(report.diagnoses)}.")
    head = report.diagnoses[at]
    return answered_all(table, list(dict.fromkeys(q for d in (head, *head.consequences) for q in d.queries)))


def _diagnosis(d: Diagnosis, newest: int | None) -> dict[str, Any]:
    return {
        "name": d.name,
        "series": [str(name) for name in d.series],
        "part": part_text(d.part),
        "shape": d.shape,
        "sentence": d.sentence,
        "severity": d.severity,
        "tier": TIERS[d.tier],
        "step": d.step,
        "last": d.last,
        "in_force": d.touches(newest, newest),
        "where": d.where,
        "advice": d.advice,
        "flips": d.flips,
        "consequences": [_diagnosis(each, newest) for each in d.consequences],
    }


def _metrics(run: RunScope) -> list[dict[str, Any]]:
    """The series that matter, chosen by what there is."""
    components = [name for name in run.columns.numbers if name.startswith("component/")]
    means = [key for key, _, _ in MATTERS] + components[:MOST_COMPONENTS] + ["mean_logprob"]
    curves = (*mean_curves(run, means), *tied_curve(run), *heaviest_curve(run))
    whole = {curve.name.column: curve for curve in curves}
    logged = logged_series(run.relations, run.run)
    found = []
    for key, title, unit in MATTERS:
        series = whole.get(key)
        if series is not None:
            found.append(_chart(key, title, unit, series.steps, series.values))
        if key == "reward":
            found += [
                _chart("evaluation", f"Evaluation, {curve.name.column}", "number", curve.steps, curve.values)
                for curve in evaluation_curve(run)
            ]
    for name in components[:MOST_COMPONENTS]:
        if name in whole:
            chart = whole[name]
            title = f"Component {quoted(name.split('/', 1)[1])}"
            found.append(_chart(name, title, "number", chart.steps, chart.values))
    for ending, title in LOGGED:
        curve = _logged(logged, ending)
        if curve is not None:
            key = curve.name.column
            found.append(_chart(key, f"{title} ({key})", "number", curve.steps, curve.values))
    estimate = whole.get("mean_logprob")
    if estimate is not None and not any("ntropy" in chart["title"] for chart in found):
        title = "Entropy, estimated by −logprob"
        found.append(_chart("mean_logprob", title, "number", estimate.steps, -estimate.values))
    return found


def _logged(series: Sequence[Series], ending: str) -> Series | None:
    return next(
        (
            s
            for s in series
            if s.name.column.lower().endswith(("/" + ending, ending + "/mean", ending + "/avg"))
            and not s.name.column.startswith("eval")
        ),
        None,
    )


def _chart(key: str, title: str, unit: str, steps: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    stride = max(1, math.ceil(len(steps) / MOST_POINTS))
    kept = sorted({*range(0, len(steps), stride), len(steps) - 1})
    plain = [float(values[at]) if math.isfinite(values[at]) else None for at in kept]
    return {
        "key": key,
        "title": title,
        "unit": unit,
        "steps": [int(steps[at]) for at in kept],
        "values": plain,
    }


PAGE = Page(
    name="run",
    title="Run",
    key="6",
    functions=(run_curves, run_report, explain, figures, diagnosis_figures, share),
)
