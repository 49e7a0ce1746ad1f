"""Calls between special tokens, the name before the arguments: DeepSeek R1, V3 and V3.1, Kimi K2, Mistral.

DeepSeek (V3.2 writes XML functions):

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

and since V3.1 `<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>`. Kimi, the name inside the id:

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>
    {"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>

Mistral, a JSON list, or name and arguments:

    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "a1b2c3d4e"}]
    [TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}
    [TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]ping[ARGS]{}
"""

from __future__ import annotations

import re

from rollout_traces.decode.grammars.grammar import Grammar, Malformed, Region, Scan
from rollout_traces.decode.grammars.json_calls import read_marked_json, read_named_call


class DeepSeek(Grammar):
    """One call; the section's markers are scaffolding."""

    begin, separator, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    name = "deepseek"
    opener = re.escape(begin)
    needs = (begin,)
    markers = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    head = re.compile(rf"\s{{0,8}}([^<\n]{{0,200}}){separator}")
    name_line = re.compile(r"[ \t]{0,8}([^\s<{`]{1,200})\s{0,8}(?:```(?:json)?)?\s{0,8}")
    fence = re.compile(r"\s{0,8}```")

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads one call in either notation."""
        start = at + len(self.begin)
        head = self.head.match(scan.text, start)
        if head is None:
            return Malformed(f"{self.separator} is missing", start, closer=self.end)
        name, pos = head.group(1).strip(), head.end()
        if scan.next_char(pos) not in ("{", '"'):
            line = self.name_line.match(scan.text, pos)
            if line is None:
                return Malformed("no tool name", start, closer=self.end)
            name, pos = line.group(1), line.end()
        return read_named_call(scan, at, name, pos, start, self.end, fence=self.fence)


class Kimi(Grammar):
    """One call; the section's markers are scaffolding."""

    begin, arguments, end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    name = "kimi"
    opener = re.escape(begin)
    needs = (begin,)
    markers = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    head = re.compile(rf"\s{{0,8}}([^<\n]{{0,200}}?)\s{{0,8}}{re.escape(arguments)}")
    named = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads one call; an id that is not `functions.<name>:<index>` is taken for the name."""
        start = at + len(self.begin)
        head = self.head.match(scan.text, start)
        if head is None:
            return Malformed(f"{self.arguments} is missing", start, closer=self.end)
        call_id = head.group(1)
        parts = self.named.fullmatch(call_id)
        name = parts.group(1) if parts else call_id
        return read_named_call(scan, at, name, head.end(), start, self.end, call_id=call_id or None)


class Mistral(Grammar):
    """Both of Mistral's notations."""

    begin = "[TOOL_CALLS]"
    name = "mistral"
    opener = re.escape(begin)
    needs = (begin,)
    named = re.compile(
        r"\s{0,8}([^\s\[\]{}]{1,200})\s{0,8}(?:\[CALL_ID\]([^\s\[\]]{1,200}))?\s{0,8}(?:\[ARGS\])?\s{0,8}(?=\{)"
    )
    bare_name = re.compile(r"\s{0,8}([^\s\[\]{}]{1,200})")

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads the list, or one named call."""
        start = at + len(self.begin)
        if scan.next_char(start) in ("[", "{"):
            return read_marked_json(scan, at, start, "")
        head = self.named.match(scan.text, start)
        if head is None:
            bare = self.bare_name.match(scan.text, start)
            return Malformed("no arguments after the name", start, bare.group(1) if bare else "")
        name, call_id = head.groups()
        return read_named_call(scan, at, name, head.end(), start, call_id=call_id)


DEEPSEEK, KIMI, MISTRAL = DeepSeek(), Kimi(), Mistral()
