"""`ROLLOUT_TRACES_<NAME>`: the one reader of environment variables, for every kind of settings."""

from __future__ import annotations

import math
import os
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.errors import ConfigError

PREFIX = "ROLLOUT_TRACES_"
"""`ROLLOUT_TRACES_<NAME>` stands for the field `<name>`."""


def variable_of(field_name: str) -> str:
    """The environment variable of a field."""
    return PREFIX + field_name.upper()


def read_environment(settings: type, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The fields of a dataclass that environment variables give; empty ones give nothing.

    Args:
        settings: the dataclass. A field that is a list or a dict is written as JSON.
        environment: the variables; the process's own when None.

    Returns:
        Field -> value, of the field's type.

    Raises:
        ConfigError: a value is not of its field's type; the text names the variable.
    """
    environment = os.environ if environment is None else environment
    hints = typing.get_type_hints(settings)
    names = {item.name: variable_of(item.name) for item in fields(settings)}
    return {
        name: _value(variable, environment[variable], hints[name])
        for name, variable in names.items()
        if environment.get(variable)
    }


def as_environment(values: Mapping[str, Any]) -> dict[str, str]:
    """The variables from which `read_environment` reads the values again; None gives none."""
    return {
        variable_of(name): value if isinstance(value, str) else orjson.dumps(value).decode()
        for name, value in values.items()
        if value is not None
    }


def _value(variable: str, text: str, hint: Any) -> Any:
    is_json = text.lstrip()[:1] in ("[", "{") if kind_of(hint) is Any else kind_of(hint) in (dict, list)
    if not is_json:
        return typed_value(variable, text, hint)
    try:
        return typed_value(variable, orjson.loads(text), hint)
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            f"{variable}: seen {text!r}. Expected a {getattr(kind_of(hint), '__name__', 'value')} as JSON."
        ) from error


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
