"""Is the run well: measures of every step over all its rollouts, each point with its examples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.flags import needs_text
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.breakdown import BY, breakdown, flagged_share
from rollout_traces.inspector.pages.figures import axis_range, chosen_by, chosen_over_steps, flag_severities
from rollout_traces.inspector.pages.incidents import run_alarms, usual_listed
from rollout_traces.inspector.pages.measures import FLAGGED, MEASURES, StepMeasure
from rollout_traces.inspector.pages.rollouts import sample_card
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.metrics import StepView
from rollout_traces.metrics.groups import tie_causes
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.store import Store
from rollout_traces.store.rows import StepInfo
from rollout_traces.store.step_metrics import by_step, ledger_metrics, logged_metrics, of_closed_step
from rollout_traces.store.switched_off import off_in

EXAMPLES = 24
STEPS_AT_ONCE = 64
MEASURES_OF_TRAINING = (
    "group/tie_share",
    "group/wasted_token_share",
    "discarded/share",
    "update/top3_share",
)
"""What means nothing where nothing is trained on."""

MEASURES_OF_ALL = (FLAGGED, "discarded/share")
"""What a trainer's own traces do not show: they carry flags of text alone, and none that was left out."""


def health(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Measures, flags, discard and tie reasons of every step that has a ledger; of the kept rollouts where none has."""
    steps = tuple(workspace.store(request.project).steps(request.run, request.split))
    key = ("health", request.run, request.split, hash(steps))
    found = workspace.remembered(key, request.project, lambda: _health(workspace, request))
    return {**found, "counters": _counters(workspace, request), "stored": _stored(workspace, request)}


def _health(workspace: Workspace, request: Request) -> dict[str, Any]:
    store = workspace.store(request.project)
    counted, kept_only = _counted(store, request)
    steps = [info.step for info in counted]
    keys = [key for measure in MEASURES for key in measure.keys]
    logged = logged_metrics(store, request.run, request.split, keys)
    there = {key for metrics in logged.values() for key in metrics}
    never_logged = tuple(key for key in keys if key not in there)
    summaries = _summaries(
        workspace,
        request,
        [(info.step, info.n_rollouts or info.n_traces) for info in counted],
        never_logged,
        kept_only=kept_only,
    )
    metrics = {step: summaries[step]["metrics"] | logged.get(step, {}) for step in steps}
    series = {measure.key: [_first_of(metrics[step], measure.keys) for step in steps] for measure in MEASURES}
    evaluates = request.split.startswith("eval")
    shown = [
        measure
        for measure in MEASURES
        if any(value is not None for value in series[measure.key])
        and not (kept_only and measure.key in MEASURES_OF_ALL)
        and not (evaluates and measure.key in MEASURES_OF_TRAINING)
    ]
    return {
        "steps": steps,
        "measures": [
            {"key": m.key, "title": m.title, "meaning": m.meaning, "unit": m.unit, "values": series[m.key]}
            for m in shown
        ],
        "flags": _matrix(steps, summaries, "flags"),
        "usual": usual_listed(run_alarms(workspace, request)),
        "discards": _matrix(steps, summaries, "discards"),
        "ties": _matrix(steps, summaries, "ties"),
        "severities": flag_severities(),
        "by": [name for name in BY if _is_known(store, request, name)],
        "n_traced": sum(info.n_traces for info in counted),
        "n_rows": sum(info.n_rollouts or 0 for info in counted),
        "kept_only": kept_only,
        "chosen_by": chosen_over_steps(workspace, request),
        "off": {
            "flags": off_in(store, request.run, request.split, "flags_off") or "",
            "metrics": off_in(store, request.run, request.split, "metrics_off") or "",
        },
    }


def _counted(store: Store, request: Request) -> tuple[list[StepInfo], bool]:
    """The steps that have a ledger; where none has, those that have traces, and True."""
    steps = store.steps(request.run, request.split)
    counted = [info for info in steps if info.n_rollouts]
    return (counted, False) if counted else ([info for info in steps if info.n_traces], True)


def _is_known(store: Store, request: Request, column: str) -> bool:
    """Whether the last step's ledger, or its kept rollouts where there is none, know a column."""
    counted, kept_only = _counted(store, request)
    if not counted:
        return False
    read = store.kept_rows if kept_only else store.ledger_rows
    values = read(request.run, request.split, steps=counted[-1].step).get(column)
    return any(value not in (None, NULL_INT) for value in values.tolist())


def examples(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Kept rollouts behind a point: a measure, a flag, a discard or a tie reason at a step."""
    store = workspace.store(request.project)
    what, name = request.text("what", "measure"), request.text("name")
    where, order = _question(what, name)
    step = (request.step, request.step)
    page = store.query(
        request.run, request.split, where=where, order_by=order or None, steps=step, limit=EXAMPLES
    )
    groups = store.groups(request.run, request.split, request.step)
    unknown = groups.n_rollouts is None or (what == "flags" and needs_text(name))
    everywhere = None if unknown else _in_ledger(store, request, where)
    alarms = run_alarms(workspace, request)
    return {
        "where": where,
        "order": order,
        "samples": [sample_card(row, alarms.worn_by(row)) for row in page.rows],
        "n_matched": page.total,
        "n_rows": everywhere,
        "range": axis_range(workspace, request, "reward"),
        "severities": flag_severities(),
        "population": {
            "n_traced": groups.n_traces,
            "n_rows": groups.n_rollouts,
            "chosen_by": chosen_by(groups.selected_by),
        },
    }


def _in_ledger(store: Store, request: Request, where: str) -> int | None:
    """How many of all rollouts of the step satisfy a filter; None where only traces know its columns."""
    steps = (request.step, request.step)
    try:
        return store.count(request.run, request.split, where=where, steps=steps, rows="all")
    except StoreError:
        return None


def _question(what: str, name: str) -> tuple[str, str]:
    quoted = "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"
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


def _first_of(metrics: Mapping[str, float], keys: Sequence[str]) -> float | None:
    return next((_finite(metrics[key]) for key in keys if key in metrics), None)


def _summaries(
    workspace: Workspace,
    request: Request,
    steps: list[tuple[int, int]],
    keys: tuple[str, ...],
    *,
    kept_only: bool,
) -> dict[int, dict[str, Any]]:
    """Step -> what its ledger says, or its kept rollouts where there is none; a step is read again only when its number of rows changed.

    Args:
        workspace: where what was read before is kept.
        request: the run and split.
        steps: step and number of rows.
        keys: the metrics that are computed here, as the run logs them at no step.
        kept_only: no step has a ledger.
    """
    known: dict[int, dict[str, Any]] = {}
    missing: list[tuple[int, int]] = []
    place = (request.project, request.run, request.split)
    for step, n_rows in steps:
        summary = workspace.steps_seen.get((*place, step, n_rows, keys))
        if summary is None:
            missing.append((step, n_rows))
        else:
            known[step] = summary
    store = workspace.store(request.project)
    settings = RunSettings.from_config(store.config(request.run)) if missing else RunSettings()
    for at in range(0, len(missing), STEPS_AT_ONCE):
        part = missing[at : at + STEPS_AT_ONCE]
        read = store.kept_rows if kept_only else store.ledger_rows
        rows_of = dict(by_step(read(request.run, request.split, steps=(part[0][0], part[-1][0]))))
        for step, n_rows in part:
            summary = summarise(rows_of.get(step, Ledger({})), request.split, keys, settings)
            workspace.steps_seen[(*place, step, n_rows, keys)] = known[step] = summary
    return known


def summarise(ledger: Ledger, split: str, keys: Sequence[str], settings: RunSettings) -> dict[str, Any]:
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
    return {
        "metrics": {**metrics, FLAGGED: flagged_share(ledger)},
        "flags": flag_shares(ledger),
        "discards": {name: (count / n_rows, count) for name, count in discards.items()},
        "ties": tie_reasons(ledger, settings),
    }


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


def _matrix(steps: list[int], summaries: dict[int, dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Rows of a heat table, flags by severity, then the largest first: name -> a share and a count for each step."""
    rows = []
    for name in {name for step in steps for name in summaries[step][key]}:
        pairs = [summaries[step][key].get(name, (0.0, 0)) for step in steps]
        values, counts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        estimated = key == "flags" and needs_text(name)
        rows.append({"name": name, "values": values, "counts": counts, "estimated": estimated})
    ranks = {"error": 0, "warn": 1, "info": 2} if key == "flags" else {}
    severities = flag_severities()
    return sorted(
        rows,
        key=lambda row: (ranks.get(severities.get(row["name"], ""), 3), -sum(row["values"]), row["name"]),
    )


def _counters(workspace: Workspace, request: Request) -> dict[str, float] | None:
    """What the run's logger counted and what waits in its spool on this machine; None over a server."""
    if not workspace.is_local:
        return None
    from rollout_traces.worker.recovery import find_left

    found: Counter[str] = Counter()
    for left in find_left(request.project):
        if request.run in (left.run_name, left.manifest.run_id):
            found.update(left.folder.status().get("counters", {}))
            found["records_waiting"] += left.n_records
    return dict(found)


def _stored(workspace: Workspace, request: Request) -> str | None:
    """What became of what the run handed over on this machine; None where no spool of it is left."""
    if not workspace.is_local:
        return None
    from rollout_traces.worker.recovery import find_left

    found = [
        left for left in find_left(request.project) if request.run in (left.run_name, left.manifest.run_id)
    ]
    return "; ".join(str(left.account) for left in found) or None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


PAGE = Page(name="health", title="Health", key="4", functions=(health, breakdown, examples))
