"""A decoded rollout: turns that partition its tokens, and the per-token truth beside them; flags and alerts, which speak of it.

Plain frozen data over numpy. Nothing here imports torch, a tokenizer or Trackio, so the write side
and the read side share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

import numpy as np

from rollout_traces.model.text import MUTED, encodable, escaped, lines, titled, words

Role = Literal["system", "user", "assistant", "tool", "context"]
Source = Literal["messages", "template", "mask"]

SCHEMA_VERSION = 1
"""Version of the fields of `Transcript`, `Turn`, `ToolCall` and `TokenTrack`."""
UNPARSED = "tool_call_unparsed"
"""The word every warning about a call that could not be parsed begins with."""
THINKING_UNCLOSED = "thinking_unclosed"
"""The word the warning about thinking that was opened and not closed begins with."""

THINKING_BESIDE = ("reasoning_content", "reasoning", "thinking")
"""Names under which tools keep an assistant's thinking beside its content; the first that holds text is taken."""

INT_TRACKS = ("turn_ids", "versions")
"""Per-token integer tracks; -1 means that the token was not sampled."""

FLOAT_TRACKS = words(
    "logprobs prox_logprobs new_logprobs ref_logprobs advantages values entropies token_rewards loss_weights"
)
"""Per-token float tracks; NaN means unknown at that token."""
_32_BITS = np.iinfo(np.int32)


def int_track(values: np.ndarray) -> np.ndarray:
    """Makes an integer track of whole numbers: int32, or int64 where a value needs it."""
    narrow = np.can_cast(values.dtype, np.int32) or not values.size
    narrow = narrow or (values.min() >= _32_BITS.min and values.max() <= _32_BITS.max)
    return values.astype(np.int32 if narrow else np.int64)


@dataclass(frozen=True)
class ToolCall:
    """One call that an assistant turn makes.

    Attributes:
        name: the tool's name; empty when the call could not be parsed.
        arguments: the parsed arguments, or None when they could not be parsed.
        raw: the text of the call as it was written, markers included.
        id: the call's id as written, or one made up from its position (`call_<turn>_<index>`).
        start: first token of the call, in the rollout's token positions.
        stop: one past the last token of the call.
    """

    name: str
    arguments: Mapping[str, Any] | None
    raw: str
    id: str
    start: int
    stop: int

    @property
    def parsed(self) -> bool:
        """True when the name and the arguments were understood."""
        return bool(self.name) and self.arguments is not None


@dataclass(frozen=True)
class Turn:
    """A contiguous token range written by one role.

    A turn is its opening marker (the generation prompt included), its body and its end marker; what
    lies between an end marker and the next opener belongs to the turn that ended.

    Attributes:
        role: who wrote it; `context` when the markers do not say.
        start: first token of the turn, in the rollout's token positions.
        stop: one past its last token.
        body_start: first token of the body, after the opening marker.
        body_stop: one past the last token of the body, before the end marker.
        raw_bytes: the detokenized bytes of `[start, stop)`; all turns' joined are the rollout's bytes.
            A character whose bytes are cut by the turn's edge keeps its bytes on either side.
        raw: `raw_bytes` as text, undecodable bytes as U+FFFD.
        content: what a person reads: the body less markers, thinking and tool calls.
        thinking: the reasoning text of an assistant turn, without its markers; None when there is none.
        tool_calls: the calls of an assistant turn, in order.
        tool_call_id: for a tool turn, the id of the call it answers; None when it cannot be paired.
        name: for a tool turn, the tool's name where it is known.
        failed: for a tool turn, whether its record says that the call failed, whatever the text says.
        n_sampled: tokens of the turn that the policy sampled.
        versions: `(version, token count)` runs over its sampled tokens, in order; empty when unknown.
        warnings: one sentence each for what was odd about the turn.
    """

    role: Role
    start: int
    stop: int
    body_start: int
    body_stop: int
    raw_bytes: bytes
    raw: str
    content: str
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    failed: bool = False
    n_sampled: int = 0
    versions: tuple[tuple[int, int], ...] = ()
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of tokens."""
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class TokenTrack:
    """The per-token arrays of one rollout of n tokens, unshifted and without padding.

    Attributes:
        input_ids: int64 [n]; -1 where a token was hidden by a `redact` hook.
        loss_mask: bool [n]; the token contributes to the loss.
        response_mask: bool [n]; the policy sampled the token.
        char_starts: int64 [n]; where the token's text begins in the joined `raw` of all turns, in
            characters. A character split over several tokens belongs to the last of them.
        char_stops: int64 [n]; one past the token's last character; equal to the start when the token
            completes no character.
        special: bool [n]; an added or special token of the tokenizer.
        tracks: further [n] arrays by name: of `INT_TRACKS` what `int_track` makes, float32 for `FLOAT_TRACKS`.
    """

    input_ids: np.ndarray
    loss_mask: np.ndarray
    response_mask: np.ndarray
    char_starts: np.ndarray
    char_stops: np.ndarray
    special: np.ndarray
    tracks: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> TokenTrack:
        """The track of a rollout whose tokens are not known."""
        ints, bools = np.zeros(0, np.int64), np.zeros(0, bool)
        return cls(ints, bools, bools, ints, ints, bools)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)


def columns_of(track: TokenTrack) -> dict[str, list[Any]]:
    """The arrays of a track that an import takes, by name, as lists."""
    taken = {"input_ids": track.input_ids, "loss_mask": track.loss_mask, "response_mask": track.response_mask}
    return {name: values.tolist() for name, values in {**taken, **track.tracks}.items()}


@dataclass(frozen=True, eq=False, repr=False)
class Transcript:
    """A decoded rollout.

    Attributes:
        turns: in order; their token ranges partition `[0, n)`.
        source: where roles and content came from: the row's structured `messages`, the chat
            `template`'s markers, or the `mask` alone.
        warnings: one sentence each for what was odd about the rollout as a whole.
        tools: tool definitions the conversation was given, OpenAI style, where they are known.
        given_messages: the structured messages the trainer handed over for this row, untouched.
    """

    turns: tuple[Turn, ...]
    tokens: TokenTrack
    source: Source
    warnings: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    given_messages: tuple[Mapping[str, Any], ...] | None = None

    @cached_property
    def raw(self) -> str:
        """The whole rollout as text: every turn's raw text joined."""
        return "".join(turn.raw for turn in self.turns)

    def text_between(self, start: int, stop: int) -> str:
        """The text of the tokens from `start` to before `stop`, one at least."""
        return self.raw[int(self.tokens.char_starts[start]) : int(self.tokens.char_stops[stop - 1])]

    def token_texts(self) -> Iterator[str]:
        """Yields each token's own text, in order (empty where it completes no character)."""
        raw = self.raw
        for start, stop in zip(
            self.tokens.char_starts.tolist(), self.tokens.char_stops.tolist(), strict=True
        ):
            yield raw[start:stop]

    def __repr__(self) -> str:
        roles = ", ".join(turn.role for turn in self.turns)
        return f"<Transcript: {len(self.tokens)} tokens in {len(self.turns)} turns ({roles}), from {self.source}>"

    def _repr_html_(self) -> str:
        """The conversation for a notebook: tokens in the loss on green, others sampled on yellow, the rest plain."""
        trained = int(self.tokens.loss_mask.sum())
        note = f"{len(self.tokens)} tokens, {trained} in the loss; roles from {self.source}"
        return titled("Rollout", lines(self.warnings), *map(self._turn_html, self.turns), note=note)

    def _turn_html(self, turn: Turn) -> str:
        tokens = self.tokens
        states = zip(
            tokens.loss_mask[turn.start : turn.stop].tolist(),
            tokens.response_mask[turn.start : turn.stop].tolist(),
            range(turn.start, turn.stop),
            strict=True,
        )
        body = ""
        for (in_loss, sampled), run in groupby(states, key=lambda each: each[:2]):
            places = [place for _, _, place in run]
            text = self.text_between(places[0], places[-1] + 1)
            colour = "#cfead0" if in_loss else "#fbf0bf" if sampled else ""
            style = f' style="background:{colour};color:#111"' if colour else f' style="{MUTED}"'
            body += f"<span{style}>{escaped(text)}</span>"
        name = f" {turn.name}" if turn.name else ""
        counted = f"{len(turn)} tokens, {turn.n_sampled} sampled"
        return titled(f"{turn.role}{name}", f'<pre style="white-space:pre-wrap">{body}</pre>', note=counted)

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as OpenAI-style messages with string content.

        Thinking stays inside the content between `<think>` and `</think>`; tool calls stand in
        `tool_calls` with JSON-encoded arguments, paired with tool messages by `tool_call_id`.
        A `context` turn becomes a `user` message named `context`.

        Returns:
            One dict a turn, in order.
        """
        return [_message(turn) for turn in self.turns]


def _message(turn: Turn) -> dict[str, Any]:
    import orjson

    content = turn.content
    if turn.thinking is not None:
        content = f"<think>\n{turn.thinking}\n</think>" + (f"\n\n{content}" if content else "")
    message: dict[str, Any] = {"role": turn.role, "content": content}
    if turn.role == "context":
        message = {"role": "user", "name": "context", "content": content}
    if turn.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name or "unparsed",
                    "arguments": orjson.dumps(call.arguments).decode() if call.parsed else call.raw,
                },
            }
            for call in turn.tool_calls
        ]
    if turn.role == "tool":
        if turn.tool_call_id is not None:
            message["tool_call_id"] = turn.tool_call_id
        if turn.name is not None:
            message["name"] = turn.name
        if turn.failed:
            message["is_error"] = True
    return message


def thinking_beside(message: Mapping[str, Any]) -> str:
    """The thinking that an OpenAI-style message has beside its content; empty where it has none."""
    given = (message.get(name) for name in THINKING_BESIDE)
    return next((encodable(value) for value in given if isinstance(value, str) and value), "")


Severity = Literal["error", "warn", "info"]


@dataclass(frozen=True)
class Flag:
    """A named, explained observation about one rollout.

    Attributes:
        name: snake case.
        severity: `error` (a bug in training), `warn` (worth a look) or `info`.
        message: one sentence that says what was seen, with its number.
        turn: index of the turn it speaks of, or None for the whole rollout.
        start: first token it speaks of, in the rollout's token positions, or None.
        stop: one past the last token it speaks of, or None.
    """

    name: str
    severity: Severity
    message: str
    turn: int | None = None
    start: int | None = None
    stop: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Gives plain values, for a trace's metadata."""
        return asdict(self)


@dataclass(frozen=True)
class Alert:
    """An alert that the sink raises in Trackio.

    Attributes:
        title: a few words, the flag's name among them.
        text: one sentence with the share and its threshold.
        level: the flag's severity; Trackio's levels have the same names.
    """

    title: str
    text: str
    level: Severity
