"""Values as models write them inside a longer text: JSON, Python literals, bare keys, own string markers, arguments as bare text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from rollout_traces.decode.grammars.grammar import Scan
from rollout_traces.model.plain_values import INT64_MAX, INT64_MIN
from rollout_traces.model.text import encodable_joined, quoted

MAX_DEPTH = 64

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[A-Za-z_][\w.\-]*")
_BARE_KEY = re.compile(r"[^:{}\[\],\s'\"<][^:{}\[\],]*")
_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U(00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})|(\r?\n)|(.))", re.DOTALL
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_NON_FINITE = ("NaN", "nan", "Infinity", "inf")


@dataclass(frozen=True)
class Notation:
    """A family's way of writing values.

    Attributes:
        raw_quotes: markers that both open and close a string in which nothing is escaped.
        quotes: characters that open and close a string with backslash escapes.
    """

    raw_quotes: tuple[str, ...] = ()
    quotes: str = "'\""


PYTHON = Notation()


@dataclass(frozen=True)
class Literal:
    """A value and one past its last character."""

    value: Any
    stop: int


@dataclass(frozen=True)
class LiteralError:
    """Why there is no value here, and where reading stopped."""

    reason: str
    at: int


def read_literal(text: str, start: int, notation: Notation, depth: int = 0) -> Literal | LiteralError:
    """Reads one value: string, number, word, list, tuple or mapping (keys bare or quoted).

    Args:
        start: where the value begins; white space before it is skipped.
        notation: how strings are written.
        depth: nesting so far; beyond `MAX_DEPTH` the value is refused.

    Returns:
        The value as plain data, or why there is none.
    """
    pos = skip(text, start)
    if depth > MAX_DEPTH:
        return LiteralError("nested too deeply", pos)
    head = text[pos : pos + 1]
    if head == "{":
        return _mapping(text, pos, notation, depth)
    if head in ("[", "(") and head:
        return _list(text, pos, notation, depth)
    string = read_string(text, pos, notation)
    if string is not None:
        return string
    number = _NUMBER.match(text, pos)
    if number:
        return Literal(_number(number.group()), number.end())
    word = _WORD.match(text, pos)
    if word and word.group() in _WORDS:
        return Literal(_WORDS[word.group()], word.end())
    if word and word.group() in _NON_FINITE:
        return Literal(word.group(), word.end())
    return LiteralError(
        "a value is missing" if pos >= len(text) else f"no value begins with {quoted(head)}", pos
    )


def read_string(text: str, pos: int, notation: Notation) -> Literal | LiteralError | None:
    """Reads a string at `pos`, or gives None when none begins there."""
    for quote in notation.raw_quotes:
        if text.startswith(quote, pos):
            inside = pos + len(quote)
            close = text.find(quote, inside)
            if close < 0:
                return LiteralError("a string is not closed", len(text))
            return Literal(encodable_joined(text[inside:close]), close + len(quote))
    quote = text[pos : pos + 1]
    if not quote or quote not in notation.quotes:
        return None
    inner = re.compile(rf"[^\\{quote}]*(?:\\.[^\\{quote}]*)*{quote}", re.DOTALL).match(text, pos + 1)
    if inner is None:
        return LiteralError("a string is not closed", len(text))
    return Literal(encodable_joined(_ESCAPE.sub(_unescape, text[pos + 1 : inner.end() - 1])), inner.end())


def skip(text: str, pos: int) -> int:
    """First position at or after `pos` that is not white space."""
    match = _SPACE.match(text, pos)
    return match.end() if match else pos


def _mapping(text: str, pos: int, notation: Notation, depth: int) -> Literal | LiteralError:
    value: dict[str, Any] = {}
    pos = skip(text, pos + 1)
    if text[pos : pos + 1] == "}":
        return Literal(value, pos + 1)
    while True:
        key = _key(text, pos, notation)
        if isinstance(key, LiteralError):
            return key
        pos = skip(text, key.stop)
        if text[pos : pos + 1] != ":":
            return LiteralError("':' is missing after a key", pos)
        entry = read_literal(text, pos + 1, notation, depth + 1)
        if isinstance(entry, LiteralError):
            return entry
        value[key.value] = entry.value
        pos = skip(text, entry.stop)
        if text[pos : pos + 1] == "}":
            return Literal(value, pos + 1)
        if text[pos : pos + 1] != ",":
            return LiteralError("',' or '}' is missing", pos)
        pos = skip(text, pos + 1)


def _key(text: str, pos: int, notation: Notation) -> Literal | LiteralError:
    string = read_string(text, pos, notation)
    if string is not None:
        return string
    bare = _BARE_KEY.match(text, pos)
    return (
        Literal(encodable_joined(bare.group().rstrip()), bare.end())
        if bare
        else LiteralError("a key is missing", pos)
    )


def _list(text: str, pos: int, notation: Notation, depth: int) -> Literal | LiteralError:
    close = "]" if text[pos] == "[" else ")"
    values: list[Any] = []
    pos = skip(text, pos + 1)
    while text[pos : pos + 1] != close:
        entry = read_literal(text, pos, notation, depth + 1)
        if isinstance(entry, LiteralError):
            return entry
        values.append(entry.value)
        pos = skip(text, entry.stop)
        if text[pos : pos + 1] == ",":
            pos = skip(text, pos + 1)
        elif text[pos : pos + 1] != close:
            return LiteralError(f"',' or {close!r} is missing", pos)
    return Literal(values, pos + 1)


def _number(digits: str) -> int | float | str:
    plain = digits.replace("_", "").lstrip("+")
    if not re.search(r"[.eE]", plain):
        return integer_or_text(plain)
    value = float(plain)
    return value if math.isfinite(value) else digits


def _unescape(match: re.Match[str]) -> str:
    digits = match.group(1) or match.group(2) or match.group(3)
    if digits:
        return chr(int(digits, 16))
    if match.group(4):
        return ""
    letter = match.group(5)
    return _ESCAPED.get(letter, letter if letter in "\\'\"/" else "\\" + letter)


_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}


def typed(text: str, schema: Any) -> Any:
    """The value a bare text stands for.

    With a schema the text takes one of its types, and stays text where it fits none or where the
    schema allows text. Without one it is guessed: what reads as a JSON number, boolean, null, object
    or list (or Python's `True`, `False`, `None`) is that; all else is text. So a string argument that
    looks like a number comes out as a number unless the tool's schema is known.

    Args:
        text: the argument as written.
        schema: the parameter's JSON schema, or None.

    Returns:
        Plain data that JSON can carry.
    """
    types = _types(schema)
    value = _untyped(text)
    if not types or isinstance(value, str):
        return value if not types or "string" not in types else text
    if "string" in types:
        return None if value is None and "null" in types else text
    fits = any(_is(value, name) for name in types)
    return value if fits else text


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _PYTHON_TYPES.get(name, ()))


def _untyped(text: str) -> Any:
    word = text.strip()
    if word in _PYTHON_WORDS:
        return _PYTHON_WORDS[word]
    if not word or word[0] == '"':
        return text
    read = loads(word)
    if isinstance(read, JsonValue):
        return text if isinstance(read.value, str) else read.value
    if word[0] in "[{":
        literal = read_literal(word, 0, PYTHON)
        if not isinstance(literal, LiteralError) and literal.stop == len(word):
            return literal.value
    return text


def _types(schema: Any) -> tuple[str, ...]:
    if not isinstance(schema, Mapping):
        return ()
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else list(declared) if isinstance(declared, list) else []
    for union in ("anyOf", "oneOf"):
        choices = schema.get(union)
        for choice in choices if isinstance(choices, list) else ():
            kind = choice.get("type") if isinstance(choice, Mapping) else None
            names.extend([kind] if isinstance(kind, str) else [])
    if schema.get("nullable"):
        names.append("null")
    return tuple(name for name in names if isinstance(name, str))


_UINT64_MAX = 2 * INT64_MAX + 1
_ALWAYS_FITS, _MAY_FIT = len(str(INT64_MAX)) - 1, len(str(-_UINT64_MAX))
"""Characters of whole numbers that fit 64 bits."""
_NAME_WITHIN = 400
_SLICE_COST = 64
_VISIBLE_NAME = re.compile(r'"(?:tool_)?name"\s{0,8}:\s{0,8}"([^"\\\n]{1,200})"')


@dataclass(frozen=True)
class JsonValue:
    """A JSON value found in a text.

    Attributes:
        value: plain data that orjson and the standard library encode again.
        stop: one past its last character.
        warnings: what the plain data does not say, such as a key written twice.
    """

    value: Any
    stop: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class JsonError:
    """Why there is no JSON value here.

    Attributes:
        reason: in a few words.
        cut: True when the text ended before the value did.
    """

    reason: str
    cut: bool = False

    @property
    def why(self) -> str:
        """The reason, as a person is told it."""
        return "cut off before it ended" if self.cut else self.reason


def read_json(scan: Scan, start: int, boundary: str = "") -> JsonValue | JsonError:
    """Reads the JSON value at `start`, strictly.

    Numbers that JSON readers disagree about come out as the text that was written: integers beyond 64
    bits, floats beyond the double range, NaN and Infinity. Of a key written twice the last value stays.
    Lone surrogates become U+FFFD.

    Args:
        start: first character of the value.
        boundary: a marker that ends the call. It is looked beyond only from inside a JSON string.

    Returns:
        The value, or why there is none.
    """
    limit = scan.find(boundary, start) if boundary else -1
    while not scan.exhausted:
        window = scan.text[start:] if limit < 0 else scan.text[start:limit]
        reader = _Reader()
        try:
            value, used = reader.decoder.raw_decode(window)
        except json.JSONDecodeError as error:
            unterminated = error.msg.startswith("Unterminated string")
            scan.charge(len(window) if unterminated else error.pos + len(window) // _SLICE_COST)
            if not (unterminated and limit >= 0):
                cut = limit < 0 and (unterminated or error.pos >= len(window.rstrip()))
                return JsonError(f"{error.msg.removesuffix(' at')} at character {error.pos} of its JSON", cut)
            limit = scan.find(boundary, start + 2 * (limit - start) + len(boundary))
        except RecursionError:
            scan.charge(len(window))
            return JsonError("nested too deeply")
        else:
            plain = plain_data(value)
            if plain is None and value is not None:
                scan.charge(used)
                return JsonError("nested too deeply")
            return JsonValue(plain, start + used, tuple(reader.warnings))
    return JsonError("given up: too much malformed JSON in this turn")


def json_end(text: str, start: int) -> int:
    """One past the last character of the JSON value at `start`, which is known to be valid."""
    return _Reader().decoder.raw_decode(text, start)[1]


def loads(text: str) -> JsonValue | JsonError:
    """Reads a text that is one JSON value from end to end, white space aside."""
    scan = Scan(text)
    start = scan.skip_space(0)
    read = read_json(scan, start)
    if isinstance(read, JsonValue) and scan.skip_space(read.stop) != len(text):
        return JsonError(f"text after the JSON at character {read.stop}")
    return read


def visible_name(scan: Scan, start: int) -> str:
    """The tool name near `start` of a call that could not be parsed, or an empty text."""
    match = _VISIBLE_NAME.search(scan.text, start, start + _NAME_WITHIN)
    return match.group(1) if match else ""


class _Reader:
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_int=integer_or_text, parse_float=_float, parse_constant=str
        )

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            self.warnings.append("duplicate_key: a key is written twice; the last value is shown")
        return value


def integer_or_text(digits: str) -> int | str:
    """The integer, or its digits as text when it does not fit 64 bits."""
    if len(digits) <= _ALWAYS_FITS:
        return int(digits)
    if len(digits) > _MAY_FIT:
        return digits
    value = int(digits)
    return value if INT64_MIN <= value <= _UINT64_MAX else digits


def _float(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else digits


def plain_data(value: Any) -> Any:
    """The value with lone surrogates replaced by U+FFFD; None when orjson cannot encode it even so."""
    try:
        orjson.dumps(value)
    except (orjson.JSONEncodeError, RecursionError):
        return _without_surrogates(value)
    return value


def _without_surrogates(value: Any) -> Any:
    try:
        cleaned = json.loads(encodable_joined(json.dumps(value, ensure_ascii=False)))
        orjson.dumps(cleaned)
    except (orjson.JSONEncodeError, RecursionError, ValueError, TypeError):
        return None
    return cleaned
