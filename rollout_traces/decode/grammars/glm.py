"""GLM 4.5 / 4.6: a name, then key and value tags. GLM 4: a name on a line, then JSON.

<tool_call>get_weather
<arg_key>city</arg_key>
<arg_value>Oslo</arg_value>
</tool_call>
"""

from __future__ import annotations

import re
from typing import Any

from rollout_traces.decode.grammars.grammar import Grammar, Malformed, Region, Scan, call_region
from rollout_traces.decode.grammars.json_calls import read_named_call
from rollout_traces.decode.grammars.literal import typed
from rollout_traces.model.text import encodable_joined

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"\s{0,8}([^\s<{\[]{1,200})\s*(?=<)")
_KEY = re.compile(r"<arg_key>([^<\n]{0,200})</arg_key>\s{0,40}<arg_value>")
_VALUE_CLOSE = "</arg_value>"
_VALUE_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")
_LINE = re.compile(r"(?<![^\n>])([A-Za-z_][\w.\-]{0,127})[ \t]{0,8}\n(?=\{)")


class Glm45(Grammar):
    """One `<tool_call>` block with keys and values."""

    name = "glm_4_5"
    opener = _OPEN
    needs = ("<arg_key>",)

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads one block."""
        start = at + len(_OPEN)
        head = _NAME.match(scan.text, start)
        if head is None:
            return Malformed("no tool name", start, closer=_CLOSE)
        name = head.group(1)
        schemas = scan.tools.get(name, {})
        arguments: dict[str, Any] = {}
        pos = head.end()
        while (key := _KEY.match(scan.text, pos)) is not None:
            end = scan.search(_VALUE_END, key.end())
            value = scan.text[key.end() : max(end, key.end())]
            if end < 0 or (_CLOSE in value and _OPEN in value):
                scan.charge(max(pos, end) - start)
                return Malformed("a value is not closed", start, name, _CLOSE)
            word = encodable_joined(key.group(1).strip())
            arguments[word] = typed(encodable_joined(value), schemas.get(word))
            pos = scan.skip_space(end + len(_VALUE_CLOSE))
        if not scan.text.startswith(_CLOSE, pos):
            scan.charge(pos - start)
            cut = pos >= len(scan.text)
            return Malformed("cut off before it ended" if cut else "text among the keys", start, name, _CLOSE)
        return call_region(scan, at, pos + len(_CLOSE), (name, arguments, None))


class Glm4(Grammar):
    """A name alone on the first line and the arguments as JSON below it."""

    name = "glm_4"
    opener = _LINE.pattern
    needs = ("<|observation|>", "metadata")

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads the call where the text begins; elsewhere the same shape is content."""
        head = _LINE.match(scan.text, at)
        if head is None or not scan.begins_text(at):
            return None
        return read_named_call(scan, at, head.group(1), head.end(), head.end())


GLM = (Glm45(), Glm4())
