"""The turns of a trace that another tool wrote: messages as text, without token data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rollout_traces.decode.grammars import THINKING_UNCLOSED
from rollout_traces.model.text import encodable
from rollout_traces.trace.thinking import spoken


def written_turns(messages: Sequence[Any]) -> dict[str, Any]:
    """A conversation as `turns` and `raw`, in the form of `rollout_payload`.

    Args:
        messages: OpenAI-style; anything but a mapping is left out.

    Returns:
        `turns`, an assistant's thinking apart from its content; `raw`, the contents as they were written, of which
        each turn's `char_start` and `char_stop` cut its own (UTF-16 units).
    """
    turns: list[dict[str, Any]] = []
    written: list[str] = []
    at = 0
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        text = encodable(_content_text(message.get("content")))
        stop = at + len(text.encode("utf-16-le")) // 2
        turns.append(_turn(message, text) | {"char_start": at, "char_stop": stop})
        written.append(text)
        at = stop
    return {"turns": turns, "raw": "".join(written)}


def arguments_text(arguments: Any) -> str:
    """A tool call's arguments as indented JSON; a text that is no JSON as it is."""
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return encodable(arguments)
    if arguments is None:
        return ""
    return encodable(orjson.dumps(arguments, option=orjson.OPT_INDENT_2, default=str).decode())


def _turn(message: Mapping[str, Any], text: str) -> dict[str, Any]:
    role = str(message.get("role", "context"))
    said = spoken(message, text)
    unclosed = f"{THINKING_UNCLOSED}: the thinking was opened and not closed"
    return {
        "role": role if role in ("system", "user", "assistant", "tool") else "context",
        "start": 0,
        "stop": 0,
        "n_tokens": None,
        "n_sampled": 0,
        "content": said.content,
        "thinking": said.thinking,
        "name": encodable(str(message["name"])) if message.get("name") else None,
        "answers": None,
        "versions": [],
        "warnings": [] if said.closed else [unclosed],
        "tool_calls": [_call(call) for call in message.get("tool_calls") or () if isinstance(call, Mapping)],
    }


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    inner = call.get("function")
    function = inner if isinstance(inner, Mapping) else call
    return {
        "id": encodable(str(call.get("id") or "")),
        "name": encodable(str(function.get("name") or "")),
        "parsed": bool(function.get("name")),
        "arguments": arguments_text(function.get("arguments")),
        "raw": encodable(str(function)),
    }


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(
            text if isinstance(text, str) else orjson.dumps(raw, default=str).decode()
            for text, raw in zip(parts, content, strict=True)
        )
    return orjson.dumps(content, default=str).decode()
