"""Conversations as dumps have them, made into OpenAI-style messages.

Text that still has its template's special tokens says who wrote what; text without them does not, and is
never taken apart by guessing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

ROLES = ("system", "user", "assistant", "tool")
_ROLE_NAMES = {
    "human": "user",
    "gpt": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "agent": "assistant",
    "chatbot": "assistant",
    "developer": "system",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
    "environment": "tool",
    "tool_response": "tool",
}
_MARKED = (
    (re.compile(r"<\|im_start\|>([\w-]+)\n?"), "<|im_end|>"),
    (re.compile(r"<\|start_header_id\|>([\w-]+)<\|end_header_id\|>\n*"), "<|eot_id|>"),
    (re.compile(r"<start_of_turn>([\w-]+)\n?"), "<end_of_turn>"),
    (re.compile(r"<\|(system|user|assistant|tool|observation)\|>\n?"), "<|end|>"),
)
"""Openers that name the role in text, and what closes a turn; each is one special token of its family."""
_TOOL_RESPONSE = re.compile(r"^\s*<tool_response>\n?(.*?)\n?</tool_response>\s*$", re.DOTALL)


def messages_of(given: Any) -> list[dict[str, Any]] | None:
    """OpenAI-style messages of what a dump calls a conversation.

    Args:
        given: messages with `role` and `content` (or `from` and `value`), a text taken as one user message,
            or nothing.

    Returns:
        The messages, content as text; None where it is no conversation.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if isinstance(given, Mapping):
        given = [given]
    if not isinstance(given, Sequence) or not given:
        return None
    found = [_message(item) for item in given if isinstance(item, Mapping)]
    return found if found and len(found) == len(given) else None


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    role = str(item.get("role", item.get("from", "user"))).lower()
    message: dict[str, Any] = {
        "role": role if role in ROLES else _ROLE_NAMES.get(role, "user"),
        "content": text_of(item.get("content", item.get("value"))),
    }
    if message["role"] == "user" and role not in ("user", "human"):
        message["name"] = role
    for key in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(item.get(key), str) and item[key]:
            message["reasoning_content"] = item[key]
            break
    calls = item.get("tool_calls")
    if isinstance(calls, Sequence) and not isinstance(calls, str) and calls:
        message["tool_calls"] = [_call(call, n) for n, call in enumerate(calls) if isinstance(call, Mapping)]
    for key in ("tool_call_id", "name"):
        if isinstance(item.get(key), str):
            message[key] = item[key]
    return message


def _call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    function = call.get("function")
    inner = function if isinstance(function, Mapping) else call
    name = inner.get("name", function if isinstance(function, str) else inner.get("function_name", ""))
    arguments = inner.get("arguments", inner.get("args", inner.get("parameters", {})))
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments, default=str).decode()
    identity = call.get("id", call.get("tool_call_id", call.get("call_id")))
    return {
        "id": str(identity) if identity else f"call_{number}",
        "type": "function",
        "function": {"name": str(name), "arguments": arguments},
    }


def text_of(content: Any) -> str:
    """A message's content as text: parts joined, pictures and the like named in brackets."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        return str(content)
    return "".join(_part(part) for part in content)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return str(part)
    kind = str(part.get("type", "text"))
    for key in ("text", "reasoning", "refusal"):
        if isinstance(part.get(key), str):
            return part[key]
    if kind == "text" and isinstance(part.get("content"), str):
        return part["content"]
    return f"[{kind.removesuffix('_url')}]"


def messages_of_marked_text(prompt: str | None, reply: str | None) -> list[dict[str, Any]] | None:
    """Messages of text that kept its template's special tokens.

    Args:
        prompt: what the model was given.
        reply: what came after it, of the model and its environment.

    Returns:
        The messages; None where the text has no such markers.
    """
    if not prompt:
        return None
    for opener, closer in _MARKED:
        if opener.search(prompt):
            return _take_apart(prompt + (reply or ""), opener, closer)
    return None


def _take_apart(text: str, opener: re.Pattern[str], closer: str) -> list[dict[str, Any]]:
    starts = list(opener.finditer(text))
    messages = []
    for match, following in zip(starts, [*starts[1:], None], strict=True):
        body = text[match.end() : len(text) if following is None else following.start()]
        content, _, _ = body.partition(closer)
        role = match[1].lower()
        role = role if role in ROLES else _ROLE_NAMES.get(role, "user")
        inner = _TOOL_RESPONSE.match(content) if role == "user" else None
        if inner:
            role, content = "tool", inner[1]
        messages.append({"role": role, "content": content})
    if messages and messages[-1] == {"role": "assistant", "content": ""}:
        messages.pop()
    return messages
