"""Llama 3: bare JSON, `<|python_tag|>`, and `<function=name>{...}</function>`.

{"name": "get_weather", "parameters": {"city": "Oslo"}}
<|python_tag|>brave_search.call(query="weather in Oslo")
<|python_tag|>print(2 ** 10)
<function=get_weather>{"city": "Oslo"}</function>
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollout_traces.decode.grammars.grammar import Grammar, Malformed, Region, Scan, call_region
from rollout_traces.decode.grammars.json_calls import (
    ARGUMENT_KEYS,
    ID_KEYS,
    NAME_KEYS,
    read_calls,
    read_named_call,
)
from rollout_traces.decode.grammars.literal import JsonError, JsonValue, read_json, visible_name
from rollout_traces.decode.grammars.python_calls import read_python_call

_PYTHON_TAG = "<|python_tag|>"
_BARE = re.compile(r'\{\s{0,40}"(?:name|type|function)"\s{0,8}:')
_ARGUMENTS = re.compile(r'"(?:parameters|arguments)"\s{0,8}:')
_FUNCTION = re.compile(r"<function=([^>\n{}]{1,200})>(?=\s{0,40}\{)")
_CALL_KEYS = {*NAME_KEYS, *ARGUMENT_KEYS, *ID_KEYS, "type", "function"}
_FUNCTION_END = "</function>"
_BUILTIN_SUFFIX = ".call"


class BareJson(Grammar):
    """A JSON object with `name` and `parameters` at the start of a line, as Llama 3.1 and 3.2 write it."""

    name = "llama_json"
    opener = _BARE.pattern

    def in_template(self, chat_template: str) -> bool:
        """Tells whether the template writes `"parameters": ` beside a name, or knows `<|python_tag|>`."""
        return _PYTHON_TAG in chat_template or '{"name": function name, "parameters"' in chat_template

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads the object; JSON that does not have the shape of a call stays content."""
        if not scan.begins_text(at) and scan.text[at - 1 : at] != "\n":
            return None
        values = []
        for start, read in _objects(scan, at, (";",)):
            if isinstance(read, JsonError):
                shaped = _ARGUMENTS.search(scan.text, at, at + 400) and visible_name(scan, at)
                return Malformed(read.why, at, visible_name(scan, at)) if shaped else None
            if not isinstance(read.value, dict) or not _is_call(read.value):
                break
            values.append((start, read.stop, read.value))
        return read_calls(scan, at, values[-1][1], values) if values else None


class PythonTag(Grammar):
    """The text after `<|python_tag|>`: a JSON call, a built-in tool's call, or code for the interpreter."""

    name = "llama_python_tag"
    opener = re.escape(_PYTHON_TAG)
    needs = (_PYTHON_TAG,)

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads to the end of the call; code reaches to the end of the text."""
        start = scan.skip_space(at + len(_PYTHON_TAG))
        if _BARE.match(scan.text, start):
            return self._json(scan, at, start)
        call = read_python_call(scan, start)
        if isinstance(call, tuple) and call[0].endswith(_BUILTIN_SUFFIX):
            name, arguments, stop = call
            return call_region(scan, at, stop, (name.removesuffix(_BUILTIN_SUFFIX), arguments, None))
        code = scan.text[start:].rstrip()
        if not code:
            return Malformed("nothing follows the tag", start)
        return call_region(scan, at, len(scan.text), ("code_interpreter", {"code": code}, None))

    def _json(self, scan: Scan, at: int, start: int) -> Region | Malformed:
        values = []
        for pos, read in _objects(scan, start, (";", ",")):
            if isinstance(read, JsonError):
                return Malformed(read.why, start, visible_name(scan, start))
            values.append((pos, read.stop, read.value))
        return read_calls(scan, at, values[-1][1], values)


class FunctionTag(Grammar):
    """`<function=name>` with the arguments as JSON inside, as Llama 3.1's prompt format has it."""

    name = "llama_function_tag"
    opener = _FUNCTION.pattern

    def in_template(self, chat_template: str) -> bool:
        """Tells whether the template knows the tag, or is Llama 3's, whose models also write it."""
        return (
            "<function=" in chat_template and "<parameter=" not in chat_template
        ) or _PYTHON_TAG in chat_template

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads one tag pair."""
        head = _FUNCTION.match(scan.text, at)
        if head is None:
            return None
        start = scan.skip_space(head.end())
        return read_named_call(scan, at, head.group(1), start, start, _FUNCTION_END)


def _objects(
    scan: Scan, pos: int, separators: tuple[str, ...]
) -> Iterator[tuple[int, JsonValue | JsonError]]:
    """JSON values with a sign between them, each with its place; what is none is the last."""
    following = "{"
    while following == "{":
        read = read_json(scan, pos)
        yield pos, read
        if isinstance(read, JsonError):
            return
        separator = scan.skip_space(read.stop)
        pos = scan.skip_space(separator + 1)
        following = scan.text[pos : pos + 1] if scan.text[separator : separator + 1] in separators else ""


def _is_call(value: dict[str, object]) -> bool:
    """Tells whether an object says a call and nothing else: a tool's definition also has name and parameters."""
    inner = value.get("function")
    holder = inner if isinstance(inner, dict) else value
    named = isinstance(holder.get("name"), str) and any(key in holder for key in ARGUMENT_KEYS)
    return named and {*value, *holder} <= _CALL_KEYS


LLAMA = (PythonTag(), FunctionTag(), BareJson())
