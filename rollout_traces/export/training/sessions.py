"""Sessions that the Hugging Face Hub's trace viewer shows: its Session Trace Simple Format, a file a rollout."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from rollout_traces.export.training.samples import TrainingSample

HARNESS = "rollout-traces"
"""The viewer draws a harness that it does not know without an icon of its own."""


def session_name(sample: TrainingSample) -> str:
    """The name of a rollout's file: safe letters alone."""
    return hashlib.blake2b(sample.uid.encode(), digest_size=12).hexdigest() + ".jsonl"


def session_lines(sample: TrainingSample) -> Iterator[bytes]:
    """A header and a line a message, each with its end of line.

    Args:
        sample: the rollout, its thinking in `reasoning_content`.
    """
    step, reward = sample.about["step"], sample.reward
    name = f"{sample.about['run']}, step {step}" + ("" if reward is None else f", reward {reward:.4g}")
    header = {"type": "session", "harness": HARNESS, "id": sample.uid, "name": name, "reward": reward}
    yield orjson.dumps({**header, **sample.about}) + b"\n"
    for message in (*sample.prompt, *sample.completion):
        yield orjson.dumps({"type": "message", "message": _message(message)}) + b"\n"


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
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
