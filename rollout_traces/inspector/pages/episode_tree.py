"""How the rows of an episode hang together: who left whom, where, and what its tokens say of the way it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_traces.inspector.pages.prefix_tree import shared_length
from rollout_traces.model.transcript import Transcript, Turn

WORDS = 60
"""Characters of a text by which a task or an answer is found again in another row."""
KINDS = {
    "opening": "opens the episode",
    "continued": "goes on where the other ends",
    "branch": "shares whole turns with the row it left",
    "retry": "the same prompt, sampled anew: they part in the first turn of the policy",
    "compaction": "a new context under the same first turn: compacted or cut",
    "sub_agent": "a context of its own: a sub-agent, or a prompt that was rewritten",
    "unknown": "how it left is unobserved: its tokens or those of the row it left were not kept",
}
"""What a row can be to the one it left; read off the tokens, for trainers do not say it."""


@dataclass(frozen=True)
class Leaving:
    """How a row left another.

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


def leaving(child: Transcript | None, parent: Transcript | None, *, opens: bool) -> Leaving:
    """How a row left another, from their tokens and turns.

    Args:
        child: the row; None where it was not kept.
        parent: the row that it left; None where it was not kept.
        opens: the row left none.
    """
    if opens:
        return Leaving("opening")
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
    if len(wanted) < 8:
        return None
    return next((at for at, turn in enumerate(turns) if turn.role == "tool" and wanted in turn.content), None)


def _asking(turns: Sequence[Turn], child: Transcript) -> int | None:
    """The turn whose tool call holds the task with which another row begins."""
    task = next((turn.content.strip() for turn in child.turns if turn.role == "user"), "")[:WORDS]
    if len(task) < 8:
        return None
    return next((at for at, turn in enumerate(turns) for call in turn.tool_calls if task in call.raw), None)


def _answered_by(turns: Sequence[Turn], result: int) -> int | None:
    wanted = turns[result].tool_call_id
    calls = ((at, call.id) for at, turn in enumerate(turns[:result]) for call in turn.tool_calls)
    return next((at for at, name in calls if name == wanted and wanted is not None), None)
