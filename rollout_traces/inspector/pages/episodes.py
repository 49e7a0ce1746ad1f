"""Episodes that reached the trainer as several rows: the tree and how rows left each other, what was trained, the way through time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import MOST_DRAWN, MOST_READ, Drawn, Number, drawn_by
from rollout_traces.inspector.workspace import InParts, SplitView, seen
from rollout_traces.metrics.shapes import shared_length
from rollout_traces.model.text import words
from rollout_traces.model.transcript import Transcript, Turn
from rollout_traces.store import Store, TraceRow
from rollout_traces.trace.conversion import read_transcript

MOST_DIFFERING = 4
"""Columns by which rows are told apart."""
FIGURES = words("trained discard_reason reward advantage n_sampled n_turns n_tool_calls stop_reason")
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
class EpisodesAnswer(Drawn, InParts):
    """The episodes of a step, and the chosen one as a tree.

    Attributes:
        kinds: how a row can have left another, in words.
        n_beyond: rows of the step that were not looked at.
    """

    step: int
    episodes: list[ListedEpisode]
    kinds: Mapping[str, str]
    n_beyond: int
    tree: EpisodeTree


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
        raise StoreError(f"Step {step} has no episode {seen(episode)}. Pick one of the {len(found)} listed.")
    chosen = episode or _chosen(found, group, sample)
    return EpisodesAnswer(
        step=step,
        episodes=[_listed(name, of) for name, of in found.items()],
        kinds=KINDS,
        n_beyond=n_beyond,
        tree=_tree(view.store, chosen, found[chosen]),
        **drawn_by(view),
    )


def _rows(view: SplitView, step: int) -> tuple[list[TraceRow], int]:
    """The rows of a step that belong to an episode, and how many rows of the step were not looked at."""
    page = view.query(
        rows="all", attempts="newest", steps=(step, step), limit=MOST_READ, order_by="group, sample"
    )
    rows = [row for row in page.rows if row["episode"] is not None]
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
    shown = rows[:MOST_DRAWN]
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
        left = leaving(transcript, transcripts[parent])
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


WORDS = 60
"""Characters of a text by which a task or an answer is found again in another row."""
FEWEST = 8
"""Characters of one that tell it from others."""
KINDS = {
    "opening": "opens the episode",
    "continued": "goes on where the other ends",
    "branch": "shares whole turns with the row it left",
    "retry": "the same prompt, sampled anew: they part in the first turn of the policy",
    "compaction": "a new context under the same first turn: compacted or cut",
    "sub_agent": "a context of its own: a sub-agent, or a prompt that was rewritten",
    "unknown": "how it left is unobserved: its tokens or those of the row it left were not kept",
}
"""Relations of a row to the one it left; read off the tokens, for trainers do not say it."""


@dataclass(frozen=True)
class Leaving:
    """The way in which a row left another.

    Attributes:
        kind: a key of `KINDS`.
        shared: tokens that both begin with; None where unknown.
        left_at: the other row's turn at which it left; None where unknown.
        back_at: the other row's turn that holds its last answer; None where there is none.
    """

    kind: str
    shared: int | None = None
    left_at: int | None = None
    back_at: int | None = None


def parent_rows(ids: Sequence[str | None], parents: Sequence[str | None]) -> list[int | None]:
    """The row that each row left, by position; None for one that left none, names an unknown one or itself.

    Args:
        ids: sample id of each row.
        parents: the sample id that each row names.
    """
    places = {name: at for at, name in reversed(list(enumerate(ids))) if name is not None}
    found = [None if name is None else places.get(name) for name in parents]
    for row in range(len(found)):
        seen = {row}
        at = found[row]
        while at is not None and at not in seen:
            seen.add(at)
            at = found[at]
        if at is not None:
            found[row] = None
    return found


def depths(parents: Sequence[int | None]) -> list[tuple[int, int]]:
    """The rows in the order of the tree, each with its depth: a row stands before those that left it."""
    children: dict[int | None, list[int]] = {}
    for row, parent in enumerate(parents):
        children.setdefault(parent, []).append(row)
    order: list[tuple[int, int]] = []
    waiting = [(row, 0) for row in reversed(children.get(None, []))]
    while waiting:
        row, depth = waiting.pop()
        order.append((row, depth))
        waiting += [(child, depth + 1) for child in reversed(children.get(row, []))]
    return order


def leaving(child: Transcript | None, parent: Transcript | None) -> Leaving:
    """Finds out how a row left another, from their tokens and turns.

    Args:
        child: the row; None where it was not kept.
        parent: the row that it left; None where it was not kept.
    """
    if child is None or parent is None:
        return Leaving("unknown")
    back = _holding(parent.turns, _last_answer(child))
    if not len(child.tokens) or not len(parent.tokens):
        return Leaving("unknown", None, _asking(parent.turns, child), back)
    shared = shared_length([parent.tokens.input_ids, child.tokens.input_ids])
    sampled = [_first_sampled(each) for each in (parent, child)]
    if shared == len(parent.tokens):
        return Leaving("continued", shared, len(parent.turns) - 1, back)
    if shared >= min(sampled):
        parts, begins = (_turn_at(parent.turns, token) for token in (shared, sampled[0]))
        return Leaving("retry" if parts == begins else "branch", shared, parts, back)
    if parent.turns and child.turns and parent.turns[0].content == child.turns[0].content:
        return Leaving("compaction", shared, len(parent.turns) - 1, back)
    asked = _asking(parent.turns, child)
    if asked is None and back is not None:
        asked = _answered_by(parent.turns, back)
    return Leaving("sub_agent", shared, asked, back)


def _first_sampled(transcript: Transcript) -> int:
    sampled = transcript.tokens.response_mask.nonzero()[0]
    return int(sampled[0]) if len(sampled) else len(transcript.tokens)


def _turn_at(turns: Sequence[Turn], token: int) -> int | None:
    return next((at for at, turn in enumerate(turns) if turn.start <= token < turn.stop), None)


def _last_answer(transcript: Transcript) -> str:
    said = [turn.content.strip() for turn in transcript.turns if turn.role == "assistant"]
    return said[-1] if said else ""


def _holding(turns: Sequence[Turn], answer: str) -> int | None:
    """The tool turn that holds an answer."""
    wanted = answer[:WORDS]
    if len(wanted) < FEWEST:
        return None
    return next((at for at, turn in enumerate(turns) if turn.role == "tool" and wanted in turn.content), None)


def _asking(turns: Sequence[Turn], child: Transcript) -> int | None:
    """The turn whose tool call holds the task with which another row begins."""
    task = next((turn.content.strip() for turn in child.turns if turn.role == "user"), "")[:WORDS]
    if len(task) < FEWEST:
        return None
    return next((at for at, turn in enumerate(turns) for call in turn.tool_calls if task in call.raw), None)


def _answered_by(turns: Sequence[Turn], result: int) -> int | None:
    wanted = turns[result].tool_call_id
    calls = ((at, call.id) for at, turn in enumerate(turns[:result]) for call in turn.tool_calls)
    return next((at for at, name in calls if name == wanted and wanted is not None), None)
