"""Calls written as XML-like tags, one per parameter: Qwen 3.5, Seed-OSS, MiniMax M2, DeepSeek V3.2, Muse.

<tool_call>
<function=get_weather>
<parameter=city>
Oslo
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rollout_traces.decode.grammars.grammar import (
    Grammar,
    Malformed,
    ParsedCall,
    Region,
    Scan,
    calls_region,
)
from rollout_traces.decode.grammars.literal import typed
from rollout_traces.model.text import encodable_joined


@dataclass(frozen=True, eq=False)
class XmlFunctions(Grammar):
    """One way of writing functions as tags.

    Attributes:
        name: the family.
        wrapper: literal tags around one or more functions.
        function: regular expression of the tag that opens a function; group 1 is its name.
        function_end: literal tag that closes it.
        parameter: regular expression of the tag that opens a parameter; group 1 is its name, a group
            named `string` says `true` for text and `false` for JSON where the family writes that.
        parameter_end: literal tag that closes it.
        padding: what stands between a parameter's tags and its value, once on each side.
        needs: texts that all stand in a chat template of the family.
    """

    name: str
    wrapper: tuple[str, str]
    function: str
    function_end: str
    parameter: str
    parameter_end: str
    padding: str
    needs: tuple[str, ...]

    @cached_property
    def opener(self) -> str:
        """The wrapper's opening tag, or a function's where the wrapper was left out."""
        return f"{re.escape(self.wrapper[0])}|{self.function}"

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads the functions inside one wrapper, or a bare function."""
        wrapped = scan.text.startswith(self.wrapper[0], at)
        closer = self.wrapper[1] if wrapped else self.function_end
        pos = scan.skip_space(at + len(self.wrapper[0])) if wrapped else at
        calls: list[ParsedCall] = []
        warnings: list[str] = []
        while (function := self._function.match(scan.text, pos)) is not None:
            call = self._call(scan, function, closer)
            if isinstance(call, Malformed):
                scan.charge(call.reached - at)
                return call
            calls.append(call)
            pos = scan.skip_space(call.stop) if wrapped else call.stop
            if not wrapped:
                break
        if not calls:
            return Malformed("no function inside the tags", pos, closer=closer)
        if wrapped and scan.text.startswith(closer, pos):
            pos += len(closer)
        elif wrapped and pos == len(scan.text):
            warnings.append(f"tool_call_unclosed: {closer} is missing")
        elif wrapped:
            return Malformed(f"text before {closer}", pos, calls[-1].name, closer)
        return calls_region(scan, at, pos, calls, tuple(warnings))

    @cached_property
    def _function(self) -> re.Pattern[str]:
        return re.compile(self.function)

    @cached_property
    def _parameter(self) -> re.Pattern[str]:
        return re.compile(self.parameter)

    @cached_property
    def _value_end(self) -> re.Pattern[str]:
        """A closing tag before another parameter or the function's end: values may contain the tag."""
        return re.compile(
            rf"{re.escape(self.parameter_end)}(?=\s*(?:{self.parameter}|{re.escape(self.function_end)}))"
        )

    def _call(self, scan: Scan, function: re.Match[str], closer: str) -> ParsedCall | Malformed:
        name = function.group(1).strip()
        schemas = scan.tools.get(name, {})
        arguments: dict[str, Any] = {}
        pos = scan.skip_space(function.end())
        while (parameter := self._parameter.match(scan.text, pos)) is not None:
            end = scan.search(self._value_end, parameter.end())
            value = scan.text[parameter.end() : max(end, parameter.end())]
            if end < 0 or (self.function_end in value and self.wrapper[1] in value):
                return Malformed("a parameter is not closed", function.end(), name, closer, max(pos, end))
            key = encodable_joined(parameter.group(1).strip())
            arguments[key] = self._value(value, parameter, schemas.get(key))
            pos = scan.skip_space(end + len(self.parameter_end))
        if not scan.text.startswith(self.function_end, pos):
            cut = pos >= len(scan.text)
            reason = (
                "cut off before it ended" if cut else f"text where a parameter or {self.function_end} belongs"
            )
            return Malformed(reason, function.end(), name, closer, pos)
        stop = pos + len(self.function_end)
        start = function.start()
        return ParsedCall(name, arguments, scan.text[start:stop], None, start, stop)

    def _value(self, text: str, parameter: re.Match[str], schema: Any) -> Any:
        if self.padding:
            text = text.removeprefix(self.padding).removesuffix(self.padding)
        text = encodable_joined(text)
        written = parameter.groupdict().get("string")
        if written == "true":
            return text
        return typed(text, schema)


QWEN_XML = XmlFunctions(
    "qwen_xml",
    ("<tool_call>", "</tool_call>"),
    r"<function=([^>\n]{1,200})>",
    "</function>",
    r"<parameter=([^>\n]{1,200})>",
    "</parameter>",
    "\n",
    needs=("<function=", "<parameter=", "<tool_call>"),
)

SEED_OSS = XmlFunctions(
    "seed_oss",
    ("<seed:tool_call>", "</seed:tool_call>"),
    r"<function=([^>\n]{1,200})>",
    "</function>",
    r"<parameter=([^>\n]{1,200})>",
    "</parameter>",
    "",
    needs=("<seed:tool_call>",),
)

MINIMAX_M2 = XmlFunctions(
    "minimax_m2",
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    r"<invoke name=\"?([^>\"\n]{1,200})\"?>",
    "</invoke>",
    r"<parameter name=\"?([^>\"\n]{1,200})\"?>",
    "</parameter>",
    "",
    needs=("<minimax:tool_call>",),
)

DEEPSEEK_V32 = XmlFunctions(
    "deepseek_v32",
    ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    r"<｜DSML｜invoke name=\"([^>\"\n]{1,200})\">",
    "</｜DSML｜invoke>",
    r"<｜DSML｜parameter name=\"([^>\"\n]{1,200})\"(?: string=\"(?P<string>true|false)\")?>",
    "</｜DSML｜parameter>",
    "",
    needs=("｜DSML｜",),
)

MUSE_ATEM = XmlFunctions(
    "muse_atem",
    ("<atem:function_calls>", "</atem:function_calls>"),
    r"<atem:invoke name=\"([^>\"\n]{1,200})\">",
    "</atem:invoke>",
    r"<atem:parameter name=\"([^>\"\n]{1,200})\">",
    "</atem:parameter>",
    "",
    needs=("<atem:function_calls>",),
)

XML_FUNCTIONS = (QWEN_XML, SEED_OSS, MINIMAX_M2, DEEPSEEK_V32, MUSE_ATEM)
