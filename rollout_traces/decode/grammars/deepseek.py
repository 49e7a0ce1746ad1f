"""DeepSeek R1, V3 and V3.1: one call between special tokens. (V3.2 writes XML functions.)

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

and since V3.1 `<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>`.
"""

from __future__ import annotations

import re

from rollout_traces.decode.grammars.grammar import Malformed, Region, Scan, ShownByTexts, call_region
from rollout_traces.decode.grammars.json_calls import read_arguments

_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_HEAD = re.compile(rf"\s{{0,8}}([^<\n]{{0,200}}){_SEPARATOR}")
_NAME_LINE = re.compile(r"[ \t]{0,8}([^\s<{`]{1,200})\s{0,8}(?:```(?:json)?)?\s{0,8}")
_FENCE = re.compile(r"\s{0,8}```")


class DeepSeek(ShownByTexts):
    """One call; the section's markers are scaffolding."""

    name = "deepseek"
    opener = re.escape(_BEGIN)
    needs = (_BEGIN,)
    markers = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads one call in either notation."""
        start = at + len(_BEGIN)
        head = _HEAD.match(scan.text, start)
        if head is None:
            return Malformed(f"{_SEPARATOR} is missing", start, closer=_END)
        name, pos = head.group(1).strip(), head.end()
        if scan.next_char(pos) not in ("{", '"'):
            line = _NAME_LINE.match(scan.text, pos)
            if line is None:
                return Malformed("no tool name", start, closer=_END)
            name, pos = line.group(1), line.end()
        read = read_arguments(scan, pos, start, name, _END, _FENCE)
        return read if isinstance(read, Malformed) else call_region(scan, at, read[1], (name, read[0], None))


DEEPSEEK = DeepSeek()
