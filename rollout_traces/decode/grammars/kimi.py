"""Kimi K2: calls between special tokens, the name inside the id.

<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>
{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

import re

from rollout_traces.decode.grammars.grammar import Malformed, Region, Scan, ShownByTexts, call_region
from rollout_traces.decode.grammars.json_calls import read_arguments

_BEGIN, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_HEAD = re.compile(rf"\s{{0,8}}([^<\n]{{0,200}}?)\s{{0,8}}{re.escape(_ARGUMENTS)}")
_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


class Kimi(ShownByTexts):
    """One call; the section's markers are scaffolding."""

    name = "kimi"
    opener = re.escape(_BEGIN)
    needs = (_BEGIN,)
    markers = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads one call; an id that is not `functions.<name>:<index>` is taken for the name."""
        start = at + len(_BEGIN)
        head = _HEAD.match(scan.text, start)
        if head is None:
            return Malformed(f"{_ARGUMENTS} is missing", start, closer=_END)
        call_id = head.group(1)
        parts = _ID.fullmatch(call_id)
        name = parts.group(1) if parts else call_id
        read = read_arguments(scan, head.end(), start, name, _END)
        if isinstance(read, Malformed):
            return read
        return call_region(scan, at, read[1], (name, read[0], call_id or None))


KIMI = Kimi()
