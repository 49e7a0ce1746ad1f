"""Live: what a run samples now, the slowest and the silent first, and where each rollout landed that is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import MOST_READ, PAGE_ROWS
from rollout_traces.inspector.workspace import FromRuns, ProjectView, taken
from rollout_traces.model.live_lines import STAGES
from rollout_traces.model.text import duration, quoted
from rollout_traces.model.units import MINUTE, MS
from rollout_traces.store import Store
from rollout_traces.store.live import LiveLook, LiveRow, LiveWriterSeen

SILENT = 1.0 * MINUTE
"""Seconds without a word after which a rollout is silent."""
MOST_ROWS = 500
MOST_ENDED = 50
"""Ended rollouts that are shown, the newest ones."""
LIVE_COLUMN = "extra/live"
"""The column of stored rollouts that says which rollout in flight each was."""


@dataclass(frozen=True)
class LiveRolloutShown:
    """A rollout in flight, or one that ended.

    Attributes:
        fate: `running`, `lost` (was running when its writer was last seen), `done` or `aborted`.
        detail: what the stage is about: a tool's name, why it was aborted.
        seconds: since it began, until it ended or its writer was last seen.
        in_stage: the same of its stage.
        silent: seconds since the last word of it.
        is_silent: it runs, waits for no place, and nothing was said of it for `SILENT` seconds.
        trace: the trace of the stored rollout; None where it is not stored, or has no trace.
        is_stored: the rollout was stored.
    """

    id: str
    fate: str
    stage: str
    detail: str | None
    step: int | None
    split: str | None
    group: str | None
    source: str | None
    attempt: str | None
    turns: int | None
    tokens: int | None
    seconds: float
    in_stage: float
    silent: float
    is_silent: bool
    prompt: str | None
    words: str | None
    n_stages: int
    node: str
    rank: int
    trace: str | None = None
    is_stored: bool = False


@dataclass(frozen=True)
class LiveAnswer(FromRuns):
    """The rollouts that a run samples now.

    Attributes:
        run: the run's name; empty where nothing was ever said of it.
        n_running: rollouts in flight.
        n_silent: those of them that are silent.
        n_lost: rollouts that were running when their writer was last seen.
        n_ended: rollouts that ended and are still in the files.
        stages: how many are in each stage, of those that run.
        rollouts: those that run and were running, the silent and the slowest first.
        n_left_out: those that are not listed.
        ended: the newest that ended.
        remarks: what a reader should know of clocks, processes and files.
    """

    run: str
    n_running: int
    n_silent: int
    n_lost: int
    n_ended: int
    stages: dict[str, int]
    rollouts: list[LiveRolloutShown]
    n_left_out: int
    ended: list[LiveRolloutShown]
    remarks: list[str]


@dataclass(frozen=True)
class LiveStage:
    """A stage of a rollout, as far as it was followed.

    Attributes:
        began: seconds since the rollout began.
        seconds: how long it took, or takes so far.
        words: what was written last in it.
    """

    stage: str
    detail: str | None
    began: float
    seconds: float
    turns: int | None
    tokens: int | None
    words: str | None


@dataclass(frozen=True)
class LiveRolloutAnswer(FromRuns):
    """One rollout in flight with its stages, oldest first.

    Attributes:
        n_gone: earlier stages that are kept no more.
    """

    rollout: LiveRolloutShown
    stages: list[LiveStage]
    n_gone: int


def live(view: ProjectView, run: str = "", limit: int = PAGE_ROWS) -> LiveAnswer:
    """Lists what a run samples now; the run that was begun last where none is named.

    Raises:
        StoreError: the project's files are on another machine, or `limit` is not from 1 to `MOST_ROWS`.
    """
    look = view.store.live.look(run or None)
    return said_of(look, _landed(view, look) if look else {}, limit)


def live_rollout(view: ProjectView, id: str, run: str = "") -> LiveRolloutAnswer:
    """One rollout in flight with its stages.

    Raises:
        StoreError: the run says nothing of it, or no more.
    """
    look = view.store.live.look(run or None)
    row = next((row for row in look.rows if row.rollout.id == id), None) if look else None
    if look is None or row is None:
        raise StoreError(f"live: no rollout {quoted(id)} in flight. It ended, and its file keeps it no more.")
    n_gone = row.rollout.n_stages - len(row.rollout.stages)
    return LiveRolloutAnswer(_shown(row, _landed(view, look)), _stages(row), n_gone)


def _landed(view: ProjectView, look: LiveLook) -> dict[str, str | None]:
    return view.remembered(("live", look.run_id), lambda: landed_of(view.store, look))


def landed_of(store: Store, look: LiveLook) -> dict[str, str | None]:
    """Rollout in flight -> the trace of the stored rollout, None where it has none, for those that are stored."""
    runs = [each.id for each in store.runs() if each.id == look.run_id]
    if not runs or LIVE_COLUMN not in {column.name for column in store.columns("all")}:
        return {}
    found = store.rollouts(
        f"{LIVE_COLUMN} is not null", [LIVE_COLUMN, "id"], runs, limit=MOST_READ, order_by="-step"
    )
    return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))


def said_of(look: LiveLook | None, landed: Mapping[str, str | None], limit: int) -> LiveAnswer:
    """A look as it is shown.

    Args:
        look: what is in flight; None where nothing was ever said of the run.
        landed: see `landed_of`.
        limit: rollouts that are listed at most.

    Raises:
        StoreError: `limit` is not from 1 to `MOST_ROWS`.
    """
    if not 1 <= limit <= MOST_ROWS:
        raise StoreError(f"limit: 1 to {MOST_ROWS}. Seen {limit}.")
    if look is None:
        return LiveAnswer("", 0, 0, 0, 0, {}, [], 0, [], [])
    by_fate = Counter(row.fate for row in look.rows)
    stages = Counter(row.rollout.stage for row in look.rows if row.fate == "running")
    going = sorted((row for row in look.rows if row.fate in ("running", "lost")), key=_first)
    ended = sorted((row for row in look.rows if row.rollout.has_ended), key=lambda row: -row.rollout.at)
    return LiveAnswer(
        run=look.run,
        n_running=by_fate["running"],
        n_silent=sum(map(_is_silent, look.rows)),
        n_lost=by_fate["lost"],
        n_ended=len(ended),
        stages={stage: stages[stage] for stage in STAGES if stages[stage]},
        rollouts=[_shown(row, landed) for row in going[:limit]],
        n_left_out=max(len(going) - limit, 0),
        ended=[_shown(row, landed) for row in ended[:MOST_ENDED]],
        remarks=[sentence for writer in look.writers for sentence in _remarks(writer, look)],
    )


def _first(row: LiveRow) -> tuple[bool, bool, float]:
    """Sorts what runs before what was running; the silent before the others; the slowest first."""
    return row.fate != "running", not _is_silent(row), -row.seconds


def _is_silent(row: LiveRow) -> bool:
    return row.fate == "running" and row.rollout.stage != "queued" and row.silent >= SILENT


def _shown(row: LiveRow, landed: Mapping[str, str | None]) -> LiveRolloutShown:
    return taken(
        LiveRolloutShown,
        row.rollout,
        fate=row.fate,
        seconds=_to_ms(row.seconds),
        in_stage=_to_ms(row.in_stage),
        silent=_to_ms(row.silent),
        is_silent=_is_silent(row),
        node=row.writer.node,
        rank=row.writer.rank,
        trace=landed.get(row.rollout.id),
        is_stored=row.rollout.id in landed,
    )


def _to_ms(seconds: float) -> float:
    return round(seconds * MS) / MS


def _stages(row: LiveRow) -> list[LiveStage]:
    stages = list(row.rollout.stages)
    ends = [each.at for each in stages[1:]]
    if stages:
        ends.append(stages[-1].at + (0.0 if row.rollout.has_ended else row.in_stage))
    return [
        taken(
            LiveStage,
            each,
            began=_to_ms(max(each.at - row.rollout.begun, 0.0)),
            seconds=_to_ms(max(end - each.at, 0.0)),
        )
        for each, end in zip(stages, ends, strict=True)
    ]


def _remarks(writer: LiveWriterSeen, look: LiveLook) -> list[str]:
    who = f"Rank {writer.rank} on {quoted(writer.node)}"
    n_lost = sum(row.fate == "lost" for row in look.rows if row.writer is writer)
    found = []
    if writer.clock:
        way = "behind" if writer.clock > 0 else "ahead of"
        found.append(
            f"{who}: its clock is {duration(abs(writer.clock))} {way} that of the files; its times are put right by that."
        )
    if n_lost and writer.is_finished:
        found.append(
            f"{who} finished while {n_lost} of its rollouts {'was' if n_lost == 1 else 'were'} running."
        )
    elif n_lost:
        found.append(
            f"{who} was last seen {duration(writer.silent)} ago: {n_lost} of its rollouts {'was' if n_lost == 1 else 'were'} running then."
        )
    if not writer.texts:
        found.append(f"{who} says no prompts and words, since the run redacts.")
    if writer.n_unreadable:
        found.append(f"{who}: {writer.n_unreadable} lines of its file cannot be read, and are passed over.")
    return found
