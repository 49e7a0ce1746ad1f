"""Structured messages put beside the turns that were decoded from the tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollout_traces.decode.markers import ROLE_ALIASES
from rollout_traces.model.text import encodable
from rollout_traces.model.transcript import Role, ToolCall, Turn

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


@dataclass(frozen=True)
class _Message:
    role: Role
    text: str
    thinking: str | None
    calls: tuple[Mapping[str, Any], ...]
    call_id: str | None
    name: str | None
    failed: bool


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
    pairs: dict[int, _Message] = {}
    at = 0
    for index, value in enumerate(messages):
        message = _read(value)
        if message is None:
            return _refused(decoded, index, "has no role that is known, or is no mapping")
        while at < len(decoded) and decoded[at].role == "system" != message.role:
            at += 1
        if at == len(decoded):
            return _refused(decoded, index, f"({message.role}) stands after the tokens' last turn")
        turn = decoded[at]
        if message.role == "system" != turn.role and _stands_in(message.text, turn):
            continue
        if not _same_role(message, turn):
            return _refused(decoded, index, f"is {message.role}, turn {at} of the tokens is {turn.role}")
        if not _stands_in(message.text, turn):
            return _refused(decoded, index, f"({message.role}) has other text than turn {at} of the tokens")
        pairs[at] = message
        at += 1
    merged = [_merge(turn, pairs[i]) if i in pairs else turn for i, turn in enumerate(decoded)]
    rest = len(decoded) - at
    notes = (f"messages cover {at} of {len(decoded)} turns; the rest is shown as decoded",) if rest else ()
    return Aligned(tuple(merged), True, notes)


def _refused(turns: tuple[Turn, ...], index: int, what: str) -> Aligned:
    warning = f"messages_disagree: message {index} {what}; the tokens are shown"
    return Aligned(turns, False, (warning,))


def _same_role(message: _Message, turn: Turn) -> bool:
    return message.role == turn.role or (turn.role == "context" and message.role != "assistant")


def _stands_in(text: str, turn: Turn) -> bool:
    wanted = text.strip()
    if not wanted or wanted in turn.raw or wanted == turn.content.strip():
        return True
    answer = wanted.rpartition("</think>")[2].strip()
    encoded = (json.dumps(wanted, ensure_ascii=flag)[_JSON_EDGES] for flag in (False, True))
    return (bool(answer) and answer in turn.raw) or any(form in turn.raw for form in encoded)


def _read(value: Any) -> _Message | None:
    if not isinstance(value, Mapping):
        return None
    role = ROLE_ALIASES.get(str(value.get("role", "")).lower())
    if role is None:
        return None
    calls = value.get("tool_calls")
    thinking = value.get("reasoning_content") or value.get("thinking")
    return _Message(
        role,
        text_of(value.get("content")),
        thinking if isinstance(thinking, str) else None,
        tuple(c for c in calls if isinstance(c, Mapping)) if isinstance(calls, (list, tuple)) else (),
        None if value.get("tool_call_id") is None else str(value["tool_call_id"]),
        None if value.get("name") is None else str(value["name"]),
        value.get("is_error") is True,
    )


def text_of(content: Any) -> str:
    """A message's content as text: nothing for None, typed parts joined, other parts named.

    Args:
        content: a string, None, or a list of OpenAI-style parts.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return encodable(content)
    if not isinstance(content, (list, tuple)):
        return str(content)
    pieces = []
    for part in content:
        if isinstance(part, Mapping):
            text = part.get("text")
            pieces.append(text if isinstance(text, str) else f"[{part.get('type', 'part')}]")
        else:
            pieces.append(str(part))
    return "".join(pieces)


def _merge(turn: Turn, message: _Message) -> Turn:
    thinking = message.thinking if message.thinking is not None else turn.thinking
    inline = bool(turn.thinking) and str(turn.thinking).strip() in message.text
    return replace(
        turn,
        role=message.role,
        content=turn.content if inline else message.text,
        thinking=thinking,
        tool_calls=_merge_calls(turn, message.calls) if message.calls else turn.tool_calls,
        tool_call_id=message.call_id or turn.tool_call_id,
        name=message.name or turn.name if message.role == "tool" else turn.name,
        failed=message.role == "tool" and message.failed,
    )


def _merge_calls(turn: Turn, calls: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    merged = []
    for index, call in enumerate(calls):
        written = turn.tool_calls[index] if index < len(turn.tool_calls) else None
        function = call.get("function", call)
        function = function if isinstance(function, Mapping) else {}
        name, arguments = str(function.get("name") or ""), function.get("arguments")
        merged.append(
            ToolCall(
                name=name or (written.name if written else ""),
                arguments=_arguments(arguments, written),
                raw=written.raw if written else (arguments if isinstance(arguments, str) else turn.raw),
                id=str(call.get("id") or (written.id if written else f"call_{turn.start}_{index}")),
                start=written.start if written else turn.body_start,
                stop=written.stop if written else turn.body_stop,
            )
        )
    return tuple(merged)


def _arguments(value: Any, written: ToolCall | None) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)
    try:
        parsed = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else (written.arguments if written else None)
