"""Is the run well: measures of every step over all its rollouts, each point with its examples."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.figures import axis_range, chosen_by, chosen_over_steps, flag_severities
from rollout_traces.inspector.pages.measures import MEASURES, Measure, tie_reasons
from rollout_traces.inspector.pages.rollouts import sample_card
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.ledger.columns import Ledger
from rollout_traces.store import Store
from rollout_traces.store.switched_off import off_in

EXAMPLES = 24
STEPS_AT_ONCE = 64


def health(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Measures, flags, discard and tie reasons of every step that has a ledger."""
    store = workspace.store(request.project)
    counted = [info for info in store.steps(request.run, request.split) if info.n_rollouts]
    low, high = axis_range(workspace, request, "reward")
    summaries = _summaries(
        workspace, request, [(info.step, info.n_rollouts or 0) for info in counted], low, high
    )
    steps = [info.step for info in counted]
    series = {
        measure.key: [summaries[step]["measures"][measure.key] for step in steps] for measure in MEASURES
    }
    shown = [measure for measure in MEASURES if any(value is not None for value in series[measure.key])]
    return {
        "steps": steps,
        "measures": [
            {"key": m.key, "title": m.title, "meaning": m.meaning, "unit": m.unit, "values": series[m.key]}
            for m in shown
        ],
        "flags": _matrix(steps, summaries, "flags"),
        "discards": _matrix(steps, summaries, "discards"),
        "ties": _matrix(steps, summaries, "ties"),
        "severities": flag_severities(),
        "n_traced": sum(info.n_traces for info in counted),
        "n_rows": sum(info.n_rollouts or 0 for info in counted),
        "chosen_by": chosen_over_steps(workspace, request),
        "counters": _counters(workspace, request),
        "off": {
            "flags": off_in(store, request.run, request.split, "flags_off") or "",
            "metrics": off_in(store, request.run, request.split, "metrics_off") or "",
        },
    }


def examples(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Kept rollouts behind a point: a measure, a flag, a discard or a tie reason at a step."""
    store = workspace.store(request.project)
    what, name = request.text("what", "measure"), request.text("name")
    where, order = _question(what, name)
    step = (request.step, request.step)
    page = store.query(
        request.run, request.split, where=where, order_by=order or None, steps=step, limit=EXAMPLES
    )
    everywhere = None if what == "flags" and needs_text(name) else _in_ledger(store, request, where)
    groups = store.groups(request.run, request.split, request.step)
    return {
        "where": where,
        "order": order,
        "samples": [sample_card(row) for row in page.rows],
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
    measure: Measure | None = next((m for m in MEASURES if m.key == name), None)
    if measure is None:
        raise StoreError(f"measure: no {name!r}. Measures: {', '.join(m.key for m in MEASURES)}.")
    return measure.where, measure.order


def _summaries(
    workspace: Workspace, request: Request, steps: list[tuple[int, int]], low: float, high: float
) -> dict[int, dict[str, Any]]:
    """Step -> what is known of it; a step is read again only when its number of rows changed."""
    known: dict[int, dict[str, Any]] = {}
    missing: list[tuple[int, int]] = []
    place = (request.project, request.run, request.split)
    for step, n_rows in steps:
        summary = workspace.steps_seen.get((*place, step, n_rows, low, high))
        if summary is None:
            missing.append((step, n_rows))
        else:
            known[step] = summary
    store = workspace.store(request.project)
    for at in range(0, len(missing), STEPS_AT_ONCE):
        part = missing[at : at + STEPS_AT_ONCE]
        ledger = store.ledger(request.run, request.split, steps=(part[0][0], part[-1][0]))
        of_row = ledger.get("step")
        for step, n_rows in part:
            summary = summarise(ledger.take((of_row == step).nonzero()[0]), low, high)
            workspace.steps_seen[(*place, step, n_rows, low, high)] = known[step] = summary
    return known


def summarise(ledger: Ledger, low: float, high: float) -> dict[str, Any]:
    """The measures and counts of one step's rows.

    Args:
        ledger: all rollouts of the step.
        low: the worst reward of the run, to tell why a group is tied.
        high: the best.
    """
    n_rows = max(ledger.n_rows, 1)
    discards = Counter(reason for reason in ledger.get("discard_reason").tolist() if reason is not None)
    groups = max(len(set(ledger.get("group").tolist())), 1)
    return {
        "measures": {measure.key: _finite(measure.compute(ledger)) for measure in MEASURES},
        "flags": flag_shares(ledger),
        "discards": {name: (count / n_rows, count) for name, count in discards.items()},
        "ties": {name: (count / groups, count) for name, count in tie_reasons(ledger, low, high).items()},
    }


def flag_shares(ledger: Ledger) -> dict[str, tuple[float, int]]:
    """Flag -> its share and its number of rows.

    A flag found without text is a share of all rows. One that needs text is known for kept rows alone,
    so its share is that of the rows kept at random (of all kept ones where none was); the number counts
    every kept row that carries it.
    """
    names = ledger.get("flags").tolist()
    counts = Counter(name for row in names for name in row)
    kept = [row for row, uid in enumerate(ledger.get("trace_uid").tolist()) if uid is not None]
    reasons = ledger.get("selected_by")
    sample = [row for row in kept if reasons[row] == "random"] or kept
    shares = {}
    for name, count in counts.items():
        if needs_text(name):
            shares[name] = (sum(name in names[row] for row in sample) / max(len(sample), 1), count)
        else:
            shares[name] = (count / max(ledger.n_rows, 1), count)
    return shares


def needs_text(flag: str) -> bool:
    """True for a flag that only a decoded rollout can carry."""
    from rollout_traces.flags import REGISTRY

    return flag in REGISTRY and REGISTRY[flag].population is None


def _matrix(steps: list[int], summaries: dict[int, dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Rows of a heat table, the largest first: name -> a share and a count for each step."""
    rows = []
    for name in {name for step in steps for name in summaries[step][key]}:
        pairs = [summaries[step][key].get(name, (0.0, 0)) for step in steps]
        values, counts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        estimated = key == "flags" and needs_text(name)
        rows.append({"name": name, "values": values, "counts": counts, "estimated": estimated})
    return sorted(rows, key=lambda row: (-sum(row["values"]), row["name"]))


def _counters(workspace: Workspace, request: Request) -> dict[str, float] | None:
    """What the run's logger counted and what waits in its spool on this machine; None over a server."""
    if not workspace.is_local:
        return None
    from rollout_traces.worker.recovery import find_left

    found: Counter[str] = Counter()
    for left in find_left(request.project):
        if left.run_name == request.run:
            found.update(left.folder.status().get("counters", {}))
            found["records_waiting"] += left.n_records
    return dict(found)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


PAGE = Page(name="health", title="Health", key="4", functions=(health, examples))
