"""JSON as models write it inside a longer text: where it ends, and plain data out of it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import orjson

from rollout_traces.decode.grammars.grammar import Scan
from rollout_traces.model.text import encodable_joined

_INT64_DIGITS = 18
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
                return JsonError(f"{error.msg} at character {error.pos} of its JSON", cut)
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
    if len(digits) <= _INT64_DIGITS:
        return int(digits)
    if len(digits) > _INT64_DIGITS + 3:
        return digits
    value = int(digits)
    return value if -(2**63) <= value < 2**64 else digits


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
