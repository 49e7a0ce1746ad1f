"""Calls written as Python: LFM2, Llama 4, OLMo 3, Gemma's `tool_code`.

<|tool_call_start|>[get_weather(city='Oslo', days=3), ping()]<|tool_call_end|>
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rollout_traces.decode.grammars.grammar import (
    Grammar,
    Malformed,
    ParsedCall,
    Region,
    Scan,
    calls_region,
)
from rollout_traces.decode.grammars.literal import PYTHON, LiteralError, read_literal
from rollout_traces.model.text import encodable_joined

_NAME = re.compile(r"[A-Za-z_][\w.\-]{0,200}")
_KEYWORD = re.compile(r"([A-Za-z_]\w{0,200})\s{0,8}=(?!=)")
_RAW_END = re.compile(
    r"'(?=\s{0,8}(?:,\s{0,8}[A-Za-z_]\w{0,200}=|\)\s{0,8}(?:,\s{0,8}[A-Za-z_][\w.]{0,200}\(|\])))"
)


@dataclass(frozen=True, eq=False)
class PythonCalls(Grammar):
    """A family that writes calls as Python calls with keyword arguments.

    Attributes:
        name: the family.
        opening: regular expression of what stands before the calls.
        closing: literal text after them.
        needs: texts that all stand in a chat template of the family.
        excludes: texts of which none does.
        at_start: True when the opening is too common to count anywhere but where the text begins.
        raw_strings: True when the template writes single-quoted strings without escaping anything.
    """

    name: str
    opening: str
    closing: str
    needs: tuple[str, ...]
    excludes: tuple[str, ...] = ()
    at_start: bool = False
    raw_strings: bool = False
    markers: tuple[str, ...] = ()

    @property
    def opener(self) -> str:
        """The opening."""
        return self.opening

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads the calls between the markers."""
        head = re.compile(self.opening).match(scan.text, at)
        if head is None or (self.at_start and not scan.begins_text(at)):
            return None
        pos = scan.skip_space(head.end())
        calls: list[ParsedCall] = []
        while not scan.text.startswith(self.closing, pos):
            call = read_python_call(scan, pos, self.raw_strings)
            if isinstance(call, LiteralError):
                scan.charge(call.at - pos)
                if self.at_start and not calls:
                    return None
                reason = "cut off before it ended" if call.at >= len(scan.text) else call.reason
                return Malformed(reason, head.end(), _visible_name(scan, head.end()), self.closing)
            name, arguments, stop = call
            calls.append(ParsedCall(name, arguments, scan.text[pos:stop], None, pos, stop))
            pos = scan.skip_space(stop)
            if scan.text[pos : pos + 1] in (",", ";"):
                pos = scan.skip_space(pos + 1)
        if not calls:
            return Malformed("no call between the markers", head.end(), "", self.closing)
        return calls_region(scan, at, pos + len(self.closing), calls)


def read_python_call(
    scan: Scan, start: int, raw_strings: bool = False
) -> tuple[str, dict[str, Any], int] | LiteralError:
    """Reads `name(key=value, ...)`; a `print(...)` around it is looked through.

    Args:
        start: where the name begins.
        raw_strings: whether a single-quoted argument is taken as written, to the quote that another
            argument or the end of the call follows.

    Returns:
        Name, arguments, and one past the last character; or why there is no call.
    """
    text = scan.text
    name = _NAME.match(text, start)
    if name is None or text[name.end() : name.end() + 1] != "(":
        return LiteralError("no call of the form name(...)", start if name is None else name.end())
    pos = scan.skip_space(name.end() + 1)
    if name.group() == "print" and _NAME.match(text, pos) and not _KEYWORD.match(text, pos):
        inner = read_python_call(scan, pos, raw_strings) if not text.startswith("print(", pos) else None
        if not isinstance(inner, tuple):
            return inner or LiteralError("print inside print", pos)
        stop = scan.skip_space(inner[2])
        closed = text.startswith(")", stop)
        return (inner[0], inner[1], stop + 1) if closed else LiteralError("')' is missing", stop)
    arguments: dict[str, Any] = {}
    while not text.startswith(")", pos):
        key = _KEYWORD.match(text, pos)
        if key is None:
            return LiteralError("an argument without a name", pos)
        value = _argument(scan, scan.skip_space(key.end()), raw_strings)
        if isinstance(value, LiteralError):
            return value
        arguments[key.group(1)], pos = value
        pos = scan.skip_space(pos)
        if text.startswith(",", pos):
            pos = scan.skip_space(pos + 1)
        elif not text.startswith(")", pos):
            return LiteralError("',' or ')' is missing", pos)
    return name.group(), arguments, pos + 1


def _argument(scan: Scan, pos: int, raw_strings: bool) -> tuple[Any, int] | LiteralError:
    if raw_strings and scan.text.startswith("'", pos):
        end = scan.search(_RAW_END, pos + 1)
        if end >= 0:
            return encodable_joined(scan.text[pos + 1 : end]), end + 1
    literal = read_literal(scan.text, pos, PYTHON)
    return literal if isinstance(literal, LiteralError) else (literal.value, literal.stop)


def _visible_name(scan: Scan, pos: int) -> str:
    name = _NAME.match(scan.text, scan.skip_space(pos))
    return name.group() if name and scan.text.startswith("(", name.end()) else ""


_LFM2_START = r"<\|tool_call_start\|>\s{0,8}\["
_LFM2_END = ("<|tool_call_end|>",)
_ESCAPES_QUOTES = """replace("'\""""

LFM2 = PythonCalls("lfm2", _LFM2_START, "]", needs=("<|tool_list_start|>",), markers=_LFM2_END)
"""LFM2: the calls as a Python list."""

LFM2_VL = PythonCalls(
    "lfm2_vl", _LFM2_START, "]", needs=("<|tool_call_start|>", _ESCAPES_QUOTES), markers=_LFM2_END
)
"""LFM2.5-VL: the same, with quotes in strings escaped."""

LFM2_RAW = PythonCalls(
    "lfm2_raw",
    _LFM2_START,
    "]",
    needs=("<|tool_call_start|>",),
    excludes=(_ESCAPES_QUOTES, "<|tool_list_start|>"),
    raw_strings=True,
    markers=_LFM2_END,
)
"""LFM2.5, whose template writes strings between single quotes as they are."""

LLAMA_PYTHONIC = PythonCalls(
    "llama_pythonic", r"\[(?=[A-Za-z_][\w.]{0,200}\()", "]", needs=("[func_name1(",), at_start=True
)
"""`[get_weather(city="Oslo")]` and nothing else in the turn: Llama 3.2 and 4."""

OLMO = PythonCalls(
    "olmo", r"<function_calls>", "</function_calls>", needs=("<function_calls>",), excludes=("DSML",)
)
"""`<function_calls>` with one Python call a line: OLMo 3."""

TOOL_CODE = PythonCalls("gemma_tool_code", r"```tool_code\b", "```", needs=("tool_code",))
"""A fenced block of language `tool_code`: Gemma 3."""

PYTHON_CALLS = (LFM2, LFM2_VL, LFM2_RAW, LLAMA_PYTHONIC, OLMO, TOOL_CODE)
