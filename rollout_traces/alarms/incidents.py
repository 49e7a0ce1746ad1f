"""Incidents: what became abnormal, since when, until when. One open incident a signal and source.

`advance` takes one step; `over_steps` folds a run. Both the worker, which raises alerts, and a page, which reads
ledgers, use them, so that they agree. No file, no clock.

A signal is judged at a step that has 20 rows of 5 groups or more, else on the last three steps pooled. It passes
when the lower end of the share's 95 % interval, clustered by group, is above its limit; it opens when it passes at
two of the last three steps judged. What a run did from its beginning is no incident: the limit is never below the
share of the run's first 20 steps plus a tenth (or plus half of it, where that is more); a flag without a limit of
its own has that one. What an open incident explains opens none: it is one of its `children`, also where it opened up
to three steps earlier. What grows while a run begins (`settles`) is judged after those steps. A flag of severity
`error` opens at once, from one row. A signal that `changes` is judged against the 20 steps before as well, see
`changes`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from rollout_traces.alarms.changes import ROLLING, changed_level, changed_share
from rollout_traces.alarms.counts import Counts, total
from rollout_traces.alarms.signals import EVERYWHERE, Level, Signal, StepSignals
from rollout_traces.flags.base import Severity

MIN_ROWS, MIN_GROUPS = 20, 5
POOLED = 3
"""Small steps that are judged together, and steps judged of which two have to pass."""
PASSES = 2
FIRST_STEPS = 20
"""Steps whose shares are usual for the run."""
QUIET = 5
"""Steps without it, that have its source, after which an incident is closed."""
REOPENS_WITHIN = 50
"""Steps after its close within which it is opened again instead of another one."""
MARGIN, MARGIN_OF = 0.1, 0.5
"""A rise above what is usual: by this much of all rows, and by this part of what is usual."""

Key = tuple[str, str]
"""A signal and a source."""


@dataclass(frozen=True)
class Incident:
    """Something that became abnormal.

    Attributes:
        signal: a flag's name or another signal's.
        source: the source; empty for all rows.
        severity: `error`, `warn` or `info`.
        opened: the first step at which it passed.
        last: the last step at which it did.
        closed: the step at which it was over; None while it is open.
        reopened: steps at which it came back.
        n_rows: rollouts that carried it from `opened` on.
        value: the share or mean at which it opened.
        worst: the share or mean farthest from usual so far.
        usual: what it was before; None where nothing was known.
        limit: what it passed.
        is_level: the values are means, no shares.
        children: signals that passed as well and that it explains.
    """

    signal: str
    source: str
    severity: Severity
    opened: int
    last: int
    value: float
    worst: float
    limit: float
    usual: float | None = None
    closed: int | None = None
    reopened: tuple[int, ...] = ()
    n_rows: int = 0
    is_level: bool = False
    children: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Signal and source."""
        return self.signal, self.source

    @property
    def name(self) -> str:
        """What distinguishes it from all other incidents of its run and split."""
        return f"{self.signal}@{self.opened}" + (f"@{self.source}" if self.source else "")

    def covers(self, step: int) -> bool:
        """True at the steps from its first to its last appearance."""
        return self.opened <= step <= (self.last if self.closed is not None else max(self.last, step))


@dataclass(frozen=True)
class IncidentEvent:
    """What a step did to an incident."""

    what: Literal["opened", "reopened", "closed"]
    incident: Incident


@dataclass(frozen=True)
class Track:
    """What is remembered of one signal and source.

    Attributes:
        n_first: steps among the run's first ones that were counted.
        first: their counts.
        recent: the last steps before an incident, oldest first: for shares and for levels.
        passes: whether the last steps judged passed.
        quiet: steps since the incident was seen.
    """

    n_first: int = 0
    first: Counts = field(default_factory=Counts)
    recent: tuple[Counts | Level, ...] = ()
    passes: tuple[bool, ...] = ()
    quiet: int = 0

    @cached_property
    def is_empty(self) -> bool:
        """True when none of the steps before had a hit."""
        return not any(known.hits for known in self.recent if isinstance(known, Counts))

    def as_plain(self) -> list[Any]:
        """JSON-safe values; a run's state is stored with every step, so they are short."""
        return self._plain

    @cached_property
    def _plain(self) -> list[Any]:
        recent = [known.as_plain() for known in self.recent]
        return [self.n_first, self.first.as_plain(), recent, [int(one) for one in self.passes], self.quiet]

    @classmethod
    def from_plain(cls, values: Sequence[Any]) -> Track:
        """What `as_plain` gave."""
        n_first, first, recent, passes, quiet = values
        known = [Level(*one) if len(one) == len(fields(Level)) else Counts(*one) for one in recent]
        return cls(n_first, Counts(*first), tuple(known), tuple(map(bool, passes)), quiet)


_NO_TRACK = Track()


@dataclass(frozen=True)
class AlarmState:
    """What is known of a run's split so far; plain values go in and out.

    Attributes:
        incidents: all so far, in the order in which they opened.
        tracks: by signal and source.
    """

    incidents: tuple[Incident, ...] = ()
    tracks: Mapping[Key, Track] = field(default_factory=dict)

    def pruned(self, step: int) -> AlarmState:
        """Without incidents that are long over: what a run hands on from step to step."""
        oldest = step - REOPENS_WITHIN
        recent = (known for known in self.incidents if known.closed is None or known.closed >= oldest)
        return replace(self, incidents=tuple(recent))

    @property
    def open(self) -> tuple[Incident, ...]:
        """Those that are not over."""
        return tuple(incident for incident in self.incidents if incident.closed is None)

    def as_plain(self) -> dict[str, Any]:
        """JSON-safe values; signals that share a track, as most do, are listed with it."""
        alike: dict[int, tuple[Track, list[Key]]] = {}
        for key, track in self.tracks.items():
            alike.setdefault(id(track), (track, []))[1].append(key)
        return {
            "incidents": [asdict(incident) for incident in self.incidents],
            "tracks": [[keys, *track.as_plain()] for track, keys in alike.values()],
        }

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> AlarmState:
        """What `as_plain` gave."""
        incidents = tuple(
            Incident(
                **{
                    **known,
                    "reopened": tuple(known["reopened"]),
                    "children": tuple(known.get("children", ())),
                }
            )
            for known in values.get("incidents", ())
        )
        tracks: dict[Key, Track] = {}
        for keys, *rest in values.get("tracks", ()):
            tracks |= dict.fromkeys(((name, source) for name, source in keys), Track.from_plain(rest))
        return cls(incidents, tracks)


def over_steps(steps: Iterable[StepSignals], signals: Mapping[str, Signal]) -> AlarmState:
    """The incidents of a run's split, its steps ascending."""
    state = AlarmState()
    for step in steps:
        state, _ = advance(state, step, signals)
    return state


def advance(
    state: AlarmState, seen: StepSignals, signals: Mapping[str, Signal]
) -> tuple[AlarmState, tuple[IncidentEvent, ...]]:
    """Takes one step.

    Args:
        state: what is known so far.
        seen: the step.
        signals: what is watched, see `signals.watched`.

    Returns:
        The new state, and what opened, came back or closed.
    """
    incidents = list(state.incidents)
    still_open = {incident.key for incident in incidents if incident.closed is None}
    alike: dict[Hashable, _Verdict] = {}
    judged = {
        key: _judge(state, key, seen, signals[key[0]], key in still_open, alike)
        for key in _keys(seen)
        if key[0] in signals
    }
    tracks = {**state.tracks, **{key: verdict.track for key, verdict in judged.items()}}
    events: list[IncidentEvent] = []
    touched = [key for key, verdict in judged.items() if verdict.opens or key in still_open]
    for key in sorted(
        touched, key=lambda key: (key[1] != EVERYWHERE, len(signals[key[0]].explained_by), key)
    ):
        verdict = judged[key]
        at = _newest(incidents, key)
        known = incidents[at] if at is not None else None
        n_rows = seen.n_raised.get(key, 0)
        if known is not None and known.closed is None and at is not None:
            incidents[at] = _still_open(known, verdict, seen.step, n_rows)
            if verdict.track.quiet >= QUIET:
                incidents[at] = replace(incidents[at], closed=seen.step)
                tracks[key] = replace(verdict.track, passes=(), quiet=0)
                events.append(IncidentEvent("closed", incidents[at]))
        elif verdict.opens:
            told_by = _told_by(key, incidents, signals)
            if told_by is not None:
                incidents[told_by] = _with_children(incidents[told_by], key[0])
                continue
            if known is not None and at is not None and seen.step - (known.closed or 0) <= REOPENS_WITHIN:
                one = replace(known, closed=None, reopened=(*known.reopened, seen.step))
                one, place = _still_open(one, verdict, seen.step, n_rows), at
            else:
                one, place = _opened(key, signals[key[0]], verdict, seen.step, n_rows), len(incidents)
            children = _children_of(one, incidents, signals, seen.step)
            one = _with_children(one, *(name for each in children for name in (each.signal, *each.children)))
            events.append(IncidentEvent("opened" if place == len(incidents) else "reopened", one))
            incidents[place : place + 1] = [one]
            incidents = [each for each in incidents if each not in children]
            tracks[key] = replace(verdict.track, quiet=0)
    return AlarmState(tuple(incidents), tracks), tuple(events)


@dataclass(frozen=True)
class _Verdict:
    """What a step says of a signal: the track with the step in it, and whether an incident may open."""

    track: Track
    opens: bool
    seen_now: bool
    value: float
    usual: float | None
    limit: float
    is_level: bool = False


def _keys(seen: StepSignals) -> list[Key]:
    return [*seen.shares, *((name, EVERYWHERE) for name in seen.levels)]


def _judge(
    state: AlarmState,
    key: Key,
    seen: StepSignals,
    signal: Signal,
    is_open: bool,
    alike: dict[Hashable, _Verdict],
) -> _Verdict:
    """What a step says of a signal.

    Most signals of most steps are flags that no row has, with the same past: they are judged once, and their
    tracks stay the same object. Where nothing was hit no limit is passed, whatever it is.
    """
    track = state.tracks.get(key, _NO_TRACK)
    counts = seen.shares.get(key)
    if counts is None:
        return _judge_level(track, seen.levels[key[0]], signal, is_open)
    n_raised = seen.n_raised.get(key, 0)
    rule: Hashable = signal.changes
    if n_raised or counts.hits or not track.is_empty:
        rule = (signal.changes, signal.limit, signal.settles, n_raised)
    likeness = (id(track), id(counts), signal.severity == "error", rule, is_open)
    verdict = alike.get(likeness)
    if verdict is None:
        verdict = alike[likeness] = _judge_share(track, counts, signal, n_raised, is_open)
    return verdict


def _judge_share(track: Track, counts: Counts, signal: Signal, n_raised: int, is_open: bool) -> _Verdict:
    if signal.severity == "error":
        raised = signal.limit is not None and n_raised > 0 and n_raised / max(counts.n, 1) > signal.limit
        fresh = replace(track, quiet=0 if raised else track.quiet + 1)
        return _Verdict(fresh, raised, raised, counts.share, None, 0.0)
    past = [known for known in track.recent if isinstance(known, Counts)]
    usual = track.first.share if track.first.n >= MIN_ROWS else None
    limit = limit_of(signal, usual)
    judged = counts if _is_enough(counts) else total([*past[-(POOLED - 1) :], counts])
    known = _is_enough(judged) and usual is not None
    known = known and not (signal.settles and track.n_first < FIRST_STEPS)
    above = known and limit is not None and judged.share > limit and judged.lower() > limit
    change = changed_share(judged, past) if signal.changes and known else None
    passed = above or change is not None
    passes = (*track.passes, passed)[-POOLED:] if _is_enough(judged) else track.passes
    quiet = 0 if passed or (limit is not None and counts.share > limit) else track.quiet + 1
    if is_open and change is None and signal.changes and past:
        quiet = 0 if changed_share(judged, past, sure=False) is not None else quiet
    fresh = Track(
        track.n_first if is_open else min(track.n_first + 1, FIRST_STEPS),
        track.first if is_open or passed or track.n_first >= FIRST_STEPS else track.first + counts,
        track.recent
        if is_open or passed
        else (*past, counts)[-(ROLLING if signal.changes else POOLED - 1) :],
        passes,
        quiet,
    )
    passed_limit = change if not above and change is not None else (limit if limit is not None else 0.0)
    opens = passed and sum(passes) >= PASSES
    before = total(past).share if signal.changes and past else usual
    return _Verdict(fresh, opens, quiet == 0, judged.share, before if opens else None, passed_limit)


def _judge_level(track: Track, level: Level, signal: Signal, is_open: bool) -> _Verdict:
    past = [known for known in track.recent if isinstance(known, Level)]
    judged = level if _is_enough(level) else _pooled([*past[-(POOLED - 1) :], level])
    if not _is_enough(judged) or signal.changes is None:
        gathered = replace(track, recent=(*past, level)[-ROLLING:])
        return _Verdict(gathered, False, False, judged.mean, None, 0.0, is_level=True)
    change = changed_level(judged.mean, [known.mean for known in past], signal.changes, signal.effect)
    passes = (*track.passes, change is not None)[-POOLED:]
    fresh = replace(
        track,
        recent=track.recent if is_open or change is not None else (*past, level)[-ROLLING:],
        passes=passes,
        quiet=0 if change is not None else track.quiet + 1,
    )
    usual = sum(known.mean for known in past) / len(past) if past else None
    opens = change is not None and sum(passes) >= PASSES
    return _Verdict(fresh, opens, change is not None, judged.mean, usual, change or 0.0, is_level=True)


def limit_of(signal: Signal, usual: float | None) -> float | None:
    """The share above which a signal is abnormal for a run.

    Args:
        signal: the signal; with a limit of its own or none.
        usual: its share in the run's first steps; None where that is unknown.

    Returns:
        None where nothing is known to be abnormal.
    """
    if usual is None or (usual <= MARGIN and signal.limit is not None):
        return signal.limit
    risen = usual + max(MARGIN, MARGIN_OF * usual)
    return risen if signal.limit is None else max(signal.limit, risen)


def _is_enough(seen: Counts | Level) -> bool:
    return seen.n >= MIN_ROWS and seen.n_groups >= MIN_GROUPS


def _pooled(levels: list[Level]) -> Level:
    return Level(
        sum(level.n for level in levels),
        sum(level.n_groups for level in levels),
        sum(level.total for level in levels),
    )


def _newest(incidents: list[Incident], key: Key) -> int | None:
    return next((at for at in reversed(range(len(incidents))) if incidents[at].key == key), None)


def _told_by(key: Key, incidents: list[Incident], signals: Mapping[str, Signal]) -> int | None:
    """The open incident that reports the fact already: of the signal, for all rows or the only source; of a cause."""
    name, source = key
    for at, known in enumerate(incidents):
        same_rows = source == EVERYWHERE or known.source in (EVERYWHERE, source)
        if known.closed is None and same_rows and known.signal in (name, *signals[name].explained_by):
            return at
    return None


def _children_of(
    opened: Incident, incidents: list[Incident], signals: Mapping[str, Signal], step: int
) -> list[Incident]:
    """The open incidents that another one explains and that opened just before it: it takes them in."""
    return [
        known
        for known in incidents
        if known.closed is None
        and step - known.opened <= POOLED
        and opened.source in (EVERYWHERE, known.source)
        and opened.signal in signals[known.signal].explained_by
    ]


def _with_children(incident: Incident, *names: str) -> Incident:
    children = dict.fromkeys((*incident.children, *(name for name in names if name != incident.signal)))
    return replace(incident, children=tuple(children)) if len(children) > len(incident.children) else incident


def _opened(key: Key, signal: Signal, verdict: _Verdict, step: int, n_rows: int) -> Incident:
    return Incident(
        signal.name, key[1], signal.severity, step, step, verdict.value, verdict.value, verdict.limit,
        usual=verdict.usual, n_rows=n_rows, is_level=verdict.is_level,
    )  # fmt: skip


def _still_open(incident: Incident, verdict: _Verdict, step: int, n_rows: int) -> Incident:
    usual = incident.usual or 0.0
    worse = abs(verdict.value - usual) > abs(incident.worst - usual)
    return replace(
        incident,
        last=step if verdict.seen_now else incident.last,
        worst=verdict.value if worse else incident.worst,
        n_rows=incident.n_rows + n_rows,
    )
