"""A stored trace of any tool -> what the index keeps of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from rollout_traces.store.source import StoredTrace

PREVIEW = 160
"""Characters kept of the first user message and of the last assistant message."""
TEXT_LIMIT = 256
"""Characters kept of a text in the metadata; the trace itself has it whole."""
MAX_DEPTH = 3
"""Nested metadata is flattened this deep, names joined by `/`."""

RENAMED = {
    "group_id": "group",
    "model_version": "version_max",
    "prompt_tokens": "n_prompt",
    "completion_tokens": "n_sampled",
    "rewards/": "component/",
    "reward_components/": "component/",
}
"""Other tools' names for what has a name here; a trailing slash stands for all names below it."""

SIGNS = "{}[]()<>=+*/\\_^$#@|&%~`"
"""Signs that the index keeps as words of their own; other marks only separate words."""

PIECE = 512
"""Characters looked at together for CJK; most pieces of most texts are plain ASCII."""

_HAN = re.compile(
    "([\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003134f])"
)
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Reading:
    """What the index keeps of one trace.

    Attributes:
        split: the split it belongs to; the logged key where a tool has no splits.
        step: the trainer's step.
        kind: `rollout`, `digest`, or `other` for what other tools logged.
        fields: further scalars by name; lists of names as `|a|b|`.
        prompt: first words of the first user message.
        reply: first words of the last assistant message.
        n_messages: messages in the conversation.
        text: the conversation's text, for the search index.
    """

    split: str
    step: int
    kind: str
    fields: Mapping[str, Any]
    prompt: str
    reply: str
    n_messages: int
    text: str


def read_trace(stored: StoredTrace) -> Reading:
    """Reads one trace, ours or another tool's.

    Args:
        stored: the row.

    Returns:
        What the index keeps; damaged JSON is read as an empty conversation with the field `unreadable`.
    """
    messages, damaged_messages = _load(stored.messages, list)
    metadata, damaged_metadata = _load(stored.metadata, dict)
    fields = dict(flatten(metadata))
    if damaged_messages or damaged_metadata:
        fields["unreadable"] = 1
    kind = fields.pop("kind", None)
    ours = kind in ("rollout", "digest") and "schema" in fields
    if not ours:
        fields = _renamed(fields)
    fields = _numbers(fields)
    split, step = fields.pop("split", None), fields.pop("step", None)
    spoken = [message for message in messages if isinstance(message, dict)]
    return Reading(
        split=split if isinstance(split, str) else _split_of(stored.key),
        step=step if isinstance(step, int) else stored.step,
        kind=str(kind) if ours else "other",
        fields=fields,
        prompt=_preview(next((m for m in spoken if m.get("role") == "user"), None)),
        reply=_preview(next((m for m in reversed(spoken) if m.get("role") == "assistant"), None)),
        n_messages=len(messages),
        text="\n".join(text for message in spoken for text in message_texts(message)),
    )


def conversation_text(messages: str | bytes) -> str:
    """The text that search looks through, of a conversation as JSON."""
    loaded, _ = _load(messages, list)
    return "\n".join(
        text for message in loaded if isinstance(message, dict) for text in message_texts(message)
    )


def message_texts(message: Mapping[str, Any]) -> Iterator[str]:
    """The texts of one message: content, reasoning, names and arguments of its tool calls."""
    yield from _texts(message.get("content"))
    yield from _texts(message.get("reasoning_content"))
    for call in _items(message.get("tool_calls")):
        given = call.get("function")
        function = given if isinstance(given, Mapping) else call
        yield from _texts(function.get("name"))
        arguments = function.get("arguments")
        yield from _texts(orjson.dumps(arguments).decode() if isinstance(arguments, dict) else arguments)


def spaced(text: str) -> str:
    """Text with every CJK character and every sign of code standing alone, a token each."""
    for sign in SIGNS:
        if sign in text:
            text = text.replace(sign, f" {sign} ")
    if text.isascii():
        return text
    pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
    return "".join(piece if piece.isascii() else _HAN.sub(r" \1 ", piece) for piece in pieces)


def flatten(metadata: Mapping[str, Any], prefix: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Scalars of nested metadata by `/`-joined name; lists of texts as `|a|b|`."""
    for key, value in metadata.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if depth < MAX_DEPTH:
                yield from flatten(value, f"{name}/", depth + 1)
        elif isinstance(value, list):
            if all(isinstance(item, str) for item in value):
                yield name, Tags.of(value[:64])
        elif value is not None:
            scalar = _scalar(value)
            if scalar is not None:
                yield name, scalar


class Tags(str):
    """A list of names as one text, `|a|b|`, that `has` looks into."""

    @classmethod
    def of(cls, names: Sequence[str]) -> Tags:
        """Joins names."""
        return cls("|" + "".join(f"{name.replace('|', '/')}|" for name in names))


def _scalar(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else float(value)
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if value in ("NaN", ""):
        return None
    if value in ("Infinity", "-Infinity"):
        return float(value)
    return str(value)[:TEXT_LIMIT]


def _renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for name, value in fields.items():
        prefix, slash, rest = name.partition("/")
        new = RENAMED.get(name) or (RENAMED[prefix + slash] + rest if prefix + slash in RENAMED else name)
        renamed[name if new in fields else new] = value
    return renamed


@cache
def _numeric_names() -> frozenset[str]:
    from rollout_traces.ledger.columns import COLUMNS

    return frozenset(column.name for column in COLUMNS if column.kind in ("float", "int"))


def _numbers(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, where what is a number everywhere else is one here: a text in place of it moves to `name/text`."""
    numeric = _numeric_names()
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if not isinstance(value, str) or (name not in numeric and not name.startswith("component/")):
            found[name] = value
            continue
        try:
            number = float(value)
        except ValueError:
            found[f"{name}/text"] = value
            continue
        if math.isfinite(number):
            found[name] = number
    return found


def _split_of(key: str) -> str:
    return key.removesuffix("/trajectories").removesuffix("/steps")


def _preview(message: Mapping[str, Any] | None) -> str:
    if message is None:
        return ""
    text = next(message_texts(message), "")
    return _SPACE.sub(" ", text[: PREVIEW * 4]).strip()[:PREVIEW]


def _load(text: str | bytes, kind: type) -> tuple[Any, bool]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return kind(), True
    return (value, False) if isinstance(value, kind) else (kind(), True)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list):
        for part in _items(value):
            yield from _texts(part.get("text"))


def _items(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
