"""Plain values that every store accepts: one bad value must never take its siblings with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import orjson

from rollout_traces.errors import text_of
from rollout_traces.model.text import encodable

MAX_TEXT = 1_000_000
"""Characters of one message that are stored as text; the rest is cut, visibly."""
MAX_DEPTH = 20
INT64_MIN, INT64_MAX = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
"""The whole numbers that a database can hold."""
INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}
"""Texts for infinite numbers where JSON is, which has none: as Trackio writes them. Null is unknown."""
NAN = "NaN"
"""The text for a logged number that is none, as Trackio writes it."""
NOT_FINITE = frozenset({NAN, *INFINITE})
"""Texts for the numbers that JSON lacks."""


def plain(value: Any, depth: int = 0) -> Any:
    """Turns any value into JSON-safe plain Python.

    Lone surrogates become U+FFFD, NaN None, infinities a text of `INFINITE`, integers beyond 64 bits and
    unknown objects text, arrays and tensors lists.

    Args:
        value: anything.
        depth: how deep the value lies; below `MAX_DEPTH` it becomes text.

    Returns:
        str, int, float, bool, None, or lists and dicts of them with string keys.
    """
    kind = type(value)  # what nearly every value is comes first: tests for any mapping or number are slow
    if kind is str:
        return value if value.isascii() else encodable(value)
    if kind is dict and depth < MAX_DEPTH:
        return {_key(key): plain(item, depth + 1) for key, item in value.items()}
    if kind is list and depth < MAX_DEPTH:
        return [plain(item, depth + 1) for item in value]
    if kind is float:
        return value if math.isfinite(value) else _not_finite(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, (int, np.integer)):
        return int(value) if INT64_MIN <= int(value) <= INT64_MAX else str(int(value))
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else _not_finite(float(value))
    if isinstance(value, np.bool_):
        return bool(value)
    if depth >= MAX_DEPTH:
        return encodable(text_of(value))
    if isinstance(value, Mapping):
        return {_key(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in value]
    if hasattr(value, "tolist"):
        try:
            return plain(value.tolist(), depth + 1)
        except Exception:  # noqa: BLE001  a tensor without data, as on the device "meta": its text says so
            return encodable(text_of(value))
    if isinstance(value, (bytes, bytearray)):
        return encodable(bytes(value).decode("utf-8", "replace"))
    return encodable(text_of(value))


def _key(key: Any) -> str:
    return key if type(key) is str and key.isascii() else encodable(str(key))


def _not_finite(value: float) -> str | None:
    """Gives what JSON holds in place of a number that it cannot hold."""
    if math.isnan(value):
        return None
    return "Infinity" if value > 0 else "-Infinity"


def from_json(text: str | bytes, otherwise: Any = None) -> Any:
    """Reads the value that a JSON text holds; `otherwise` where it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return otherwise


def parsed_call(call: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """A message's tool call with its arguments as values; a text that is no JSON stands under a name, or as it is."""
    function = dict(call.get("function") or {})
    if isinstance(text := function.get("arguments"), str):
        function["arguments"] = from_json(text or "{}", {name: text} if name else text)
    return {**call, "function": function}


def finite_or_text(value: Any) -> Any:
    """A value, or the values of a list, with NaN as None and infinities as texts of `INFINITE`; all else as it is."""
    if type(value) is float:
        return value if math.isfinite(value) else _not_finite(value)
    return [finite_or_text(item) for item in value] if type(value) is list else value


def finite_or_named(value: Any) -> Any:
    """A number, with NaN and infinities as the texts that Trackio stores for them; all else as it is."""
    if isinstance(value, (float, np.floating)) and not math.isfinite(value):
        return NAN if math.isnan(value) else _not_finite(float(value))
    return value


def columns_of(rows: Sequence[Mapping[str, Any]], unknown: Any = None) -> dict[str, list[Any]]:
    """Mappings of B rows as columns [B] by name.

    Args:
        unknown: stands where a row does not have a name that another one has.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {str(name): [row.get(name, unknown) for row in rows] for name in names}


def cut(text: str) -> str:
    """The text, or its first `MAX_TEXT` characters and a mark that says how much was left out."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n[cut: {len(text) - MAX_TEXT} of {len(text)} characters left out]"


def with_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """A plain value with each of its texts changed, the keys of its mappings among them."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {with_texts(key, change): with_texts(item, change) for key, item in value.items()}
    return [with_texts(item, change) for item in value] if isinstance(value, (list, tuple)) else value


def texts_in(value: Any) -> list[str]:
    """The texts of a plain value, the keys of its mappings among them."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.items() for text in texts_in(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in texts_in(item)]
    return []


NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""In place of an unknown value in a folder's name."""


def of_folders(names: Iterable[str]) -> dict[str, str | None]:
    """The columns that folders `column=value` say; None for an unknown value."""
    found: dict[str, str | None] = {}
    for name in names:
        column, is_column, text = name.partition("=")
        if is_column:
            found[unquote(column)] = None if text == NO_VALUE else unquote(text)
    return found
