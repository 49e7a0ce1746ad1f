"""Flags of the policy family that write the rollout again with the tokenizer and compare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any

import numpy as np

from rollout_traces.flags.detect import TracedRow
from rollout_traces.flags.mask import foreign_turns, known_sampled
from rollout_traces.flags.registry import make_flag, row_flag
from rollout_traces.metrics.shapes import shared_length
from rollout_traces.model.text import quoted
from rollout_traces.model.transcript import Flag, Transcript, Turn

_SHOWN = 60
"""Characters of a text that a sentence shows."""
_BESIDE = 8
"""Characters beside what differs that are shown, or compared."""
_ALIKE = 4
"""Equal tokens at which two sequences have met again."""
_REACH = 64
"""Tokens behind the place where they part among which that is looked for."""
_SENTINEL = re.compile(r"Zqq(\d+)qZ")
_THOUGHT = re.compile(r"Xqq(\d+)qX")
_SPEAKERS = ("system", "user", "assistant", "tool")


@row_flag(
    family="policy",
    meaning="the scaffolding between turns differs from what the chat template would write",
    needs=("tokens", "tokenizer"),
    explained_by=("sampled_foreign_turn", "prefix_broken"),
)
def template_drift(
    row: TracedRow, *, n_turns: Annotated[int, "first turns of the row that are rendered and compared"] = 32
) -> Iterator[Flag]:
    """Compares the scaffolding between turns' bodies, and whether thinking stays in history, with what the template writes.

    The template renders the row's roles and calls with sentinel contents, so that contents cannot differ.
    Compared is what stands before and after the assistant's turns, from the first special token to the last.
    The prompt was a single rendering and is not looked at. Rows that the template refuses or whose roles it
    cannot write (two assistant turns in a row) are passed over.
    """
    turns = row.transcript.turns[:n_turns]
    first = next((index for index, turn in enumerate(turns) if turn.role == "assistant"), None)
    if row.transcript.source == "mask" or first is None or not _can_render(turns):
        return
    rendered = _render(row.tokenizer, [_Shape.of(turn) for turn in turns])
    if rendered:
        template = _Rendering(rendered)
        yield from _kept_thinking(turns, template)
        yield from _other_scaffolding(row.transcript, turns, first, template)


@row_flag(
    family="policy",
    severity="info",
    meaning="encoding the decoded text again gives other tokens",
    needs=("tokens", "tokenizer"),
    on_request=True,
    explained_by=("template_drift", "header_drift"),
)
def retokenized(
    row: TracedRow, *, context: Annotated[int, "tokens shown of each side"] = 6
) -> Iterator[Flag]:
    """encode(decode(ids)) against ids: the first span where they part, up to where they meet again."""
    transcript = row.transcript
    if not transcript.turns or any("�" in turn.raw for turn in transcript.turns):
        return
    ids = transcript.tokens.input_ids
    again = np.asarray(row.tokenizer.encode(transcript.raw, add_special_tokens=False), np.int64)
    if np.array_equal(ids, again):
        return
    start = shared_length([ids, again])
    stop, stop_again = _meeting(ids, again, start)
    shown = transcript.text_between(min(start, len(ids) - 1), stop)
    yield make_flag(
        "retokenized",
        f"{_shown(shown)} is {stop - start} tokens here ({_ids(ids[start:stop], context)}) and "
        f"{stop_again - start} when encoded again ({_ids(again[start:stop_again], context)}).",
        start=start,
        stop=stop,
    )


def _meeting(ids: np.ndarray, again: np.ndarray, start: int) -> tuple[int, int]:
    """Finds where two token sequences that part at `start` first have `_ALIKE` equal tokens again; else their ends."""
    for reach in range(1, _REACH):
        for left in range(reach + 1):
            here, there = start + left, start + reach - left
            if here + _ALIKE <= len(ids) and np.array_equal(
                ids[here : here + _ALIKE], again[there : there + _ALIKE]
            ):
                return max(here, start + 1), there
    return len(ids), len(again)


def _can_render(turns: Sequence[Turn]) -> bool:
    roles = [turn.role for turn in turns]
    twice = any(a == b == "assistant" for a, b in pairwise(roles))
    parsed = all(call.parsed for turn in turns for call in turn.tool_calls)
    return all(role in _SPEAKERS for role in roles) and not twice and parsed


@dataclass(frozen=True)
class _Shape:
    """All of a turn that a rendering of sentinels depends on.

    Attributes:
        role: who speaks.
        thinks: whether there is thinking.
        calls: id and name of each call.
        answers: of a tool's turn, the call's id and the tool's name.
    """

    role: str
    thinks: bool
    calls: tuple[tuple[str, str], ...]
    answers: tuple[str, str] | None

    @classmethod
    def of(cls, turn: Turn) -> _Shape:
        answers = (turn.tool_call_id or "call_0_0", turn.name or "tool") if turn.role == "tool" else None
        return cls(
            turn.role, bool(turn.thinking), tuple((call.id, call.name) for call in turn.tool_calls), answers
        )

    def message(self, index: int) -> dict[str, Any]:
        """The turn with sentinels in place of its texts."""
        thought = f"<think>\nXqq{index}qX\n</think>\n\n" if self.thinks else ""
        message: dict[str, Any] = {"role": self.role, "content": f"{thought}Zqq{index}qZ"}
        if self.calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": {}}}
                for id_, name in self.calls
            ]
        if self.answers is not None:
            message |= {"tool_call_id": self.answers[0], "name": self.answers[1]}
        return message


def _render(tokenizer: Any, shapes: Sequence[_Shape], *, opened: bool = False) -> str:
    """The template's rendering of some turns; empty where there is no template, or it refuses them.

    Args:
        tokenizer: it renders.
        shapes: the turns.
        opened: with the text by which the template opens the assistant's turn.
    """
    template = getattr(tokenizer, "chat_template", None)
    return _rendered(tokenizer, str(template), tuple(shapes), opened) if template else ""


@lru_cache
def _rendered(tokenizer: Any, template: str, shapes: tuple[_Shape, ...], opened: bool) -> str:
    """The rollouts of a run have few shapes, and rendering takes longer than all other flags of a row."""
    from jinja2 import TemplateError

    messages = [shape.message(index) for index, shape in enumerate(shapes)]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened))
    except TemplateError:
        return ""


class _Rendering:
    """The template's rendering of a conversation of sentinels.

    Attributes:
        text: the whole rendering.
        places: index of a turn -> where its sentinel begins and ends; without those that appear twice.
        thoughts: indices of the turns whose thinking was kept.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.thoughts = {int(match[1]) for match in _THOUGHT.finditer(text)}
        seen: dict[int, list[tuple[int, int]]] = {}
        for match in _SENTINEL.finditer(text):
            seen.setdefault(int(match[1]), []).append(match.span())
        self.places = {index: spans[0] for index, spans in seen.items() if len(spans) == 1}

    def between(self, index: int, called: str | None = None) -> str | None:
        """Cuts out the text between a turn's sentinel and the next; None when one was moved, repeated or left out.

        Args:
            index: the turn.
            called: what the next turn calls first; where the template leaves out the text of such a turn, this
                name stands for its sentinel.
        """
        if index not in self.places:
            return None
        start = self.places[index][1]
        if index + 1 in self.places:
            stop = self.places[index + 1][0]
        else:
            after = _SENTINEL.search(self.text, start)
            stop = self.text.find(called, start, after.start() if after else None) if called else -1
        if stop < 0:
            return None
        between = self.text[start:stop]
        return None if not between or _SENTINEL.search(between) else between.strip()


def _kept_thinking(turns: Sequence[Turn], template: _Rendering) -> Iterator[Flag]:
    """The first turn of the history whose thinking the template would have left out."""
    for index, turn in enumerate(turns[:-1]):
        if turn.role == "assistant" and turn.thinking and index not in template.thoughts:
            text = f"Turn {index} keeps {len(turn.thinking)} characters of thinking, which the template leaves out."
            yield make_flag("template_drift", text, turn=index, start=turn.body_start, stop=turn.body_stop)
            return


def _other_scaffolding(
    transcript: Transcript, turns: Sequence[Turn], first: int, template: _Rendering
) -> Iterator[Flag]:
    """The first place from turn `first` on where the row's markers and white space differ."""
    for index in range(first, len(turns) - 1):
        turn, following = turns[index], turns[index + 1]
        called = following.tool_calls[0].name if following.tool_calls else None
        actual, expected = _scaffolding(transcript, index), template.between(index, called)
        if not actual or expected is None or _agree(turn, following, expected, actual):
            continue
        near = expected[-len(actual) - _BESIDE :] if turn.role == "assistant" else expected
        text = (
            f"Between turns {index} and {index + 1} stands {_shown(actual)}, where the template writes "
            f"{_shown(near)}."
        )
        stop = max(following.body_start, turn.body_stop + 1)
        yield make_flag("template_drift", text, turn=index, start=turn.body_stop, stop=stop)
        return


def _scaffolding(transcript: Transcript, index: int) -> str:
    """Cuts out the text between the bodies of a turn and the next, from the first to the last special token.

    Tokens at the edges may hold parts of a body; empty where there is no special token.
    """
    start, stop = transcript.turns[index].body_stop, transcript.turns[index + 1].body_start
    special = start + np.flatnonzero(transcript.tokens.special[start:stop])
    return transcript.text_between(special[0], special[-1] + 1) if len(special) else ""


def _agree(turn: Turn, following: Turn, expected: str, actual: str) -> bool:
    if actual in expected or "assistant" not in (turn.role, following.role):
        return True
    at = expected.find(actual[:_BESIDE])
    return following.role == "assistant" and at >= 0 and actual.startswith(expected[at:])


def _shown(text: str) -> str:
    return quoted(text, _SHOWN)


def _ids(ids: np.ndarray, limit: int) -> str:
    listed = ", ".join(map(str, ids[:limit].tolist()))
    return f"{listed}, …" if len(ids) > limit else listed


_PROBE = (_Shape("user", False, (), None),)


@row_flag(
    family="policy",
    meaning="the policy wrote a turn of the system, a user or a tool itself",
    needs=("tokens",),
)
def sampled_foreign_turn(
    row: TracedRow, *, share: Annotated[float, "of the turn's tokens that must be sampled"] = 0.5
) -> Iterator[Flag]:
    """Most tokens of a turn that its markers give to somebody else were sampled.

    Where sampling is known by the loss mask alone, a turn counts when all of it is in the loss and follows an
    assistant turn, all in the loss, that no end marker closed.
    """
    transcript, tokens = row.transcript, row.transcript.tokens
    if transcript.source == "mask":
        return
    sampled = known_sampled(row)
    unknown = not sampled.any()
    for index, turn, written in foreign_turns(transcript, tokens.loss_mask):
        n = int(sampled[turn.start : turn.stop].sum())
        if not (written if unknown else n > share * len(turn)):
            continue
        text = f"The policy wrote {len(turn) if unknown else n} of the {len(turn)} tokens of {turn.role} turn {index}."
        yield make_flag("sampled_foreign_turn", text, turn=index, start=turn.start, stop=turn.stop)


@row_flag(
    family="policy",
    meaning="the white space after the assistant's header differs from the template's generation prompt",
    needs=("tokenizer",),
)
def header_drift(row: TracedRow) -> Iterator[Flag]:
    """The first sampled turn that has the generation prompt's header without the white space behind it.

    Such a header may not be known as one: then it is a turn of nobody's, and what was sampled follows it.
    """
    header = _generation_prompt(row.tokenizer)
    bare = header.rstrip()
    if not bare or bare == header or row.transcript.source == "mask":
        return
    turns = row.transcript.turns
    for index, turn in enumerate(turns):
        sampled = turn.n_sampled or (
            turn.role == "context" and index + 1 < len(turns) and turns[index + 1].n_sampled
        )
        if turn.role not in ("assistant", "context") or not sampled or not turn.raw.startswith(bare):
            continue
        if turn.raw.startswith(header):
            continue
        stands = turn.raw[len(bare) : len(header) + _BESIDE]
        text = f"After the assistant's header of turn {index} stands {quoted(stands)}, where the template writes {quoted(header[len(bare) :])}."
        yield make_flag(
            "header_drift", text, turn=index, start=turn.start, stop=_header_stop(row, turn, len(bare))
        )
        return


@row_flag(
    family="policy",
    meaning="the token that begins a text occurs twice at its start, or is missing where the template writes it",
    needs=("tokenizer",),
    explained_by=("pad_attended",),
)
def bos_anomaly(row: TracedRow) -> Iterator[Flag]:
    """Two beginning tokens or more at the start of a row, or none where the chat template's rendering has one."""
    bos = getattr(row.tokenizer, "bos_token_id", None)
    ids = row.transcript.tokens.input_ids
    if bos is None or not len(ids):
        return
    others = np.flatnonzero(ids != bos)
    n = int(others[0]) if len(others) else len(ids)
    if n > 1:
        text = f"The row begins with {n} beginning tokens (id {bos}): prompt and tokenizer both wrote one."
        yield make_flag("bos_anomaly", text, start=0, stop=n)
    elif n == 0 and _writes_bos(row.tokenizer):
        text = f"The row does not begin with the beginning token (id {bos}) that the chat template writes."
        yield make_flag("bos_anomaly", text, start=0, stop=1)


def _header_stop(row: TracedRow, turn: Turn, n_characters: int) -> int:
    """One past the last token of the first characters of a turn."""
    tokens = row.transcript.tokens
    starts = tokens.char_starts[turn.start : turn.stop] - int(tokens.char_starts[turn.start])
    return turn.start + max(int((starts < n_characters).sum()), 1)


def _generation_prompt(tokenizer: Any) -> str:
    """Finds the text by which the template opens the assistant's turn; empty where it is not known."""
    without, with_it = (_render(tokenizer, _PROBE, opened=opened) for opened in (False, True))
    return with_it[len(without) :] if without and with_it.startswith(without) else ""


def _writes_bos(tokenizer: Any) -> bool:
    """Tells whether the template's rendering begins with the beginning token."""
    token = getattr(tokenizer, "bos_token", None)
    return bool(token) and _render(tokenizer, _PROBE).startswith(str(token))
