"""Encodes conversations with a tokenizer's own template, decodes the ids, and compares turn by turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollout_traces.decode import TranscriptDecoder
from rollout_traces.model.transcript import Transcript, Turn
from tests.decode.conversations import Messages, tools_of

Expected = tuple[str, str, tuple[tuple[str, dict[str, Any]], ...]]
"""Role, content, and `(tool name, arguments)` of each call."""


@dataclass
class Score:
    """How many turns came back equal.

    Attributes:
        turns: turns compared.
        equal: turns whose role, content, and calls equal what the template rendered.
        calls: tool calls compared.
        calls_equal: calls whose name and arguments are equal.
        misses: a few turns that differ, as text.
    """

    turns: int = 0
    equal: int = 0
    calls: int = 0
    calls_equal: int = 0
    misses: list[str] = field(default_factory=list)

    def add(self, expected: Expected, turn: Turn | None) -> None:
        """Compares one turn."""
        got = None if turn is None else read(turn)
        self.turns += 1
        self.equal += got == expected
        self.calls += len(expected[2])
        if got is not None:
            self.calls_equal += sum(a == b for a, b in zip(expected[2], got[2], strict=False))
        if got != expected and len(self.misses) < 5:
            self.misses.append(f"expected {expected!r}\n     got {got!r}")


@dataclass(frozen=True)
class Encoded:
    """A conversation in tokens.

    Attributes:
        ids: its token ids.
        loss_mask: True on the assistant's tokens, end marker included.
        expected: what its turns should read.
    """

    ids: np.ndarray
    loss_mask: np.ndarray
    expected: list[Expected]


def read(turn: Turn) -> Expected:
    """The compared part of a turn."""
    return turn.role, turn.content, tuple((call.name, dict(call.arguments or {})) for call in turn.tool_calls)


def expectation(message: dict[str, Any], *, lossy: Callable[[dict[str, Any]], str]) -> Expected:
    """What a message should read after rendering; `lossy` applies the template's documented losses."""
    calls = tuple(
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    return message["role"], lossy(message), calls


def content_qwen2_5(message: dict[str, Any]) -> str:
    """Qwen2.5 writes contents as they are; a line break beside a call is scaffolding."""
    text = message["content"] or ""
    return text.rstrip("\r\n") if message.get("tool_calls") else text


def content_qwen3(message: dict[str, Any]) -> str:
    """Qwen3 drops line breaks around an assistant's content."""
    text = message["content"] or ""
    if message["role"] != "assistant":
        return text
    text = text.lstrip("\n")
    return text.rstrip("\r\n") if message.get("tool_calls") else text


def content_llama3_2(message: dict[str, Any]) -> str:
    """Llama 3.2 trims contents and drops an assistant's content beside a call."""
    if message.get("tool_calls"):
        return ""
    text = message["content"] or ""
    return text if message["role"] == "tool" else text.strip()


def content_tekken(message: dict[str, Any]) -> str:
    """mistral-common allows no content beside a call, strips the end of assistant contents, and writes
    results that are JSON again in its own spacing (an empty one as `{}`)."""
    text = "" if message.get("tool_calls") else message["content"] or ""
    if message["role"] == "tool":
        text = text or "{}"
        try:
            value = json.loads(text)
        except ValueError:
            return text
        return text if isinstance(value, str) else json.dumps(value)
    return text.rstrip() if message["role"] == "assistant" else text


RULES = {
    "qwen2_5": content_qwen2_5,
    "qwen3": content_qwen3,
    "llama3_2": content_llama3_2,
    "tekken": content_tekken,
}
"""What each template loses, by tokenizer."""


def encode(name: str, tokenizer: Any, messages: Messages) -> Encoded:
    """Encodes a conversation as training does: prompt and answers tokenized piece by piece."""
    messages = [dict(message) for message in messages]
    lossy = RULES[name]
    expected = [expectation(message, lossy=lossy) for message in messages]
    if name == "tekken":
        return _encode_tekken(tokenizer, messages, expected)
    tools = tools_of(messages)
    rendered = _with_dict_arguments(messages)
    text = tokenizer.apply_chat_template(rendered, tools=tools or None, tokenize=False)
    ids = np.asarray(tokenizer.encode(text, add_special_tokens=False), np.int64)
    return Encoded(ids, _assistant_mask(name, tokenizer, ids), expected)


def _with_dict_arguments(messages: Messages) -> Messages:
    copies = deepcopy(messages)
    for message in copies:
        message["content"] = message["content"] or ""
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return copies


def _assistant_mask(name: str, tokenizer: Any, ids: np.ndarray) -> np.ndarray:
    """True from after the assistant's opener to its end marker, by id sequences alone."""
    opener, end = {
        "qwen2_5": ("<|im_start|>assistant\n", "<|im_end|>"),
        "qwen3": ("<|im_start|>assistant\n", "<|im_end|>"),
        "llama3_2": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    }[name]
    opening = tokenizer.encode(opener, add_special_tokens=False)
    end_id = tokenizer.convert_tokens_to_ids(end)
    mask = np.zeros(len(ids), bool)
    for at in np.flatnonzero(ids == opening[0]).tolist():
        if ids[at : at + len(opening)].tolist() == opening:
            first = at + len(opening)
            stop = first + int(np.argmax(ids[first:] == end_id)) + 1
            mask[first:stop] = True
    return mask


def _encode_tekken(tokenizer: Any, messages: Messages, expected: list[Expected]) -> Encoded:
    """Mistral puts the system text and the tool definitions before the last user turn."""
    copies = deepcopy(messages)
    numbers: dict[str, str] = {}
    for message in copies:
        if message.get("tool_calls"):
            message["content"] = None
        for call in message.get("tool_calls") or ():
            call["id"] = numbers.setdefault(call["id"], f"{len(numbers):09d}")
        if message["role"] == "tool":
            message["tool_call_id"] = numbers.setdefault(message["tool_call_id"], f"{len(numbers):09d}")
    ids = tokenizer.apply_chat_template(
        copies, return_dict=False, continue_final_message=copies[-1]["role"] == "assistant"
    )
    ids = np.asarray(ids, np.int64)
    system = expected[0][1] if expected[0][0] == "system" else None
    turns = expected[1:] if system is not None else list(expected)
    last_user = max(i for i, turn in enumerate(turns) if turn[0] == "user")
    if system is not None:
        role, content, calls = turns[last_user]
        turns[last_user] = (role, f"{system}\n\n{content}", calls)
    ends = [tokenizer.convert_tokens_to_ids(t) for t in ("[/INST]", "[/TOOL_RESULTS]")]
    mask = np.zeros(len(ids), bool)
    sampling = False
    for i, token in enumerate(ids.tolist()):
        mask[i] = sampling
        sampling = (sampling or token in ends) and token != tokenizer.eos_token_id
    return Encoded(ids, mask, turns)


def score(name: str, tokenizer: Any, conversations: Sequence[Messages]) -> Score:
    """Decodes every conversation and counts the turns that come back equal."""
    decoder = TranscriptDecoder(tokenizer)
    total = Score()
    for messages in conversations:
        encoded = encode(name, tokenizer, messages)
        transcript = decoder.decode(encoded.ids, loss_mask=encoded.loss_mask)
        compare(total, encoded.expected, transcript)
    return total


def compare(total: Score, expected: Sequence[Expected], transcript: Transcript) -> None:
    """Adds one transcript; a system turn that only the template wrote is left out."""
    turns = list(transcript.turns)
    if turns and turns[0].role == "system" and expected[0][0] != "system":
        turns = turns[1:]
    for i in range(max(len(turns), len(expected))):
        turn = turns[i] if i < len(turns) else None
        if i >= len(expected):
            total.turns += 1
            total.misses.append(f"extra turn {turn and read(turn)!r}")
        elif expected[i][0] == "system" and turn is not None and expected[i][1].strip() in turn.content:
            total.add(("system", turn.content, ()), turn)
        else:
            total.add(expected[i], turn)
