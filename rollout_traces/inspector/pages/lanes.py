"""Lanes of time: when the turns of a step's rollouts ran, on which engine, and what held the step up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_traces.analysis.lanes import BUSY, HeldUp, Lanes, Tail, aligned, covered, lanes_of, tail_of
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import MOST_DRAWN, scalars
from rollout_traces.inspector.pages.lane_tables import FunnelAnswer, funnel
from rollout_traces.inspector.workspace import FromRuns, InParts, SplitView, remembered, seen, taken
from rollout_traces.model.spans import KINDS, OF_TIME
from rollout_traces.model.text import quoted_each, words
from rollout_traces.model.units import MINUTE, MS
from rollout_traces.store.query.nodes import literal
from rollout_traces.store.step_metrics import notes_in

BY = ("engine", "source", "rollout")
"""Things that can have a lane: an engine, an environment, or each rollout."""
MOST_STEPS = 50
"""Steps that are looked through for the last minutes."""
SAID = 6
"""Timings that are named."""
MOST_NAMED = 50
"""Rollouts of a tail that a filter names."""
PHASE = re.compile(r"phase/(.+)/start")
"""Scalars `phase/<name>/start` and `phase/<name>/end` say when a trainer did what: seconds since the epoch."""
WANTED = words("uid id step group sample engine source episode sample_id timings superseded")
LOG_SPANS = "give timings=[[{kind, start, end, turn, engine, version, name}, ...], ...], which rt.Spans notes (docs/schema.md)"


@dataclass(frozen=True)
class Lane:
    """An engine, environment or rollout.

    Attributes:
        busy: seconds in which it worked: an engine samples or reads a prompt, another does anything that was logged.
        idle: share of the time in which it did not.
        moved: milliseconds by which the clock of the engine was set right.
    """

    name: str
    n_rollouts: int
    n_spans: int
    busy: float
    idle: float
    moved: int = 0


@dataclass(frozen=True)
class LaneRollout:
    """A rollout of the lanes; `id` where it was kept."""

    step: int
    group: int | None
    sample: int | None
    id: str | None
    n_spans: int


@dataclass(frozen=True)
class SpanColumns:
    """The spans: places in `lanes`, `rollouts`, `kinds` and `names`, -1 for unknown; milliseconds behind the beginning."""

    lane: list[int]
    rollout: list[int]
    kind: list[int]
    start: list[int]
    ms: list[int]
    turn: list[int]
    version: list[int]
    name: list[int]
    error: list[int]


@dataclass(frozen=True)
class Change:
    """A lane's first turn of a newer policy version."""

    lane: int
    at: int
    version: int


@dataclass(frozen=True)
class Phase:
    """When the trainer did something, milliseconds behind the beginning."""

    name: str
    step: int
    start: int
    end: int


@dataclass(frozen=True)
class ShownTail(HeldUp):
    """The `n` rollouts that hold a step up, in words; `where` finds them."""

    n: int
    text: str
    where: str


@dataclass(frozen=True)
class Time:
    """The time of a step, or of the last minutes up to it, and where it went.

    Attributes:
        began: when the first span began, seconds since the epoch.
        ms: until the last one ended.
        by: what has a lane.
        said: what is odd about clocks, and what was left out, in words.
        unobserved: what was not logged, with what to log.
    """

    step: int
    began: float
    ms: int
    by: str
    lanes: list[Lane]
    phases: list[Phase]
    tail: ShownTail | None
    said: list[str]
    unobserved: list[str]
    n_rows: int
    n_timed: int


@dataclass(frozen=True)
class LanesAnswer(Time, InParts):
    """The same with its spans.

    Attributes:
        steps: the steps whose rollouts are shown, ascending.
        choices: what can have a lane.
    """

    steps: list[int]
    choices: list[str]
    kinds: tuple[str, ...]
    names: list[str]
    rollouts: list[LaneRollout]
    spans: SpanColumns
    changes: list[Change]


@dataclass(frozen=True)
class StepTime(Time, FromRuns):
    """The same of a step without its spans, and the funnel of its rollouts."""

    funnel: FunnelAnswer


def step_time(view: SplitView, step: int, by: str = "") -> StepTime:
    """Tells where a step's time went by engine, `source` or `rollout`, what held it up, and the funnel of its rollouts."""
    return taken(StepTime, lanes(view, step, by), funnel=funnel(view, step))


@remembered
def lanes(
    view: SplitView,
    step: int,
    by: str = "",
    minutes: int = 0,
    group: int | None = None,
    sample: int | None = None,
) -> LanesAnswer:
    """When the turns of a step's rollouts ran, a lane an engine, `source` or `rollout`.

    With `minutes` of the last ones up to the step; with `group` and `sample` of one rollout and the others of its episode.

    Raises:
        StoreError: `by` is none, or there is no such step or rollout.
    """
    if by and by not in BY:
        raise StoreError(f"by: seen {seen(by)}, expected one of {', '.join(BY)}.")
    one = (group, sample)
    rows = _of_minutes(view, step, minutes) if minutes > 0 else _rows_of(view, step)
    if not rows:
        raise StoreError(f"Step {step} of {view.split} has no rollouts.")
    if one != (None, None):
        rows, by = _of_episode(rows, one, step), "rollout"
    raw = lanes_of([row["timings"] for row in rows], [row["engine"] for row in rows])
    found, clocks = aligned(raw)
    if minutes > 0:
        found = found.take(found.end >= found.end.max(initial=0) - minutes * MINUTE * MS).from_first()
    names = list(found.names)
    known = {
        "engine": (found.engine >= 0).any(),
        "source": any(row["source"] for row in rows),
        "rollout": True,
    }
    choices = [each for each in BY if known[each]]
    chosen = by if by in choices else choices[0]
    of_span, lane_names = _lane_of(found, rows, chosen)
    shown = found.take(of_span < MOST_DRAWN)
    of_span = of_span[of_span < MOST_DRAWN]
    ms = int(found.end.max(initial=0))
    moved = {clock.engine: clock.moved for clock in clocks}
    left_out = max(len(lane_names) - MOST_DRAWN, 0)
    return LanesAnswer(
        step=step,
        steps=sorted({row["step"] for row in rows}),
        began=found.began,
        ms=ms,
        by=chosen,
        choices=choices,
        kinds=KINDS,
        names=names,
        lanes=[
            _lane(
                shown.take(of_span == at), name, chosen, ms, moved.get(name, 0) if chosen == "engine" else 0
            )
            for at, name in enumerate(lane_names[:MOST_DRAWN])
        ],
        rollouts=[
            LaneRollout(row["step"], row["group"], row["sample"], row["id"], n)
            for row, n in zip(rows, found.given.tolist(), strict=True)
        ],
        spans=SpanColumns(
            of_span.tolist(),
            *(
                getattr(shown, k).tolist()
                for k in ("row", "kind", "start", "ms", "turn", "version", "name", "error")
            ),
        ),
        changes=_changes(shown, of_span),
        phases=_phases(view, found.began, ms),
        tail=None if minutes > 0 or one != (None, None) else _tail(tail_of(found), rows),
        said=[
            *(note for note in notes_in(view.store, view.run, view.split, step) if note.startswith(OF_TIME)),
            *(clock.said for clock in clocks if clock.said),
            *_left_out(raw, found.given, left_out, chosen),
        ],
        unobserved=_unobserved(view, found, rows, step),
        n_rows=len(rows),
        n_timed=int((found.given > 0).sum()),
    )


def _rows_of(view: SplitView, step: int) -> list[dict[str, Any]]:
    found: pa.Table = view.store.rollouts(columns=WANTED, runs=[view.run], splits=[view.split], steps=step)
    return [row for row in found.to_pylist() if not row["superseded"]]


def _of_minutes(view: SplitView, step: int, minutes: int) -> list[dict[str, Any]]:
    """The rollouts of the steps up to one whose spans reach into its last minutes."""
    steps = [info.step for info in view.steps() if info.step <= step]
    rows: list[dict[str, Any]] = []
    latest = None
    for at in reversed(steps[-MOST_STEPS:]):
        found = _rows_of(view, at)
        spans = lanes_of([row["timings"] for row in found], [None] * len(found))
        ends = spans.began + int(spans.end.max(initial=0)) / MS
        latest = ends if latest is None else latest
        if rows and ends < latest - minutes * MINUTE:
            break
        rows = found + rows
    return rows


def _of_episode(
    rows: Sequence[dict[str, Any]], one: tuple[int | None, int | None], step: int
) -> list[dict[str, Any]]:
    """The named rollout first, then the others of its episode."""
    own = next((row for row in rows if (row["group"], row["sample"]) == one), None)
    if own is None:
        raise StoreError(f"step {step} has no rollout {one[1]} of group {one[0]}.")
    same = [
        row
        for row in rows
        if row is not own and row["episode"] is not None and row["episode"] == own["episode"]
    ]
    return [own, *same]


def _lane_of(found: Lanes, rows: Sequence[dict[str, Any]], by: str) -> tuple[np.ndarray, list[str]]:
    """int [S], the lane of each span, and the lanes' names; a rollout's lanes in the order they begin, others by name."""
    if by == "engine":
        texts = [found.names[at] if at >= 0 else "" for at in range(-1, len(found.names))]
        keys = [texts[at + 1] for at in found.engine.tolist()]
    elif by == "source":
        keys = [rows[at]["source"] or "" for at in found.row.tolist()]
    else:
        order, where = np.unique(found.row, return_inverse=True)
        return where, [_named(rows[at]) for at in order.tolist()]
    names = sorted(set(keys), key=_by_number)
    places = {name: at for at, name in enumerate(names)}
    return np.asarray([places[key] for key in keys], np.int64), [name or f"no {by}" for name in names]


def _by_number(name: str) -> tuple[bool, list[Any]]:
    """Sorts names by the numbers in them: `engine-2` before `engine-10`; the empty one is the last."""
    return not name, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _named(row: dict[str, Any]) -> str:
    return row["sample_id"] or f"group {row['group']} #{row['sample']}"


def _lane(spans: Lanes, name: str, by: str, ms: int, moved: int) -> Lane:
    works = np.isin(spans.kind, BUSY) if by == "engine" else np.ones(len(spans.kind), bool)
    busy = covered(spans.start[works], spans.end[works])
    return Lane(
        name, len(np.unique(spans.row)), len(spans.kind), busy / MS, 1 - busy / ms if ms else 0.0, moved
    )


def _changes(spans: Lanes, of_span: np.ndarray) -> list[Change]:
    found = []
    newest: dict[int, int] = {}
    order = np.argsort(spans.start, kind="stable")
    order = order[spans.version[order] >= 0]
    columns = (of_span[order], spans.start[order], spans.version[order])
    for lane, at, version in zip(*(column.tolist() for column in columns), strict=True):
        if version > newest.get(lane, -1):
            if lane in newest:
                found.append(Change(lane, at, version))
            newest[lane] = version
    return found


def _phases(view: SplitView, began: float, ms: int) -> list[Phase]:
    """Reads what the trainer logged of its phases in this time."""
    known = scalars(view)
    found = []
    for key, (steps, starts) in known.items():
        named = PHASE.fullmatch(key)
        ends = dict(zip(*known.get(f"phase/{named[1]}/end", ((), ())), strict=True)) if named else {}
        for step, start in zip(steps, starts, strict=True):
            if step in ends and start < began + ms / MS and ends[step] > began and ends[step] >= start:
                at = [round((time - began) * MS) for time in (start, ends[step])]
                found.append(Phase(named[1] if named else "", step, *at))
    return sorted(found, key=lambda phase: phase.start)


def _tail(tail: Tail | None, rows: Sequence[dict[str, Any]]) -> ShownTail | None:
    if tail is None:
        return None
    uids = [rows[at]["uid"] or rows[at]["id"] for at in tail.rows[:MOST_NAMED]]
    where = f"uid in ({', '.join(literal(uid) for uid in uids)})"
    return taken(ShownTail, tail, n=len(tail.rows), text=str(tail), where=where)


def _left_out(raw: Lanes, given: np.ndarray, lanes_left_out: int, by: str) -> list[str]:
    said, n_given = [], int(given.sum())
    if (missing := n_given - len(raw.row)) > 0:
        said.append(
            f"{missing:,} of {n_given:,} spans, the shortest of their rollouts, are not in the ledger; "
            "traces of kept rollouts hold them."
        )
    if lanes_left_out:
        said.append(
            f"{lanes_left_out:,} lanes are not drawn: at most {MOST_DRAWN} are. "
            f"Choose another kind of lane than {by}."
        )
    return said


def _unobserved(view: SplitView, found: Lanes, rows: Sequence[dict[str, Any]], step: int) -> list[str]:
    timed = int((found.given > 0).sum())
    if not timed:
        known = [c.name for c in view.store.columns("all") if c.name.startswith("timing/")]
        there = view.store.rollouts(
            columns=["step", *known], runs=[view.run], splits=[view.split], steps=step
        )
        sums = [name.removeprefix("timing/") for name in known if there[name].null_count < len(there)]
        only = f", only seconds in all ({quoted_each(sums[:SAID])})" if sums else ""
        return [
            f"When turns ran is unobserved: no rollout of the step has spans{only}. To see it, {LOG_SPANS}."
        ]
    said = []
    if timed < len(rows):
        said.append(
            f"{len(rows) - timed:,} of {len(rows):,} rollouts have no spans: when they ran is unobserved."
        )
    if not (found.engine >= 0).any():
        said.append("Engines are unobserved: log engine in spans, or engine_ids.")
    if not (found.version >= 0).any():
        said.append("Weight versions are unobserved: log version in spans of kind generate.")
    seen = {KINDS[kind] for kind in np.unique(found.kind).tolist()}
    if missing := [kind for kind in KINDS if kind not in seen]:
        said.append(
            f"No span is of the kind {', '.join(missing)}: whether there was such time is unobserved."
        )
    if not any(PHASE.fullmatch(key) for key in scalars(view)):
        said.append(
            "Update phases are unobserved: log_scalars({'phase/update/start': ..., 'phase/update/end': ...}), "
            "seconds since the epoch."
        )
    return said
