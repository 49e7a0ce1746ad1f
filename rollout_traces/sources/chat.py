"""Conversations as dumps have them, made into OpenAI-style messages.

Text that still has its template's special tokens says who wrote what; text without them does not, and is
never taken apart by guessing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rollout_traces.model.plain_values import from_json
from rollout_traces.model.text import part_text, text_of, words

Record = Mapping[str, Any]
"""A JSON object."""
ROLES = ("system", "user", "assistant", "tool")
_ROLE_NAMES = {
    "human": "user",
    **dict.fromkeys(words("gpt ai model agent chatbot function_call tool_call"), "assistant"),
    "developer": "system",
    **dict.fromkeys(
        words("function observation ipython environment tool_response tool_result toolresult"), "tool"
    ),
}
_CALLS = ("tool_use", "server_tool_use", "tool_call", "toolcall", "function_call")
_RESULTS = ("tool_result", "function_call_output")
_THINKING = ("thinking", "reasoning", "redacted_thinking")
_MEDIA = words("image image_url input_image audio input_audio video file input_file document")
"""Kinds of parts that no text shows: they are named in brackets."""
_MARKED = (
    (re.compile(r"<\|im_start\|>([\w-]+)\n?"), "<|im_end|>"),
    (re.compile(r"<\|start_header_id\|>([\w-]+)<\|end_header_id\|>\n*"), "<|eot_id|>"),
    (re.compile(r"<start_of_turn>([\w-]+)\n?"), "<end_of_turn>"),
    (re.compile(r"<\|(system|user|assistant|tool|observation)\|>\n?"), "<|end|>"),
)
"""Openers that name the role in text, and what closes a turn; each is one special token of its family."""
_TOOL_RESPONSE = re.compile(r"^\s*<tool_response>\n?(.*?)\n?</tool_response>\s*$", re.DOTALL)


def messages_of(given: Any, unread: Counter[str] | None = None) -> list[dict[str, Any]] | None:
    """OpenAI-style messages of what a dump calls a conversation.

    Args:
        given: messages with `role` and `content` (or `from` and `value`), their content text or a list of parts as
            OpenAI, Anthropic, Inspect and Pi have them; items of OpenAI's Responses; a text taken as one user message;
            or nothing.
        unread: counts the kinds of parts that are not understood, which are named in brackets.

    Returns:
        The messages, content as text; None where it is no conversation.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if isinstance(given, Mapping):
        given = [given]
    if not isinstance(given, Sequence) or not given or not all(isinstance(item, Mapping) for item in given):
        return None
    found: list[dict[str, Any]] = []
    is_thinking = False
    for item in given:
        is_item = "role" not in item and "from" not in item and "type" in item
        more = [_of_item(item, unread)] if is_item else _of_message(item, unread)
        is_of_last = is_thinking if not is_item else item["type"] not in _RESULTS
        if found and is_of_last and {found[-1]["role"], more[0]["role"]} == {"assistant"}:
            _extend(found[-1], more[0])
            more = more[1:]
        found += more
        is_thinking = is_item and item["type"] in _THINKING
    return found


def _of_message(item: Record, unread: Counter[str] | None) -> list[dict[str, Any]]:
    """A message; results of tools among a user's parts are messages before it."""
    role = str(item.get("role", item.get("from", "user"))).lower()
    known = role if role in ROLES else _ROLE_NAMES.get(role, "user")
    parts = _Parts(item.get("content", item.get("value")), unread)
    message: dict[str, Any] = {"role": known, "content": "".join(parts.texts)}
    if known == "user" and role not in ("user", "human"):
        message["name"] = role
    thinking = next(
        (item[k] for k in ("reasoning_content", "reasoning", "thinking") if isinstance(item.get(k), str)), ""
    )
    if thinking or parts.thinking:
        message["reasoning_content"] = thinking or "\n".join(parts.thinking)
    calls = [*_listed(item.get("tool_calls")), *_listed(item.get("function_call")), *parts.calls]
    if role in ("function_call", "tool_call"):
        calls, message["content"] = [_call_in_text(message["content"])], ""
    if calls:
        message["tool_calls"] = [_call(call, n) for n, call in enumerate(calls)]
    for key, ours in (("tool_call_id", "tool_call_id"), ("toolCallId", "tool_call_id"), ("name", "name")):
        if isinstance(item.get(key), str):
            message[ours] = item[key]
    if known == "tool" and _says_failed(item):
        message["is_error"] = True
    results = [_result(part) for part in parts.results]
    return results if results and not message["content"] and not calls else [*results, message]


def _of_item(item: Record, unread: Counter[str] | None) -> dict[str, Any]:
    """An item of OpenAI's Responses that is no message."""
    if item["type"] in _RESULTS:
        return _result(item)
    parts = _Parts([item], unread)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(parts.texts)}
    if parts.thinking:
        message["reasoning_content"] = "\n".join(parts.thinking)
    if parts.calls:
        message["tool_calls"] = [_call(call, n) for n, call in enumerate(parts.calls)]
    return message


def _extend(message: dict[str, Any], more: Record) -> None:
    """Adds what an item holds to the assistant's message before it."""
    message["content"] += more["content"]
    if "reasoning_content" in more:
        message["reasoning_content"] = message.get("reasoning_content", "") + more["reasoning_content"]
    if "tool_calls" in more:
        message["tool_calls"] = [*message.get("tool_calls", ()), *more["tool_calls"]]


class _Parts:
    """A message's content, sorted: texts, thinking, calls of tools and their results."""

    def __init__(self, content: Any, unread: Counter[str] | None) -> None:
        self.texts: list[str] = []
        self.thinking: list[str] = []
        self.calls: list[Record] = []
        self.results: list[Record] = []
        if isinstance(content, (str, Mapping)):
            content = [content]
        for part in content if isinstance(content, Sequence) else [] if content is None else [str(content)]:
            if not isinstance(part, Mapping):
                self.texts.append(str(part))
                continue
            kind = str(part.get("type", "text")).lower()
            if kind in _CALLS:
                self.calls.append(part)
            elif kind in _RESULTS:
                self.results.append(part)
            elif kind in _THINKING:
                self.thinking.append(_thought(part))
            else:
                self.texts.append(part_text(part))
                if (
                    unread is not None
                    and self.texts[-1] == f"[{kind.removesuffix('_url')}]"
                    and kind not in _MEDIA
                ):
                    unread[kind] += 1


def _thought(part: Record) -> str:
    for key in ("thinking", "reasoning", "text"):
        if isinstance(part.get(key), str):
            return part[key]
    summary = part.get("summary") or part.get("content")
    return text_of(summary) if summary else "[redacted]"


def _result(part: Record) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "tool", "content": text_of(part.get("content", part.get("output")))}
    if _says_failed(part):
        message["is_error"] = True
    identity = part.get("tool_use_id", part.get("call_id"))
    return message if identity is None else {**message, "tool_call_id": str(identity)}


def _says_failed(result: Record) -> bool:
    """Tells whether a tool's result says beside its text that the call failed, as Anthropic, Pi and Inspect do."""
    said = result.get("is_error", result.get("isError"))
    return said in (True, "true") or isinstance(result.get("error"), Mapping)


def _call_in_text(text: str) -> Record:
    """A call that is written as JSON text."""
    value = from_json(text)
    return value if isinstance(value, Mapping) else {"name": "", "arguments": text}


def _listed(calls: Any) -> list[Record]:
    given = [calls] if isinstance(calls, Mapping) else calls if isinstance(calls, Sequence) else []
    return [call for call in given if isinstance(call, Mapping)]


def _call(call: Record, number: int) -> dict[str, Any]:
    function = call.get("function")
    inner = function if isinstance(function, Mapping) else call
    name = inner.get("name", function if isinstance(function, str) else inner.get("function_name", ""))
    arguments: Any = next((inner[k] for k in ("arguments", "args", "parameters", "input") if k in inner), {})
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments, default=str).decode()
    identity = call.get("call_id", call.get("id", call.get("tool_call_id")))
    return {
        "id": str(identity) if identity else f"call_{number}",
        "type": "function",
        "function": {"name": str(name), "arguments": arguments},
    }


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
    if messages[-1] == {"role": "assistant", "content": ""}:
        messages.pop()
    return messages
