"""Tool definitions out of the text of a system turn, as JSON or in the notations of families."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rollout_traces.decode.grammars.gemma import FUNCTION_GEMMA, GEMMA_4
from rollout_traces.decode.grammars.grammar import Scan
from rollout_traces.decode.grammars.literal import (
    PYTHON,
    JsonError,
    Literal,
    LiteralError,
    plain_data,
    read_json,
    read_literal,
)

_DECLARATION = re.compile(r"declaration:([\w.\-]{1,200})(?=\{)")
_XML_FUNCTION = re.compile(r"<function>\s{0,8}<name>([^<]{1,200})</name>")
_XML_PARAMETER = re.compile(r"<parameter>\s{0,8}<name>([^<]{1,200})</name>")
_TYPESCRIPT = re.compile(r"^type ([\w.\-]{1,200}) = \(", re.MULTILINE)
_TYPESCRIPT_OPENING = re.compile(r"_: \{\n")
_TYPESCRIPT_FIELD = re.compile(r"([\w.\-]{1,200})(\??): ([^,\n]{1,200}),?")
_TYPESCRIPT_TYPES = {"string": "string", "number": "number", "boolean": "boolean", "object": "object"}

Definition = dict[str, Any]


def noted_definitions(scan: Scan) -> Iterator[Definition]:
    """Definitions in the notations of Gemma, Nemotron and gpt-oss, without the outer `type`.

    Args:
        scan: the system turn's text.

    Yields:
        `{"name": ..., "description": ..., "parameters": {...}}`, what is not written left out.
    """
    yield from _gemma(scan)
    yield from _xml(scan.text)
    yield from _typescript(scan.text)


def _blocks(pattern: re.Pattern[str], text: str, ending: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each match with the text from its end to `ending`, or to the next match where that is missing."""
    matches = list(pattern.finditer(text))
    for index, match in enumerate(matches):
        limit = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        end = text.find(ending, match.end(), limit)
        yield match, text[match.end() : limit if end < 0 else end]


def _gemma(scan: Scan) -> Iterator[Definition]:
    for match in _DECLARATION.finditer(scan.text):
        if scan.exhausted:
            return
        grammar = GEMMA_4 if scan.text.startswith('{description:<|"|>', match.end()) else FUNCTION_GEMMA
        read = read_literal(scan.text, match.end(), grammar.notation)
        if isinstance(read, LiteralError):
            scan.charge(read.at - match.end())
        elif isinstance(read.value, dict):
            yield {"name": match.group(1), **_lower_types(read.value)}


def _lower_types(value: Any) -> Any:
    if isinstance(value, list):
        return [_lower_types(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item.lower() if key == "type" and isinstance(item, str) else _lower_types(item)
        for key, item in value.items()
    }


def _xml(text: str) -> Iterator[Definition]:
    for match, block in _blocks(_XML_FUNCTION, text, "</function>"):
        head, _, parameters = block.partition("<parameters>")
        properties = {}
        pieces = _XML_PARAMETER.split(parameters)
        for name, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            properties[name.strip()] = _xml_schema(piece)
        yield {
            "name": match.group(1).strip(),
            **_present("description", _tag(head, "description")),
            "parameters": {"type": "object", "properties": properties},
        }


def _xml_schema(piece: str) -> Definition:
    kind, choices = _tag(piece, "type"), _tag(piece, "enum")
    enum = read_literal(choices, 0, PYTHON) if choices else None
    kinds = read_literal(kind, 0, PYTHON) if kind and kind[0] == "[" else None
    return {
        **_present("type", kinds.value if isinstance(kinds, Literal) else kind),
        **_present("description", _tag(piece, "description")),
        **_present("enum", enum.value if isinstance(enum, Literal) else None),
    }


def _tag(text: str, name: str) -> str | None:
    _, opened, rest = text.partition(f"<{name}>")
    inner, closed, _ = rest.partition(f"</{name}>")
    return inner.strip() if opened and closed else None


def _present(key: str, value: Any) -> Definition:
    return {} if value is None else {key: value}


def _typescript(text: str) -> Iterator[Definition]:
    for match, fields in _blocks(_TYPESCRIPT, text, "=> any;"):
        opening = _TYPESCRIPT_OPENING.match(fields)
        properties: Definition = {}
        required = []
        for line in fields[opening.end() :].splitlines() if opening else ():
            field = _TYPESCRIPT_FIELD.match(line)
            if field is not None:
                name, optional, kind = field.groups()
                properties[name] = _typescript_schema(kind.strip())
                required += [] if optional else [name]
        yield {
            "name": match.group(1),
            **_present("description", _comment_before(text, match.start())),
            "parameters": {"type": "object", "properties": properties, "required": required},
        }


def _comment_before(text: str, at: int) -> str | None:
    lines: list[str] = []
    start = text.rfind("\n", 0, max(at - 1, 0)) + 1
    while text.startswith("//", start) and start < at:
        lines.insert(0, text[start + 2 : at].strip())
        at, start = start, text.rfind("\n", 0, max(start - 1, 0)) + 1
    return "\n".join(lines) or None


def _typescript_schema(kind: str) -> Definition:
    kind = kind.split("//")[0].strip().rstrip(",")
    if kind.endswith("[]"):
        return {"type": "array"}
    return {"type": _TYPESCRIPT_TYPES[kind]} if kind in _TYPESCRIPT_TYPES else {}


_VALUE = re.compile(r"[\[{]\s{0,80}(?=[\[{\"])")


def parse_tool_definitions(system_text: str) -> tuple[dict[str, Any], ...]:
    """Tool definitions that a system turn (or Llama's first user turn) spells out.

    Best effort, for showing and for the types of arguments: JSON objects that name a function and
    describe it or its parameters, wherever they stand (a `<tools>` block, one a line, a list), and the
    notations of Gemma, Nemotron and gpt-oss, of which the last two give up nested schemas.

    Args:
        system_text: the turn's text.

    Returns:
        OpenAI-style definitions, `{"type": "function", "function": {...}}`, in order, one a name.
        Never raises.
    """
    scan = Scan(system_text)
    found: dict[str, dict[str, Any]] = {}
    for function in [*_json_definitions(scan), *noted_definitions(scan)]:
        known = found.get(function["name"])
        if known is None or ("parameters" not in known and "parameters" in function):
            found[function["name"]] = function
    return tuple({"type": "function", "function": function} for function in found.values())


def _json_definitions(scan: Scan) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    pos = 0
    while (at := scan.search(_VALUE, pos)) >= 0 and not scan.exhausted:
        read = read_json(scan, at)
        if isinstance(read, JsonError):
            pos = at + 1
            continue
        for value in read.value if isinstance(read.value, list) else [read.value]:
            function = _function(value)
            if function is not None:
                found.append(function)
        pos = read.stop
    return found


def _function(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    function = inner if isinstance(inner, dict) else {key: value[key] for key in value if key != "type"}
    if not isinstance(function.get("name"), str):
        return None
    parameters = function.get("parameters", function.get("input_schema"))
    if isinstance(parameters, dict) and "input_schema" in function:
        function = {
            **{key: function[key] for key in function if key != "input_schema"},
            "parameters": parameters,
        }
    described = isinstance(parameters, dict) or isinstance(function.get("description"), str)
    return plain_data(function) if described else None
