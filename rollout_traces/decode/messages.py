"""Structured messages: put beside the turns that were decoded from the tokens, or in place of tokens that are not known.

A transcript of messages alone has turns and no token: every turn's range is `[0, 0)`, and what speaks of tokens is
unobserved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np
import orjson

from rollout_traces.decode.content import Body, pair_results
from rollout_traces.decode.grammars import Grammar, grammars_for, parameters_by_tool, parse_assistant
from rollout_traces.decode.markers import ROLE_ALIASES
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.plain_values import plain
from rollout_traces.model.text import text_of
from rollout_traces.model.transcript import (
    THINKING_UNCLOSED,
    UNPARSED,
    Role,
    TokenTrack,
    ToolCall,
    Transcript,
    Turn,
    thinking_beside,
)

NO_TOKENIZER = "the row's tokens are known; without a tokenizer they cannot be shown"


class MessagesDecoder:
    """Stands in for `TranscriptDecoder` in a run without a tokenizer: reads the rows that came with messages.

    Attributes:
        tokenizer: None.
    """

    tokenizer: Any = None

    def readable(self, batch: PackedBatch) -> np.ndarray:
        """bool [B]: the rows that a transcript can be made of."""
        return rows_with_messages(batch)

    def decode_batch(self, packed_batch: PackedBatch, rows: Sequence[int]) -> list[Transcript]:
        """Reads rows of a hand-over; one without messages gives a transcript without turns."""
        return [row_from_messages(packed_batch, int(row)) for row in rows]


def rows_with_messages(batch: PackedBatch) -> np.ndarray:
    """bool [B]: the rows that came with messages."""
    if batch.row_lists.get("messages") is None:
        return np.zeros(batch.n_rows, bool)
    return np.asarray([bool(batch.conversation(row)) for row in range(batch.n_rows)], bool)


def row_from_messages(batch: PackedBatch, row: int) -> Transcript:
    """The transcript of a row's messages; where its tokens are known, a warning says why they are not shown.

    Args:
        row: a row of the hand-over.
    """
    reasons = (NO_TOKENIZER,) if batch.has_tokens[row] else ()
    tools = batch.row_value("tools", row)
    return transcript_of_messages(batch.conversation(row) or (), tools or (), warnings=reasons)


def transcript_of_messages(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    warnings: tuple[str, ...] = (),
) -> Transcript:
    """A transcript of a conversation without tokens.

    Args:
        messages: OpenAI-style; thinking in `reasoning_content` or inside the content, tool calls structured
            or as the model wrote them.
        tools: definitions that the conversation was given.
        warnings: sentences for the transcript.

    Returns:
        One turn a message, source `messages`, and an empty token track.
    """
    given = [message for message in messages if isinstance(message, Mapping)]
    tools = tuple(tool for tool in tools if isinstance(tool, Mapping))
    schemas = parameters_by_tool(tools)
    bodies = [_body(message, index, schemas) for index, message in enumerate(given)]
    roles = [_role(message) for message in given]
    pairs = pair_results(list(zip(roles, bodies, strict=True)))
    turns = tuple(
        _turn(message, role, body, pair)
        for message, role, body, pair in zip(given, roles, bodies, pairs, strict=True)
    )
    return Transcript(
        turns=turns,
        tokens=TokenTrack.empty(),
        source="messages",
        warnings=warnings,
        tools=tools,
    )


def _body(message: Mapping[str, Any], index: int, schemas: Mapping[str, Mapping[str, Any]]) -> Body:
    text = text_of(message.get("content"))
    if message.get("role") != "assistant":
        call_id, name = message.get("tool_call_id"), message.get("name")
        return Body(text, call_id=str(call_id or ""), name=str(name or ""))
    parsed = parse_assistant(text, _grammars(), schemas=schemas)
    warnings = parsed.warnings
    if not parsed.thinking_closed:
        warnings = (*warnings, f"{THINKING_UNCLOSED}: the thinking was opened and not closed")
    written = (ToolCall(c.name, c.arguments, c.raw, c.id or "", 0, 0) for c in parsed.calls)
    given, reasons = _given_calls(message.get("tool_calls"))
    calls = tuple(replace(c, id=c.id or f"call_{index}_{n}") for n, c in enumerate([*written, *given]))
    thinking = "\n\n".join(dict.fromkeys(filter(None, (thinking_beside(message), parsed.thinking))))
    return Body(parsed.content, thinking or None, calls, warnings=(*warnings, *reasons))


def _given_calls(given: Any) -> tuple[list[ToolCall], list[str]]:
    """A message's structured calls, without an id where they say none; and what is odd about them."""
    calls: list[ToolCall] = []
    reasons: list[str] = []
    for item in given if isinstance(given, Sequence) and not isinstance(given, str) else ():
        if not isinstance(item, Mapping):
            continue
        function = item.get("function", item)
        function = function if isinstance(function, Mapping) else {"name": function}
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = orjson.loads(arguments or "{}")
            except orjson.JSONDecodeError as error:
                reasons.append(f"{UNPARSED}: the arguments are no JSON ({error})")
        arguments = arguments if isinstance(arguments, Mapping) else None
        raw = orjson.dumps(plain(item)).decode()
        calls.append(
            ToolCall(str(function.get("name") or ""), arguments, raw, str(item.get("id") or ""), 0, 0)
        )
    return calls, reasons


def _turn(message: Mapping[str, Any], role: Role, body: Body, pair: tuple[str | None, str | None]) -> Turn:
    raw = text_of(message.get("content"))
    if body.thinking is not None and body.thinking not in raw:
        raw = f"<think>\n{body.thinking}\n</think>\n\n{raw}"
    raw += "".join(f"\n{call.raw}" for call in body.tool_calls if call.raw not in raw)
    return Turn(
        role=role,
        start=0,
        stop=0,
        body_start=0,
        body_stop=0,
        raw_bytes=raw.encode("utf-8", "surrogatepass"),
        raw=raw,
        content=body.content,
        thinking=body.thinking,
        tool_calls=body.tool_calls,
        tool_call_id=pair[0],
        name=pair[1],
        failed=role == "tool" and message.get("is_error") is True,
        warnings=body.warnings,
    )


def _role(message: Mapping[str, Any]) -> Role:
    role = message.get("role")
    if role == "user" and message.get("name") == "context":
        return "context"
    known: dict[Any, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
    return known.get(role, "context") if isinstance(role, str) else "context"


@lru_cache(maxsize=1)
def _grammars() -> tuple[Grammar, ...]:
    """Families whose markers are unmistakable: which template wrote the text is not known."""
    return grammars_for(None)


_JSON_EDGES = slice(1, -1)


@dataclass(frozen=True)
class Aligned:
    """The outcome of laying messages over turns.

    Attributes:
        turns: with the messages' content, calls and ids where they agree; else as decoded.
        agrees: every message was found in the tokens, in order.
        warnings: one sentence each for what does not agree.
    """

    turns: tuple[Turn, ...]
    agrees: bool
    warnings: tuple[str, ...] = ()


def align(turns: Sequence[Turn], messages: Sequence[Mapping[str, Any]]) -> Aligned:
    """Lays a row's structured messages over its turns.

    Args:
        turns: decoded from the tokens.
        messages: OpenAI style, as the trainer handed them over.

    Returns:
        When every message stands in the tokens in its place, turns with the messages' content, calls and
        ids; else the turns as they are and a warning that names the first message that does not.
    """
    decoded = tuple(turns)
    merged = list(decoded)
    at = 0
    for index, message in enumerate(messages):
        said = str(message.get("role", "")).lower() if isinstance(message, Mapping) else ""
        role = ROLE_ALIASES.get(said)
        if role is None:
            return _refused(decoded, index, "has no role that is known, or is no mapping")
        while at < len(decoded) and decoded[at].role == "system" != role:
            at += 1
        if at == len(decoded):
            return _refused(decoded, index, f"({role}) stands after the tokens' last turn")
        turn, stands = decoded[at], _stands_in(text_of(message.get("content")), decoded[at])
        if role == "system" != turn.role and stands:
            continue
        if role != turn.role and (turn.role != "context" or role == "assistant"):
            return _refused(decoded, index, f"is {role}, turn {at} of the tokens is {turn.role}")
        if not stands:
            return _refused(decoded, index, f"({role}) has other text than turn {at} of the tokens")
        merged[at] = _merge(turn, role, message)
        at += 1
    rest = len(decoded) - at
    notes = (f"messages cover {at} of {len(decoded)} turns; the rest is shown as decoded",) if rest else ()
    return Aligned(tuple(merged), True, notes)


def _refused(turns: tuple[Turn, ...], index: int, what: str) -> Aligned:
    warning = f"messages_disagree: message {index} {what}; the tokens are shown"
    return Aligned(turns, False, (warning,))


def _stands_in(text: str, turn: Turn) -> bool:
    wanted = text.strip()
    if not wanted or wanted in turn.raw or wanted == turn.content.strip():
        return True
    answer = wanted.rpartition("</think>")[2].strip()
    encoded = (json.dumps(wanted, ensure_ascii=flag)[_JSON_EDGES] for flag in (False, True))
    return (bool(answer) and answer in turn.raw) or any(form in turn.raw for form in encoded)


def _merge(turn: Turn, role: Role, message: Mapping[str, Any]) -> Turn:
    text = text_of(message.get("content"))
    inline = bool(turn.thinking) and str(turn.thinking).strip() in text
    given, _ = _given_calls(message.get("tool_calls"))
    pairs = zip_longest(given, turn.tool_calls[: len(given)])
    name = str(message.get("name") or "") if role == "tool" else ""
    return replace(
        turn,
        role=role,
        content=turn.content if inline else text,
        thinking=thinking_beside(message) or turn.thinking,
        tool_calls=tuple(_merge_call(turn, n, *pair) for n, pair in enumerate(pairs)) or turn.tool_calls,
        tool_call_id=str(message.get("tool_call_id") or "") or turn.tool_call_id,
        name=name or turn.name,
        failed=role == "tool" and message.get("is_error") is True,
    )


def _merge_call(turn: Turn, n: int, given: ToolCall, written: ToolCall | None) -> ToolCall:
    """A message's call in the place of the one that the tokens hold; what it does not say is as they say it."""
    if written is None:
        made = given.id or f"call_{turn.start}_{n}"
        return replace(given, id=made, start=turn.body_start, stop=turn.body_stop)
    arguments = given.arguments or written.arguments or given.arguments
    return replace(written, name=given.name or written.name, arguments=arguments, id=given.id or written.id)
