"""What is abnormal for a run: its incidents, the flags that are properties of it, and what its rows wear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rollout_traces.alarms.incidents import Incident, incidents_of
from rollout_traces.alarms.worn import Rise, Usual, Worn, risen_at, rises, usual_flags, worn
from rollout_traces.errors import StoreError
from rollout_traces.flags import parameters_of_run
from rollout_traces.inspector.incident_marks import IncidentMarks
from rollout_traces.inspector.pages.diagnosed import run_diagnosed, run_scope
from rollout_traces.inspector.pages.labels import TAKES_NONE
from rollout_traces.inspector.visitor import who_asks
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store import TraceRow


@dataclass(frozen=True)
class RunAlarms:
    """What tells which flags the rows of a run's split wear.

    Attributes:
        usual: flags that are properties of the run, by name.
        risen: where more rollouts carry them.
    """

    usual: Mapping[str, Usual] = field(default_factory=dict)
    risen: Sequence[Rise] = ()

    def worn_by(self, row: TraceRow) -> Worn:
        """A row's flags, by what they mean for the row."""
        return self.worn_of(row.values, row.step)

    def worn_of(self, values: Mapping[str, Any], step: int) -> Worn:
        """The flags of a row's columns or a trace's metadata, by what they mean for the row."""
        flags = values.get("flags")
        names = [name for name in flags if isinstance(name, str)] if isinstance(flags, list | tuple) else []
        return worn(names, step, values.get("source"), self.usual, self.risen)

    def usual_at(self, step: int, source: str | None) -> set[str]:
        """The flags that are properties of the run and did not rise at a step."""
        return set(self.usual) - risen_at(step, source, self.risen)


def run_alarms(workspace: Workspace, request: Request) -> RunAlarms:
    """What tells which flags the rows of a request's run and split wear."""

    def read() -> RunAlarms:
        scope = run_scope(workspace, request)
        usual = usual_flags(scope)
        return RunAlarms(usual, rises(scope, usual))

    return workspace.remembered(("alarms", request.run, request.split), request.project, read)


def run_incidents(workspace: Workspace, request: Request) -> list[Incident]:
    """What `explain` says of a run's split as a warning or an error, the thresholds that are stored with the run applied."""
    parameters = parameters_of_run(workspace.store(request.project).config(request.run))
    return incidents_of(run_diagnosed(workspace, request), parameters)


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
    rows wear it all the same; no last step while it lasts.
    """
    store = workspace.store(request.project)
    alarms = run_alarms(workspace, request)
    marks = IncidentMarks(store.source.marks_path()).of(store.run(request.run).id, request.split)
    order = ("error", "warn")
    listed = [each for each in incidents_listed(run_incidents(workspace, request)) if each["closed"] is None]
    for each in listed:
        each["muted"] = (each["signal"], each["part"]) in marks.muted
        each["acknowledged"] = marks.acknowledged.get(each["name"])
    return {
        "incidents": sorted(listed, key=lambda each: order.index(each["severity"])),
        "usual": {
            name: [(rise.first, rise.last) for rise in alarms.risen if rise.name == name]
            for name in alarms.usual
        },
    }


def mark_incident(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Mutes or acknowledges an incident, or takes that back; the bar after it.

    Raises:
        StoreError: this server takes no labels, there is no such incident, or the mark cannot be written.
    """
    if not workspace.may_label:
        raise StoreError(f"{TAKES_NONE} Marks neither.")
    store = workspace.store(request.project)
    name, what = request.text("incident"), request.text("what")
    known = {each.name for each in run_incidents(workspace, request)}
    if name not in known:
        raise StoreError(f"no incident {name!r} in {request.split}. It may be over; look at Run.")
    marks = IncidentMarks(store.source.marks_path())
    run = store.run(request.run).id
    marks.add(run, request.split, name, what, by=who_asks().name)
    return incident_bar(workspace, request)


def usual_listed(alarms: RunAlarms) -> list[dict[str, Any]]:
    """The run's properties, the most frequent first: name, share, and of how many rollouts."""
    ordered = sorted(alarms.usual.values(), key=lambda usual: (-usual.share, usual.name))
    return [{"name": usual.name, "share": usual.share, "n": usual.n} for usual in ordered]


def incidents_listed(incidents: Sequence[Incident]) -> list[dict[str, Any]]:
    """The incidents: open ones first, then the newest; each with the filter that finds its rows."""
    ordered = sorted(incidents, key=lambda each: (each.closed is not None, -each.opened, each.name))
    return [asdict(each) | {"children": list(each.children)} for each in ordered]
