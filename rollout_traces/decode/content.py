"""The parts of a turn that a person reads: content, thinking, tool calls, the tool's result."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rollout_traces.decode.detokenizer import char_positions
from rollout_traces.decode.grammars import (
    NO_SCHEMAS,
    Grammar,
    ParsedBody,
    parse_assistant,
    parse_tool_definitions,
)
from rollout_traces.decode.markers import TemplateMarkers
from rollout_traces.decode.spans import Span
from rollout_traces.model.text import encodable
from rollout_traces.model.transcript import THINKING_UNCLOSED, ToolCall

_JSON = json.JSONDecoder()
_BARE_RESULT = re.compile(
    r'\{"\w+": (?P<text>.*?)(?:, "(?:call_id|id|tool_call_id)": "(?P<id>[^"]*)")?\}', re.DOTALL
)
"""A result in a JSON object whose text was not encoded, as Mistral Nemo's template writes it."""


class Body(NamedTuple):
    """The readable part of a turn; see the fields of `Turn`."""

    content: str
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reader:
    """Reads bodies in one dialect.

    Attributes:
        grammars: what is looked for in assistant turns. Thinking that none of them reads is cut out at
            the markers that the probe saw.
    """

    dialect: TemplateMarkers
    grammars: tuple[Grammar, ...]
    _leads: tuple[bytes, ...] = field(init=False, default=())
    _thinking: tuple[str, str] = field(init=False, default=("", ""))

    def __post_init__(self) -> None:
        object.__setattr__(self, "_leads", tuple(lead.encode() for lead in self.dialect.leads))
        opened, between = self.dialect.thinking
        if not opened.strip() or not between.strip():
            return
        opener = next((o.text for o in self.dialect.openers if o.role == "assistant"), "")
        parsed = parse_assistant(f"{opened}why{between}what", self.grammars, prefix=opener)
        if (parsed.thinking, parsed.content) != ("why", "what"):
            object.__setattr__(self, "_thinking", (opened, between))

    def read(
        self,
        span: Span,
        index: int,
        data: bytes,
        starts: np.ndarray,
        schemas: Mapping[str, Mapping[str, Any]] = NO_SCHEMAS,
    ) -> Body:
        """Reads one turn's body.

        Args:
            index: its position among the turns.
            data: the row's bytes.
            starts: int64 [n + 1] byte positions of the row's tokens.
            schemas: the known tools' parameters by tool name, for arguments that are written without types.
        """
        if span.role == "assistant":
            return self._read_assistant(span, index, data, starts, schemas)
        text = data[span.first_byte : span.last_byte].decode("utf-8", "replace")
        if span.role == "tool":
            return self._read_result(text, span)
        before, after = self.dialect.tools_preamble
        if span.role == "user" and before and text.startswith(before):
            text = _after_definitions(text, len(before), after)
        return Body(text)

    def definitions(self, spans: Sequence[Span], data: bytes) -> tuple[Mapping[str, Any], ...]:
        """Tool definitions that the system turns spell out, or the first user turn where those stand there.

        Args:
            spans: the row's turns.
            data: the row's bytes.
        """
        found: list[Mapping[str, Any]] = []
        in_user = bool(self.dialect.tools_preamble[0])
        for span in spans:
            text = data[span.first_byte : span.last_byte]
            if span.role == "system" or (in_user and span.role == "user"):
                found.extend(_definitions(text) if b'"name"' in text else ())
            if span.role == "user":
                break
        return tuple(found)

    def _read_result(self, text: str, span: Span) -> Body:
        call_id = span.call_id
        if self.dialect.tool_quoted or self.dialect.tool_field:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = None
            if self.dialect.tool_quoted and isinstance(value, str):
                text = encodable(value)
            elif self.dialect.tool_field and isinstance(value, dict):
                inner = value.get(self.dialect.tool_field, text)
                text = encodable(inner) if isinstance(inner, str) else json.dumps(inner)
                call_id = str(value.get("call_id") or value.get("id") or call_id)
            elif self.dialect.tool_field and (match := _BARE_RESULT.fullmatch(text)):
                text, call_id = match["text"], match["id"] or call_id
        return Body(text, call_id=call_id, name=span.name)

    def _read_assistant(
        self,
        span: Span,
        index: int,
        data: bytes,
        starts: np.ndarray,
        schemas: Mapping[str, Mapping[str, Any]],
    ) -> Body:
        first = span.first_byte
        for lead in self._leads:
            if data.startswith(lead, first, span.last_byte):
                first += len(lead)
                break
        text = data[first : span.last_byte].decode("utf-8", "replace")
        prefix = data[int(starts[span.start]) : first].decode("utf-8", "replace")
        parsed = parse_assistant(text, self.grammars, prefix=prefix, schemas=schemas)
        content, thinking = parsed.content, parsed.thinking
        opened, between = self._thinking
        if thinking is None and opened and text.startswith(opened) and between in text:
            thought, _, content = text.removeprefix(opened).partition(between)
            thinking = thought.strip() or None
        warnings = parsed.warnings
        if not parsed.thinking_closed:
            warnings = (*warnings, f"{THINKING_UNCLOSED}: the thinking was opened and not closed")
        calls = _calls(parsed, index, data, first, starts, span) if parsed.calls else ()
        return Body(content, thinking, calls, warnings=warnings)


@lru_cache
def _definitions(text: bytes) -> tuple[Mapping[str, Any], ...]:
    """Cached, because the rollouts of a group share their prompt."""
    return parse_tool_definitions(text.decode("utf-8", "replace"))


def _after_definitions(text: str, at: int, separator: str) -> str:
    """The user's own words after tool definitions in JSON; the whole text when those do not parse."""
    question = text
    while text.startswith("{", at):
        try:
            _, at = _JSON.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        if text.startswith(separator, at):
            at += len(separator)
            question = text[at:]
    return question


def _calls(
    parsed: ParsedBody, index: int, data: bytes, first: int, starts: np.ndarray, span: Span
) -> tuple[ToolCall, ...]:
    """The parsed calls with their token ranges; `first` is the byte where the parsed text begins."""
    chars = np.array([(call.start, call.stop) for call in parsed.calls], np.int64)
    body = data[first : span.last_byte]
    bytes_2 = (chars if body.isascii() else char_positions(body)[chars]) + first
    first_tokens = starts.searchsorted(bytes_2[:, 0], "right") - 1
    stop_tokens = starts.searchsorted(bytes_2[:, 1], "left")
    return tuple(
        ToolCall(
            name=call.name,
            arguments=call.arguments,
            raw=call.raw,
            id=call.id or f"call_{index}_{k}",
            start=min(max(start, span.start), span.stop),
            stop=min(max(stop, span.start), span.stop),
        )
        for k, (call, start, stop) in enumerate(
            zip(parsed.calls, first_tokens.tolist(), stop_tokens.tolist(), strict=True)
        )
    )


def pair_results(bodies: Sequence[tuple[str, Body]]) -> list[tuple[str | None, str | None]]:
    """Pairs tool results with calls, by id where one is written, else by order.

    Args:
        bodies: `(role, body)` of every turn, in order.

    Returns:
        `(tool_call_id, tool name)` for every turn; Nones where it is no tool turn or has no call.
    """
    pairs: list[tuple[str | None, str | None]] = []
    waiting = _WaitingCalls(())
    for role, body in bodies:
        if role == "assistant" and body.tool_calls:
            waiting = _WaitingCalls(body.tool_calls)
        if role != "tool":
            pairs.append((None, None))
            continue
        call = waiting.take(body)
        pairs.append(
            (body.call_id or (call.id if call else None), body.name or (call.name or None if call else None))
        )
    return pairs


class _WaitingCalls:
    """The calls of an assistant turn that have no result yet; each is handed out once."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self._calls = dict(enumerate(calls))
        self._in_order = deque(self._calls)
        self._by_id: dict[str, deque[int]] = {}
        self._by_name: dict[str, deque[int]] = {}
        for number, call in self._calls.items():
            self._by_id.setdefault(call.id, deque()).append(number)
            self._by_name.setdefault(call.name, deque()).append(number)

    def take(self, result: Body) -> ToolCall | None:
        """The call that a result answers: the one of its id; without an id the next of its name, else the next."""
        if result.call_id:
            return self._next(self._by_id.get(result.call_id))
        named = self._next(self._by_name.get(result.name)) if result.name else None
        return named or self._next(self._in_order)

    def _next(self, numbers: deque[int] | None) -> ToolCall | None:
        while numbers:
            call = self._calls.pop(numbers.popleft(), None)
            if call is not None:
                return call
        return None
