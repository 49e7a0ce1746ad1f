"""Rollouts as sessions that the Hugging Face Hub's trace viewer shows, a file each: Pi's, and the Hub's own simple one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from rollout_traces.export.training.samples import TrainingSample
from rollout_traces.model.text import IDENTITY_BYTES, short_hash

HARNESS = "rollout-traces"
"""The viewer draws a harness that it does not know without an icon of its own."""
VERSION = 3
"""Of Pi's sessions."""
_PI_ROLES = {"system": "developer", "tool": "toolResult"}


def session_name(sample: TrainingSample) -> str:
    """The name of a rollout's file: safe letters alone."""
    return short_hash(sample.uid, IDENTITY_BYTES).hex() + ".jsonl"


def pi_session(sample: TrainingSample) -> Iterator[dict[str, Any]]:
    """A session of the agent Pi, which the viewer knows: a header, and an entry a message, each naming the one before.

    Args:
        sample: the rollout, its thinking in `reasoning_content`.
    """
    yield {**_header(sample), "version": VERSION, "timestamp": sample.stored, "cwd": "/"}
    called: dict[str, str] = {}
    parent = None
    for number, message in enumerate((*sample.prompt, *sample.completion)):
        own = short_hash(f"{sample.uid} {number}").hex()
        entry = {"type": "message", "id": own, "parentId": parent, "timestamp": sample.stored}
        yield {**entry, "message": _pi_message(message, called)}
        parent = own


def simple_session(sample: TrainingSample) -> Iterator[dict[str, Any]]:
    """A session in the Hub's Session Trace Simple Format: a header, and a line a message.

    Args:
        sample: the rollout, its thinking in `reasoning_content`.
    """
    yield _header(sample)
    for message in (*sample.prompt, *sample.completion):
        yield {"type": "message", "message": _simple_message(message)}


SESSIONS: dict[str, Callable[[TrainingSample], Iterator[dict[str, Any]]]] = {
    "hub": pi_session,
    "hub-sts": simple_session,
}
"""Formats that are a file a rollout -> its lines."""


def _header(sample: TrainingSample) -> dict[str, Any]:
    step, reward = sample.about["step"], sample.reward
    name = f"{sample.about['run']}, step {step}" + ("" if reward is None else f", reward {reward:.4g}")
    header = {"type": "session", "harness": HARNESS, "id": sample.uid, "name": name, "reward": reward}
    return {**header, **sample.about}


def _pi_message(message: Mapping[str, Any], called: dict[str, str]) -> dict[str, Any]:
    """A message in blocks; what is called is noted, so that a result names its tool."""
    role = str(message["role"])
    blocks: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"]})
    if message["content"] or role != "assistant":
        blocks.append({"type": "text", "text": message["content"]})
    for at, call in enumerate(message.get("tool_calls") or ()):
        function, identity = call["function"], str(call.get("id") or f"call-{at}")
        called[identity] = str(function.get("name") or "tool")
        block = {"type": "toolCall", "id": identity, "name": called[identity]}
        given = function.get("arguments")
        named = given if isinstance(given, dict) else {} if given == "" else {"input": given}
        blocks.append({**block, "arguments": named})
    shown = {"role": _PI_ROLES.get(role, role), "content": blocks}
    if role != "tool":
        return shown
    identity = str(message.get("tool_call_id") or "")
    return {
        **shown,
        "toolCallId": identity,
        "toolName": called.get(identity, str(message.get("name") or "tool")),
        "isError": bool(message.get("is_error")),
    }


def _simple_message(message: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if message.get("reasoning_content"):
        shown["reasoningContent"] = message["reasoning_content"]
    if message.get("tool_calls"):
        shown["toolCalls"] = [_call(call, at) for at, call in enumerate(message["tool_calls"])]
    if message.get("tool_call_id"):
        shown["toolCallId"] = message["tool_call_id"]
    return shown


def _call(call: Mapping[str, Any], at: int) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {
        "id": call.get("id") or f"call-{at}",
        "function": {"name": function.get("name"), "arguments": text},
    }
