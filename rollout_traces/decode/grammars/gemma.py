"""FunctionGemma and Gemma 4: a call in a notation near to JSON, with string markers of its own.

<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}<end_function_call>
<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rollout_traces.decode.grammars.grammar import BetweenMarkers, Malformed, Region, Scan, call_region
from rollout_traces.decode.grammars.literal import LiteralError, Notation, read_literal

_NAME = re.compile(r"\s{0,8}call:\s{0,8}([^\s{}<]{1,200})\s{0,8}(?=\{)")


@dataclass(frozen=True, eq=False)
class GemmaCalls(BetweenMarkers):
    """One call between two markers.

    Attributes:
        notation: how strings are written.
    """

    notation: Notation

    def in_template(self, chat_template: str) -> bool:
        """Tells whether the template knows the opening marker."""
        return self.opening in chat_template

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads one call."""
        start = at + len(self.opening)
        head = _NAME.match(scan.text, start)
        if head is None:
            return Malformed("no call:name{ after the marker", start, closer=self.closing)
        name = head.group(1)
        read = read_literal(scan.text, head.end(), self.notation)
        if isinstance(read, LiteralError):
            scan.charge(read.at - start)
            reason = "cut off before it ended" if read.at >= len(scan.text) else read.reason
            return Malformed(reason, start, name, self.closing)
        stop = scan.skip_space(read.stop)
        if scan.text.startswith(self.closing, stop):
            stop += len(self.closing)
        elif stop < len(scan.text):
            return Malformed(f"text before {self.closing}", start, name, self.closing)
        return call_region(scan, at, stop, (name, read.value, None))


FUNCTION_GEMMA = GemmaCalls(
    "function_gemma",
    "<start_function_call>",
    "<end_function_call>",
    Notation(raw_quotes=("<escape>",), quotes='"'),
)

GEMMA_4 = GemmaCalls("gemma_4", "<|tool_call>", "<tool_call|>", Notation(raw_quotes=('<|"|>',), quotes='"'))

GEMMA = (FUNCTION_GEMMA, GEMMA_4)
