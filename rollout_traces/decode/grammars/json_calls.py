"""Calls written as JSON objects, alone or in a list, between markers: Hermes, and families that differ in nothing but these."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_traces.decode.grammars.grammar import (
    BetweenMarkers,
    Malformed,
    ParsedCall,
    Region,
    Scan,
    call_region,
    calls_region,
)
from rollout_traces.decode.grammars.literal import JsonError, json_end, loads, read_json, visible_name

NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters", "args")
ID_KEYS = ("id", "tool_call_id")

Call = tuple[str, dict[str, Any], str | None]
"""Name, arguments, id."""


@dataclass(frozen=True, eq=False)
class MarkedJson(BetweenMarkers):
    """A family that writes calls as JSON between two literal markers."""

    needs: tuple[str, ...]
    excludes: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads the JSON between the markers."""
        return read_marked_json(scan, at, at + len(self.opening), self.closing)


def call_of(value: Any) -> Call | str:
    """Name, arguments and id out of a decoded call object, or what is wrong with it."""
    if not isinstance(value, dict):
        return "the call is not a JSON object"
    inner = value.get("function")
    if isinstance(inner, dict):
        value = {**value, **inner}
    name = _first(value, NAME_KEYS)
    if name is None and isinstance(inner, str):
        name = inner
    if not isinstance(name, str) or not name:
        return "no tool name"
    given = next((key for key in ARGUMENT_KEYS if key in value), None)
    arguments = arguments_of(value[given]) if given else {}
    if isinstance(arguments, str):
        return arguments
    call_id = _first(value, ID_KEYS)
    return name, arguments, None if call_id is None else str(call_id)


def arguments_of(value: Any) -> dict[str, Any] | str:
    """The arguments as a dict, also when they are a JSON-encoded text or null; or what is wrong."""
    if isinstance(value, str) and value.strip():
        read = loads(value)
        if isinstance(read, JsonError):
            return f"arguments are a text that is not JSON: {read.reason}"
        value = read.value
    if value is None or value == "":
        return {}
    return value if isinstance(value, dict) else f"arguments are {_kind(value)}, not an object"


def read_named_call(
    scan: Scan,
    at: int,
    name: str,
    pos: int,
    start: int,
    closing: str = "",
    *,
    call_id: str | None = None,
    fence: re.Pattern[str] | None = None,
) -> Region | Malformed:
    """Reads the rest of a call whose name stands before it: its arguments as JSON, and the closing marker after them.

    Args:
        at: where the call begins.
        name: the tool's name.
        pos: where the JSON may begin.
        start: where to look for the closer of a malformed call.
        closing: literal closing marker, which the end of the text may have cut off; empty when the family
            writes none.
        call_id: the call's id.
        fence: what may stand before the closing marker.
    """
    read = read_json(scan, scan.skip_space(pos), closing)
    if isinstance(read, JsonError):
        return Malformed(read.why, start, name, closing)
    arguments = arguments_of(read.value)
    if isinstance(arguments, str):
        return Malformed(arguments, start, name, closing)
    stop = read.stop
    if closing:
        fenced = fence.match(scan.text, stop) if fence else None
        stop = scan.skip_space(fenced.end() if fenced else stop)
        if scan.text.startswith(closing, stop):
            stop += len(closing)
        elif stop < len(scan.text):
            return Malformed(f"text before {closing}", start, name, closing)
    return call_region(scan, at, stop, (name, arguments, call_id))


def read_marked_json(scan: Scan, at: int, start: int, closing: str) -> Region | Malformed:
    """Reads JSON objects, or lists of them, up to a closing marker.

    Args:
        at: where the opening marker stands.
        start: where the JSON may begin, after the opening marker.
        closing: literal closing marker; empty when the family writes none.

    Returns:
        The region with its calls, or the malformed call.
    """
    values: list[tuple[int, int, Any]] = []
    warnings: list[str] = []
    first = pos = scan.skip_space(start)
    while True:
        read = read_json(scan, pos, closing)
        if isinstance(read, JsonError):
            return Malformed(read.why, first, visible_name(scan, first), closing)
        values.append((pos, read.stop, read.value))
        warnings.extend(read.warnings)
        stop = scan.skip_space(read.stop)
        following = scan.skip_space(stop + 1) if scan.text[stop : stop + 1] in (",", ";") else stop
        if not closing or scan.text[following : following + 1] not in ("{", "["):
            break
        pos = following
    if not closing:
        stop = read.stop
    elif scan.text.startswith(closing, stop):
        stop += len(closing)
    elif stop == len(scan.text):
        warnings.append(f"tool_call_unclosed: {closing} is missing")
    else:
        return Malformed(f"text between the JSON and {closing}", first, visible_name(scan, first), closing)
    return read_calls(scan, at, stop, values, closing, tuple(warnings))


def read_calls(
    scan: Scan,
    at: int,
    stop: int,
    values: Sequence[tuple[int, int, Any]],
    closing: str = "",
    warnings: tuple[str, ...] = (),
) -> Region | Malformed:
    """A region `[at, stop)` of calls out of decoded JSON values.

    Args:
        at: where the region begins.
        stop: one past its end.
        values: start, stop and value of each JSON value inside; a list holds several calls.
        closing: the closing marker, where a malformed call would end.
        warnings: go into the region.

    Returns:
        The region, or the malformed call when one of the values is no call.
    """
    calls = []
    for start, end, item in (item for value in values for item in _items(scan, *value)):
        call = call_of(item)
        if isinstance(call, str):
            return Malformed(call, values[0][0], visible_name(scan, values[0][0]), closing)
        calls.append(ParsedCall(call[0], call[1], scan.text[start:end], call[2], start, end))
    if not calls:
        return Malformed("a list without a call", values[0][0], "", closing)
    return calls_region(scan, at, stop, calls, warnings)


def _items(scan: Scan, start: int, stop: int, value: Any) -> Iterator[tuple[int, int, Any]]:
    if not isinstance(value, list):
        yield start, stop, value
        return
    pos = start + 1
    for item in value:
        pos = scan.skip_space(pos)
        end = json_end(scan.text, pos)
        yield pos, end, item
        pos = scan.skip_space(end) + 1


def _first(value: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((value[key] for key in keys if key in value), None)


def _kind(value: Any) -> str:
    kinds = {list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "a text")


HERMES = MarkedJson(
    "hermes",
    "<tool_call>",
    "</tool_call>",
    needs=("<tool_call>",),
    excludes=("<function=", "<arg_key>", "<|tool_call>"),
)
"""`<tool_call>{"name": "f", "arguments": {}}</tool_call>`: also Qwen 2.5, Qwen 3, Granite 4 and many others"""

PHI = MarkedJson("phi", "<|tool_call|>", "<|/tool_call|>", needs=("<|/tool_call|>",))
"""`<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>`"""

PHI_FUNCTOOLS = MarkedJson("phi_functools", "functools", "", needs=("functools[",))
"""`functools[{"name": "f", "arguments": {}}]`"""

GRANITE = MarkedJson("granite", "<|tool_call|>", "", needs=("<|tool_call|>",), excludes=("<|/tool_call|>",))
"""`<|tool_call|>[{"name": "f", "arguments": {}}]`, with no closing marker"""

GRANITE_FUNCTION = MarkedJson("granite_function", "<function_call>", "", needs=("<function_call>",))
"""`<function_call> {"name": "f", "arguments": {}}`, with no closing marker"""

NEMOTRON = MarkedJson("nemotron", "<TOOLCALL>", "</TOOLCALL>", needs=("<TOOLCALL>",))
"""`<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>`"""

MINIMAX_M1 = MarkedJson("minimax_m1", "<tool_calls>", "</tool_calls>", needs=("<tool_calls>",))
"""`<tool_calls>` with one JSON object a line, or with a list (Jamba)"""

INTERNLM = MarkedJson(
    "internlm", "<|action_start|><|plugin|>", "<|action_end|>", needs=("<|action_start|>", "<|plugin|>")
)
"""`<|action_start|><|plugin|>{"name": "f", "parameters": {}}<|action_end|>`"""

COHERE_ACTION = MarkedJson(
    "cohere_action",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    needs=("<|START_ACTION|>",),
    markers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
"""`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>`"""

COHERE_COMMAND_R = MarkedJson("cohere_command_r", "Action: ```json", "```", needs=("Action:", "tool_name"))
"""Command R: `Action: ```json` then `[{"tool_name": "f", "parameters": {}}]` and three backticks"""

MARKED_JSON = (
    PHI,
    PHI_FUNCTOOLS,
    GRANITE,
    GRANITE_FUNCTION,
    NEMOTRON,
    MINIMAX_M1,
    INTERNLM,
    COHERE_ACTION,
    COHERE_COMMAND_R,
)
