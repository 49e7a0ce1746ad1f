"""The abnormal of a run: its report, its incidents, what its rows wear, and what readers said of its incidents.

Readers' marks lie in a file beside the project, never in it. One JSON object a line, only ever appended: `{"at", "by",
"run", "split", "incident", "what"}`. The last word on an incident holds. Lines that cannot be read are passed over. An
incident's name is `series@2` for the second one of a series, `series@2@part` for that of a part; muting goes by series
and part, so that it also holds for the next one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.alarms.alerts import Incident, incidents_of
from rollout_traces.alarms.worn import Rise, Usual, Worn, risen_at, rises, usual_flags, worn
from rollout_traces.analysis.selections import RunScope
from rollout_traces.errors import StoreError
from rollout_traces.flags import parameters_of_run
from rollout_traces.inspector.access import who_asks
from rollout_traces.inspector.pages.figures import Card, sample_card
from rollout_traces.inspector.pages.labels import TAKES_NONE
from rollout_traces.inspector.workspace import SplitView
from rollout_traces.model.plain_values import from_json
from rollout_traces.store import TraceRow
from rollout_traces.store.labels import LineLog

if TYPE_CHECKING:
    from rollout_traces.analysis import Event, RunReport


@dataclass(frozen=True)
class RunAlarms:
    """The knowledge by which it is told which flags the rows of a run's split wear.

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
    """The incidents of a run's split, and flags that are usual in it.

    Attributes:
        incidents: the open ones, worst first.
        usual: the flags that are properties of the run, each with the first and last steps at which rows wear it all
            the same; no last step while it lasts.
    """

    incidents: list[ShownIncident]
    usual: dict[str, list[tuple[int, int | None]]]


def run_alarms(view: SplitView) -> RunAlarms:
    """Finds out what tells which flags the rows of a run's split wear."""

    def read() -> RunAlarms:
        scope = run_scope(view)
        usual = usual_flags(scope)
        return RunAlarms(usual, rises(scope, usual))

    return view.remembered(("alarms", view.run, view.split), read, alone=True)


def cards(view: SplitView, rows: Iterable[TraceRow], sorted_by: str | None = None) -> list[Card]:
    """Rollouts as lists show them, with the flags that they wear.

    Args:
        sorted_by: the column that the list is sorted by first.
    """
    alarms = run_alarms(view)
    return [sample_card(row, alarms.worn_by(row), sorted_by) for row in rows]


def run_incidents(view: SplitView) -> list[Incident]:
    """Lists what the run's report says as a warning or an error, the thresholds that are stored with the run applied."""
    return incidents_of(run_diagnosed(view), parameters_of_run(view.config))


def incident_bar(view: SplitView) -> IncidentsAnswer:
    """The open incidents of a run's split, worst first, and whether they were muted or acknowledged."""
    alarms = run_alarms(view)
    marks = IncidentMarks(view.store.source.marks_path()).of(view.info.id, view.split)
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
    marks.add(view.info.id, view.split, incident, what, by=who_asks().name)
    return incident_bar(view)


WORDS = ("mute", "unmute", "acknowledge", "recall")
"""`recall` takes an acknowledgement back."""
MOST_BYTES = 4_000_000
"""Of the file that are read and written."""


@dataclass(frozen=True)
class Marks:
    """The marks that hold of the incidents of a run's split.

    Attributes:
        muted: `(series, part)` pairs.
        acknowledged: name of an incident -> when.
    """

    muted: frozenset[tuple[str, str]] = frozenset()
    acknowledged: Mapping[str, str] = field(default_factory=dict)


class IncidentMarks:
    """The marks of one project.

    Args:
        path: the file; it and its folder are made when the first mark is written.
    """

    def __init__(self, path: Path) -> None:
        self.file = LineLog(path, "marks", MOST_BYTES)

    def of(self, run: str, split: str) -> Marks:
        """Reads the marks that hold in a run's split; nothing where the file is missing or damaged."""
        muted: set[tuple[str, str]] = set()
        acknowledged: dict[str, str] = {}
        for line in map(from_json, self.file.lines()):
            if not isinstance(line, dict) or (line.get("run"), line.get("split")) != (run, split):
                continue
            name, what = str(line.get("incident")), line.get("what")
            if what == "mute":
                muted.add(_series_and_part(name))
            elif what == "unmute":
                muted.discard(_series_and_part(name))
            elif what == "acknowledge":
                acknowledged[name] = str(line.get("at", ""))
            elif what == "recall":
                acknowledged.pop(name, None)
        return Marks(frozenset(muted), acknowledged)

    def add(self, run: str, split: str, incident: str, what: str, *, by: str) -> None:
        """Writes a mark.

        Args:
            run: the run's id.
            incident: the incident's name.
            what: a word of `WORDS`.
            by: who says it.

        Raises:
            StoreError: the word is another, or the file cannot be written.
        """
        if what not in WORDS:
            raise StoreError(f"mark: seen {what!r}. Expected one of {', '.join(WORDS)}.")
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        said = {"at": at, "by": by, "run": run, "split": split, "incident": incident, "what": what}
        self.file.append(orjson.dumps(said) + b"\n")


def _series_and_part(name: str) -> tuple[str, str]:
    series, _, rest = name.partition("@")
    return series, rest.partition("@")[2]


def run_scope(view: SplitView) -> RunScope:
    """The rollouts of a run's split."""
    return RunScope(view.store.table(), view.info.name, view.split)


def run_diagnosed(view: SplitView) -> RunReport:
    """Diagnoses what moved in the run, since when and for whom."""
    from rollout_traces.analysis import diagnose

    scope = run_scope(view)
    key = ("run report", scope.run, scope.split)
    return view.remembered(key, lambda: diagnose(scope.relations, scope.run, scope.split), alone=True)


def run_events(view: SplitView) -> list[Event]:
    """The timeline of the run."""
    from rollout_traces.analysis import events

    report = run_diagnosed(view)
    if not report.n_rows:
        return []
    scope = run_scope(view)
    key = ("run events", scope.run, scope.split)
    return view.remembered(key, lambda: events(scope.relations, scope.run, scope.split, report=report))
