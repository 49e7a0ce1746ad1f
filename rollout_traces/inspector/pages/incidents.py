"""What is abnormal for a run: its incidents, the flags that are properties of it, and what its rows wear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_traces.alarms.incidents import Incident, incidents_of
from rollout_traces.alarms.worn import Rise, Usual, Worn, risen_at, rises, usual_flags, worn
from rollout_traces.errors import StoreError
from rollout_traces.flags import parameters_of_run
from rollout_traces.inspector.incident_marks import IncidentMarks
from rollout_traces.inspector.pages.diagnosed import run_diagnosed, run_scope
from rollout_traces.inspector.pages.labels import TAKES_NONE
from rollout_traces.inspector.view import SplitView
from rollout_traces.inspector.visitor import who_asks
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

    def listed(self) -> list[Usual]:
        """The run's properties, the most frequent first."""
        return sorted(self.usual.values(), key=lambda usual: (-usual.share, usual.name))

    def marked(self, flags: Sequence[dict[str, Any]], metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A rollout's flags, each with `usual`: whether it is a property of the run, so that the rollout does not wear it.

        Args:
            flags: as `rollout_payload` lists them.
            metadata: the trace's.
        """
        step = metadata.get("step")
        wearing = self.worn_of(metadata, step).names if type(step) is int else tuple(self.usual)
        return [
            flag | {"usual": flag["name"] in self.usual and flag["name"] not in wearing} for flag in flags
        ]


@dataclass(frozen=True)
class ShownIncident(Incident):
    """An incident, and what readers said of it.

    Attributes:
        muted: whether its series is muted for its part.
        acknowledged: when it was acknowledged.
    """

    muted: bool = False
    acknowledged: str | None = None


@dataclass(frozen=True)
class IncidentsAnswer:
    """What is abnormal in a run's split.

    Attributes:
        incidents: the open ones, worst first.
        usual: the flags that are properties of the run, each with the first and last steps at which rows wear it all
            the same; no last step while it lasts.
    """

    incidents: list[ShownIncident]
    usual: dict[str, list[tuple[int, int | None]]]


def run_alarms(view: SplitView) -> RunAlarms:
    """What tells which flags the rows of a run's split wear."""

    def read() -> RunAlarms:
        scope = run_scope(view)
        usual = usual_flags(scope)
        return RunAlarms(usual, rises(scope, usual))

    return view.surveyed(("alarms", view.run, view.split), read)


def run_incidents(view: SplitView) -> list[Incident]:
    """What `explain` says of a run's split as a warning or an error, the thresholds that are stored with the run applied."""
    return incidents_of(run_diagnosed(view), parameters_of_run(view.store.config(view.run)))


def incident_bar(view: SplitView) -> IncidentsAnswer:
    """The open incidents of a run's split, worst first, and whether they were muted or acknowledged."""
    alarms = run_alarms(view)
    marks = IncidentMarks(view.store.source.marks_path()).of(view.store.run(view.run).id, view.split)
    shown = [
        ShownIncident(
            **vars(each),
            muted=(each.signal, each.part) in marks.muted,
            acknowledged=marks.acknowledged.get(each.name),
        )
        for each in run_incidents(view)
        if each.closed is None
    ]
    shown.sort(key=lambda each: (each.severity != "error", -each.opened, each.name))
    rose = {
        name: [(rise.first, rise.last) for rise in alarms.risen if rise.name == name] for name in alarms.usual
    }
    return IncidentsAnswer(shown, rose)


def mark_incident(view: SplitView, incident: str, what: str) -> IncidentsAnswer:
    """Mutes or acknowledges an incident, or takes that back: `mute`, `unmute`, `acknowledge` or `recall`.

    Raises:
        StoreError: this server takes no labels, there is no such incident, or the mark cannot be written.
    """
    if not view.workspace.may_label:
        raise StoreError(f"{TAKES_NONE} Marks neither.")
    if incident not in {each.name for each in run_incidents(view)}:
        raise StoreError(f"no incident {incident!r} in {view.split}. It may be over; look at Run.")
    marks = IncidentMarks(view.store.source.marks_path())
    marks.add(view.store.run(view.run).id, view.split, incident, what, by=who_asks().name)
    return incident_bar(view)
