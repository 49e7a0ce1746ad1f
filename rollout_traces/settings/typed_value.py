"""A setting's value as its field's type: what YAML, environment variables and trainers' configs give."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout_traces.errors import ConfigError

_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
_UNSET = {"", "none", "null"}


def kind_of(hint: Any) -> Any:
    """The plain type that a field's hint allows beside None: `dict` of `dict[str, Any] | None`."""
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next(
        (typing.get_origin(choice) or choice for choice in choices if choice is not types.NoneType), Any
    )


def typed_value(name: str, value: Any, hint: Any) -> Any:
    """The value as its field's type; a text is read as one, as environment variables and YAML give them.

    Args:
        name: what to call the field in an error.
        value: what was given.
        hint: the field's type, perhaps with `| None`.

    Raises:
        ConfigError: the value is of another type.
    """
    plain = kind_of(hint)
    optional = isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint)
    if value is None or (optional and isinstance(value, str) and value.lower() in _UNSET):
        if optional:
            return None
    elif plain is Any:
        return value
    elif plain is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in _TRUE | _FALSE:
            return str(value).lower() in _TRUE
    elif plain is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lstrip("-").isdigit():
            return int(value)
    elif plain is float:
        number = _as_float(value)
        if number is not None:
            return number
    elif plain is str:
        if isinstance(value, (str, Path)):
            return str(value)
    elif plain is list:
        if isinstance(value, Sequence) and not isinstance(value, str):
            return list(value)
    elif plain is dict and isinstance(value, Mapping):
        return dict(value)
    expected = getattr(plain, "__name__", str(plain)) + (" or nothing" if optional else "")
    raise ConfigError(f"{name}: seen {value!r} ({type(value).__name__}). Expected {expected}.")


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
