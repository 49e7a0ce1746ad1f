"""Episodes that reached the trainer as several rows: the tree, what was trained, the way through time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.episode_tree import KINDS, Leaving, depths, leaving, parent_rows
from rollout_traces.inspector.pages.figures import Number, Range, axis_range, flag_severities
from rollout_traces.inspector.view import SplitView
from rollout_traces.model.transcript import Transcript, Turn
from rollout_traces.store import Store, TraceRow
from rollout_traces.trace.conversion import read_transcript

MOST_ROWS = 10_000
"""Rows of a step that are looked at."""
MOST_BRANCHES = 200
"""Rows of an episode that are drawn."""
MOST_DIFFERING = 4
"""Columns by which rows are told apart."""
FIGURES = (
    "trained",
    "discard_reason",
    "reward",
    "advantage",
    "n_sampled",
    "n_turns",
    "n_tool_calls",
    "stop_reason",
)
STARTS = ("timing/start", "timing/started", "timing/start_time")
"""Timings that say when a row began, seconds on one clock."""


@dataclass(frozen=True)
class ListedEpisode:
    """An episode of a step."""

    episode: str
    group: int | None
    n_rows: int
    n_kept: int
    n_trained: int
    reward: Number


@dataclass(frozen=True)
class EpisodeTurn:
    """A turn of a row: tokens, characters, the tool it answers for, the tools it calls."""

    role: str
    n: int
    size: int
    name: str | None
    calls: list[str]


@dataclass(frozen=True)
class EpisodeRow:
    """A row of an episode; a row stands before those that left it.

    Attributes:
        at: its place among the rows of the step.
        parent: the place of the row that it left.
        name: its sample id.
        seconds: what its timings add up to.
        start: when it began, on the clock of the tree.
        extras: by what the trainer itself distinguishes rows.
    """

    at: int
    depth: int
    parent: int | None
    id: str | None
    group: int | None
    sample: int | None
    name: str | None
    left: Leaving
    flags: list[str]
    values: dict[str, Any]
    seconds: Number
    start: Number
    extras: dict[str, Any]
    turns: list[EpisodeTurn]


@dataclass(frozen=True)
class EpisodeTree:
    """The rows of an episode as a tree.

    Attributes:
        one_reward: all rows have the same.
        n_lost: rows that name a row that is not there.
        clock: the timing that says when each row began; None where there is none.
        differs: columns by which the trainer itself distinguishes the rows.
    """

    episode: str
    reward: Number
    one_reward: bool
    n_rows: int
    n_lost: int
    clock: str | None
    rows: list[EpisodeRow]
    differs: list[str]


@dataclass(frozen=True)
class EpisodesAnswer:
    """The episodes of a step, and the chosen one as a tree.

    Attributes:
        kinds: how a row can have left another, in words.
        n_beyond: rows of the step that were not looked at.
        next: give it as `after` for the episodes behind; None at the end.
    """

    step: int
    episodes: list[ListedEpisode]
    range: Range
    severities: dict[str, str]
    kinds: Mapping[str, str]
    n_beyond: int
    tree: EpisodeTree
    next: int | None = None


def episodes(
    view: SplitView, step: int, episode: str = "", group: int | None = None, sample: int | None = None
) -> EpisodesAnswer:
    """The episodes of a step, and the chosen one as a tree.

    The episode is named by `episode`, or by `group` and `sample` of one of its rows; else the first of several
    rows is chosen.
    """
    rows, n_beyond = _rows(view, step)
    found: dict[str, list[TraceRow]] = {}
    for row in rows:
        found.setdefault(str(row["episode"]), []).append(row)
    if not found:
        raise StoreError(f"Step {step} of {view.split} has no episodes: no row has episode_ids.")
    if episode and episode not in found:
        raise StoreError(f"Step {step} has no episode {episode[:80]!r}. Pick one of the {len(found)} listed.")
    chosen = episode or _chosen(found, group, sample)
    return EpisodesAnswer(
        step=step,
        episodes=[_listed(name, of) for name, of in found.items()],
        range=axis_range(view, "reward"),
        severities=flag_severities(),
        kinds=KINDS,
        n_beyond=n_beyond,
        tree=_tree(view.store, chosen, found[chosen]),
    )


def _rows(view: SplitView, step: int) -> tuple[list[TraceRow], int]:
    """The rows of a step that belong to an episode, and how many rows of the step were not looked at."""
    page = view.store.query(
        view.run, view.split, rows="all", steps=(step, step), limit=MOST_ROWS, order_by="group, sample"
    )
    rows = [row for row in page.rows if row["episode"] is not None and not row["superseded"]]
    return rows, page.total - len(page.rows)


def _chosen(found: Mapping[str, Sequence[TraceRow]], group: int | None, sample: int | None) -> str:
    wanted = (group, sample)
    of_row = (name for name, rows in found.items() if any((r["group"], r["sample"]) == wanted for r in rows))
    several = (name for name, rows in found.items() if len(rows) > 1)
    return next(of_row, None) or next(several, None) or next(iter(found))


def _listed(name: str, rows: Sequence[TraceRow]) -> ListedEpisode:
    return ListedEpisode(
        name,
        rows[0]["group"],
        n_rows=len(rows),
        n_kept=sum(row.id is not None for row in rows),
        n_trained=sum(row["trained"] == 1 for row in rows),
        reward=episode_reward(rows),
    )


def episode_reward(rows: Sequence[Any]) -> float | None:
    """The reward that counts: that of the first row that left no other, as groups and pass rates take it."""
    opening = next((row for row in rows if row["parent"] is None), rows[0])
    return opening["reward"]


def _tree(store: Store, name: str, rows: Sequence[TraceRow]) -> EpisodeTree:
    shown = rows[:MOST_BRANCHES]
    transcripts = [None if row.id is None else read_transcript(store.record(row.id)) for row in shown]
    parents = parent_rows([row["sample_id"] for row in shown], [row["parent"] for row in shown])
    return EpisodeTree(
        name,
        episode_reward(rows),
        one_reward=len({row["reward"] for row in rows}) == 1,
        n_rows=len(rows),
        n_lost=sum(row["parent"] is not None and at is None for row, at in zip(shown, parents, strict=True)),
        clock=next((key for key in STARTS if all(row[key] is not None for row in shown)), None),
        rows=[_branch(shown[at], depth, parents[at], transcripts, at) for at, depth in depths(parents)],
        differs=_differing(shown),
    )


def _branch(
    row: TraceRow, depth: int, parent: int | None, transcripts: Sequence[Transcript | None], at: int
) -> EpisodeRow:
    transcript = transcripts[at]
    if parent is not None:
        left = leaving(transcript, transcripts[parent], opens=False)
    else:
        left = Leaving("opening" if row["parent"] is None else "unknown")
    return EpisodeRow(
        at=at,
        depth=depth,
        parent=parent,
        id=row.id,
        group=row["group"],
        sample=row["sample"],
        name=row["sample_id"],
        left=left,
        flags=list(row["flags"] or ()),
        values={key: row[key] for key in FIGURES},
        seconds=_seconds(row),
        start=next((row[key] for key in STARTS if row[key] is not None), None),
        extras={key: value for key, value in row.values.items() if _names_a_part(key)},
        turns=[] if transcript is None else [_turn(turn) for turn in transcript.turns],
    )


def _turn(turn: Turn) -> EpisodeTurn:
    return EpisodeTurn(
        turn.role, len(turn), len(turn.raw), turn.name, [call.name for call in turn.tool_calls]
    )


def _seconds(row: TraceRow) -> float | None:
    """The seconds that its timings add up to."""
    known = [
        float(value)
        for key, value in row.values.items()
        if key.startswith("timing/") and key not in STARTS and isinstance(value, (int, float))
    ]
    return sum(known) if known else None


def _names_a_part(key: str) -> bool:
    return key.startswith("extra/") or key in ("source", "engine")


def _differing(rows: Sequence[TraceRow]) -> list[str]:
    """Columns by which the trainer itself distinguishes the rows."""
    names = {key for row in rows for key in row.values if _names_a_part(key)}
    return sorted(key for key in names if len({str(row[key]) for row in rows}) > 1)[:MOST_DIFFERING]
