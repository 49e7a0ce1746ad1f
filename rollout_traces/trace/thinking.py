"""An assistant's thinking apart from what it says: of our traces as they were decoded, of others' out of their text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollout_traces.decode.align import text_of
from rollout_traces.decode.grammars import TYPED_FAMILIES, parse_assistant
from rollout_traces.model.text import encodable
from rollout_traces.trace.conversion import TraceRecord, read_transcript

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names under which tools keep an assistant's thinking beside its content; the first that holds text is taken."""


@dataclass(frozen=True)
class Spoken:
    """A message taken apart.

    Attributes:
        content: what it says.
        thinking: what its assistant thinks; None where nothing of it is there.
        closed: False where the thinking was opened in the text and not closed.
    """

    content: str
    thinking: str | None
    closed: bool


def spoken(message: Mapping[str, Any], text: str) -> Spoken:
    """Takes a message apart that another tool wrote.

    Args:
        message: the message.
        text: its content as text.
    """
    given = (message.get(name) for name in REASONING)
    beside = next((encodable(value) for value in given if isinstance(value, str) and value), None)
    if message.get("role") != "assistant":
        return Spoken(text, beside, closed=True)
    parsed = parse_assistant(text, TYPED_FAMILIES)  # which template wrote it is not known
    thinking = "\n\n".join(part for part in (beside, parsed.thinking) if part)
    return Spoken(parsed.content, thinking or None, parsed.thinking_closed)


def with_thinking_apart(record: TraceRecord) -> list[dict[str, Any]]:
    """The conversation of a trace, content as text and thinking in `reasoning_content`.

    Args:
        record: a trace of ours or of another tool.

    Raises:
        StoreError: its packed data is damaged or of a newer schema.
    """
    transcript = read_transcript(record)
    if transcript is None:
        return [_apart(message) for message in record.messages if isinstance(message, Mapping)]
    unthinking = replace(transcript, turns=tuple(replace(turn, thinking=None) for turn in transcript.turns))
    messages = unthinking.messages()
    for message, turn in zip(messages, transcript.turns, strict=True):
        if turn.thinking is not None:
            message["reasoning_content"] = turn.thinking
    return messages


def _apart(message: Mapping[str, Any]) -> dict[str, Any]:
    said = spoken(message, text_of(message.get("content")))
    rest = {name: value for name, value in message.items() if name not in REASONING}
    thought = {} if said.thinking is None else {"reasoning_content": said.thinking}
    return {**rest, "content": said.content, **thought}
