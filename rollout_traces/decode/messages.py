"""Messages -> Transcript, for rollouts whose tokens are not known or cannot be read.

Such a transcript has turns and no token: every turn's range is `[0, 0)`, and what speaks of tokens is unobserved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from rollout_traces.decode.content import Body, pair_results
from rollout_traces.decode.grammars import (
    THINKING_UNCLOSED,
    UNPARSED,
    Grammar,
    grammars_for,
    parameters_by_tool,
    parse_assistant,
)
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.text import encodable
from rollout_traces.model.transcript import Role, TokenTrack, ToolCall, Transcript, Turn

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
    schemas = parameters_by_tool([tool for tool in tools if isinstance(tool, Mapping)])
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
        tools=tuple(tool for tool in tools if isinstance(tool, Mapping)),
    )


def _body(message: Mapping[str, Any], index: int, schemas: Mapping[str, Mapping[str, Any]]) -> Body:
    text = _text(message.get("content"))
    if message.get("role") != "assistant":
        call_id, name = message.get("tool_call_id"), message.get("name")
        return Body(text, call_id=str(call_id or ""), name=str(name or ""))
    parsed = parse_assistant(text, _grammars(), schemas=schemas)
    warnings = parsed.warnings
    if not parsed.thinking_closed:
        warnings = (*warnings, f"{THINKING_UNCLOSED}: the thinking was opened and not closed")
    calls = tuple(
        ToolCall(call.name, call.arguments, call.raw, call.id or f"call_{index}_{n}", 0, 0)
        for n, call in enumerate(parsed.calls)
    )
    given, reasons = _given_calls(message.get("tool_calls"), index, len(calls))
    thinking = message.get("reasoning_content")
    thinking = thinking if isinstance(thinking, str) and thinking else parsed.thinking
    return Body(parsed.content, thinking, (*calls, *given), warnings=(*warnings, *reasons))


def _given_calls(given: Any, index: int, first: int) -> tuple[tuple[ToolCall, ...], tuple[str, ...]]:
    calls: list[ToolCall] = []
    reasons: list[str] = []
    for n, item in enumerate(given if isinstance(given, Sequence) and not isinstance(given, str) else ()):
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
                arguments = None
        if not isinstance(arguments, Mapping):
            arguments = None
        raw = orjson.dumps(dict(item), default=str).decode()
        identity = str(item.get("id") or f"call_{index}_{first + n}")
        calls.append(ToolCall(str(function.get("name") or ""), arguments, raw, identity, 0, 0))
    return tuple(calls), tuple(reasons)


def _turn(message: Mapping[str, Any], role: Role, body: Body, pair: tuple[str | None, str | None]) -> Turn:
    raw = _text(message.get("content"))
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


def _text(content: Any) -> str:
    if isinstance(content, str):
        return encodable(content)
    if content is None:
        return ""
    if isinstance(content, Sequence):
        return "".join(str(p.get("text", "")) if isinstance(p, Mapping) else str(p) for p in content)
    return str(content)


@lru_cache(maxsize=1)
def _grammars() -> tuple[Grammar, ...]:
    """Families whose markers are unmistakable: which template wrote the text is not known."""
    return grammars_for(None)
