"""What is abnormal for a run: its incidents, the flags that are properties of it, and what its rows wear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_traces.alarms.incidents import Incident, over_steps
from rollout_traces.alarms.many_steps import filled
from rollout_traces.alarms.report import sentence_of
from rollout_traces.alarms.signals import (
    ENTROPY,
    MISMATCH,
    REWARD_FAILURE,
    Signal,
    StepSignals,
    watched,
)
from rollout_traces.alarms.worn import Usual, Worn, risen_at, usual_flags, worn
from rollout_traces.errors import StoreError
from rollout_traces.flags import parameters_of_run
from rollout_traces.inspector.incident_marks import IncidentMarks
from rollout_traces.inspector.pages.labels import TAKES_NONE
from rollout_traces.inspector.visitor import who_asks
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store import TraceRow
from rollout_traces.store.step_signals import signals_by_step

ROWS_AT_ONCE = 1 << 17
"""Rows that are counted together."""
WHERE = {
    REWARD_FAILURE: "reward_status in ('timeout', 'error')",
    MISMATCH: "mismatch_k3 is not null",
    ENTROPY: "mean_logprob is not null",
}
"""The rows behind a signal that is no flag."""


@dataclass(frozen=True)
class RunAlarms:
    """What the ledgers of a run's split say.

    Attributes:
        signals: what was watched, with the thresholds that are stored with the run.
        usual: flags that are properties of the run, by name.
        incidents: all of them, in the order in which they opened.
    """

    signals: Mapping[str, Signal] = field(default_factory=dict)
    usual: Mapping[str, Usual] = field(default_factory=dict)
    incidents: Sequence[Incident] = ()

    def worn_by(self, row: TraceRow) -> Worn:
        """A row's flags, by what they mean for the row."""
        return self.worn_of(row.values, row.step)

    def worn_of(self, values: Mapping[str, Any], step: int) -> Worn:
        """The flags of a row's columns or a trace's metadata, by what they mean for the row."""
        flags = values.get("flags")
        names = [name for name in flags if isinstance(name, str)] if isinstance(flags, list | tuple) else []
        return worn(names, step, values.get("source"), self.usual, self.incidents)

    def usual_at(self, step: int, source: str | None) -> set[str]:
        """The flags that are properties of the run and did not rise at a step."""
        return set(self.usual) - risen_at(step, source, self.incidents)


def run_alarms(workspace: Workspace, request: Request) -> RunAlarms:
    """Reads a run's split; a step is read again only when its number of rows changed."""

    def read() -> RunAlarms:
        steps = _signals(workspace, request)
        signals = watched(parameters_of_run(workspace.store(request.project).config(request.run)))
        return RunAlarms(signals, usual_flags(steps), over_steps(steps, signals).incidents)

    return workspace.remembered(("alarms", request.run, request.split), request.project, read)


def worn_listed(worn: Worn) -> dict[str, Any]:
    """What a card shows of a row's flags: `flags` that it wears, and under each those that it explains."""
    return {
        "flags": list(worn.names),
        "explains": {name: list(names) for name, names in worn.worn if names},
        "usual_flags": [*worn.usual, *worn.of_group],
    }


def usual_marked(
    flags: Sequence[dict[str, Any]], metadata: Mapping[str, Any], alarms: RunAlarms
) -> list[dict[str, Any]]:
    """A rollout's flags, each with `usual`: whether it is a property of the run, so that the rollout does not wear it.

    Args:
        flags: as `rollout_payload` lists them.
        metadata: the trace's.
        alarms: of the rollout's run and split.
    """
    step = metadata.get("step")
    wearing = alarms.worn_of(metadata, step).names if type(step) is int else tuple(alarms.usual)
    return [flag | {"usual": flag["name"] in alarms.usual and flag["name"] not in wearing} for flag in flags]


def incident_bar(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The split's open incidents, worst first, each with whether it was muted or acknowledged.

    And `usual`: the flags that are properties of the run, by name, each with the first and last steps at which
    rows wear it all the same; no last step while its incident is open.
    """
    store = workspace.store(request.project)
    alarms = run_alarms(workspace, request)
    marks = IncidentMarks(store.source.marks_path()).of(store.run(request.run).id, request.split)
    order = ("error", "warn", "info")
    listed = [each for each in incidents_listed(alarms, request.split) if each["closed"] is None]
    for each in listed:
        when, times = marks.acknowledged.get(each["name"], ("", -1))
        each["muted"] = (each["signal"], each["source"]) in marks.muted
        each["acknowledged"] = when if times >= each["times"] else None
    return {
        "incidents": sorted(listed, key=lambda each: order.index(each["severity"])),
        "usual": {name: _risen(alarms, name) for name in alarms.usual},
    }


def _risen(alarms: RunAlarms, name: str) -> list[tuple[int, int | None]]:
    return [
        (each.opened, None if each.closed is None else each.last)
        for each in alarms.incidents
        if each.signal == name
    ]


def mark_incident(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Mutes or acknowledges an incident, or takes that back; the bar after it.

    Raises:
        StoreError: this server takes no labels, there is no such incident, or the mark cannot be written.
    """
    if not workspace.may_label:
        raise StoreError(f"{TAKES_NONE} Marks neither.")
    store = workspace.store(request.project)
    name, what = request.text("incident"), request.text("what")
    known = {each.name: each for each in run_alarms(workspace, request).incidents}
    if name not in known:
        raise StoreError(f"no incident {name!r} in {request.split}. It may be over; look at Run.")
    marks = IncidentMarks(store.source.marks_path())
    run = store.run(request.run).id
    marks.add(run, request.split, name, what, by=who_asks().name, times=len(known[name].reopened))
    return incident_bar(workspace, request)


def usual_listed(alarms: RunAlarms) -> list[dict[str, Any]]:
    """The run's properties, the most frequent first: name, share, and of how many rollouts."""
    ordered = sorted(alarms.usual.values(), key=lambda usual: (-usual.share, usual.name))
    return [{"name": usual.name, "share": usual.share, "n": usual.n} for usual in ordered]


def incidents_listed(alarms: RunAlarms, split: str) -> list[dict[str, Any]]:
    """The incidents: open ones first, then the newest; each with the filter that finds its rows."""
    ordered = sorted(alarms.incidents, key=lambda each: (each.closed is not None, -each.last, each.name))
    return [
        {
            "name": each.name,
            "signal": each.signal,
            "source": each.source,
            "severity": each.severity,
            "sentence": sentence_of(each, alarms.signals, split),
            "opened": each.opened,
            "last": each.last,
            "closed": each.closed,
            "times": len(each.reopened),
            "children": list(each.children),
            "n_rows": None if each.is_level else each.n_rows,
            "where": where_of(each),
        }
        for each in ordered
    ]


def where_of(incident: Incident) -> str:
    """The filter that finds an incident's rows among all rollouts."""
    parts = [WHERE.get(incident.signal, f"flags has {_quoted(incident.signal)}")]
    if incident.source:
        parts.append(f"source = {_quoted(incident.source)}")
    parts.append(f"step >= {incident.opened}")
    if incident.closed is not None:
        parts.append(f"step <= {incident.last}")
    return " and ".join(parts)


def _signals(workspace: Workspace, request: Request) -> list[StepSignals]:
    store = workspace.store(request.project)
    place = ("signals", request.project, request.run, request.split)
    keys = {
        info.step: (*place, info.step, info.n_rollouts)
        for info in store.steps(request.run, request.split)
        if info.n_rollouts
    }
    missing = {step: key[-1] for step, key in keys.items() if key not in workspace.steps_seen}
    for part in _parts(missing):
        for step, seen in signals_by_step(store, request.run, request.split, (part[0], part[-1])).items():
            if step in missing:
                workspace.steps_seen[keys[step]] = {"signals": seen}
    found = [workspace.steps_seen.get(key) for key in keys.values()]
    return filled([entry["signals"] for entry in found if entry is not None])


def _parts(n_rows: Mapping[int, int]) -> list[list[int]]:
    """Steps in parts of about `ROWS_AT_ONCE` rows."""
    parts: list[list[int]] = []
    left = 0
    for step, n in n_rows.items():
        if left <= 0:
            parts.append([])
            left = ROWS_AT_ONCE
        parts[-1].append(step)
        left -= n
    return parts


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
