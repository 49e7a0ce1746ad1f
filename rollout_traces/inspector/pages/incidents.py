"""What is abnormal for a run: its incidents, the flags that are properties of it, and what its rows wear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_traces.alarms.incidents import Incident, over_steps
from rollout_traces.alarms.report import sentence_of
from rollout_traces.alarms.signals import (
    ENTROPY,
    MISMATCH,
    REWARD_FAILURE,
    StepSignals,
    signals_of,
    watched,
)
from rollout_traces.alarms.worn import Usual, Worn, usual_flags, worn
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store import TraceRow
from rollout_traces.store.step_metrics import by_step, of_closed_step

STEPS_AT_ONCE = 64
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
        usual: flags that are properties of the run, by name.
        incidents: all of them, in the order in which they opened.
    """

    usual: Mapping[str, Usual] = field(default_factory=dict)
    incidents: Sequence[Incident] = ()

    def worn_by(self, row: TraceRow) -> Worn:
        """A row's flags, told apart."""
        source = row.values.get("source")
        return worn(tuple(row.values.get("flags") or ()), row.step, source, self.usual, self.incidents)


def run_alarms(workspace: Workspace, request: Request) -> RunAlarms:
    """Reads a run's split; a step is read again only when its number of rows changed."""

    def read() -> RunAlarms:
        steps = _signals(workspace, request)
        return RunAlarms(usual_flags(steps), over_steps(steps, watched()).incidents)

    return workspace.remembered(("alarms", request.run, request.split), request.project, read)


def usual_listed(alarms: RunAlarms) -> list[dict[str, Any]]:
    """The run's properties, the most frequent first: name, share, and of how many rollouts."""
    ordered = sorted(alarms.usual.values(), key=lambda usual: (-usual.share, usual.name))
    return [{"name": usual.name, "share": usual.share, "n": usual.n} for usual in ordered]


def incidents_listed(alarms: RunAlarms, split: str) -> list[dict[str, Any]]:
    """The incidents: open ones first, then the newest; each with the filter that finds its rows."""
    signals = watched()
    ordered = sorted(alarms.incidents, key=lambda each: (each.closed is not None, -each.last, each.name))
    return [
        {
            "name": each.name,
            "signal": each.signal,
            "source": each.source,
            "severity": each.severity,
            "sentence": sentence_of(each, signals, split),
            "opened": each.opened,
            "last": each.last,
            "closed": each.closed,
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
    counted = [
        (info.step, info.n_rollouts)
        for info in store.steps(request.run, request.split)
        if info.n_rollouts and (*place, info.step, info.n_rollouts) not in workspace.steps_seen
    ]
    for at in range(0, len(counted), STEPS_AT_ONCE):
        part = dict(counted[at : at + STEPS_AT_ONCE])
        ledger = store.ledger_rows(request.run, request.split, steps=(min(part), max(part)))
        for step, rows in by_step(ledger):
            if step in part:
                seen = signals_of(of_closed_step(rows), step)
                workspace.steps_seen[(*place, step, part[step])] = {"signals": seen}
    found = [
        workspace.steps_seen.get((*place, info.step, info.n_rollouts))
        for info in store.steps(request.run, request.split)
        if info.n_rollouts
    ]
    return [entry["signals"] for entry in found if entry is not None]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
