"""`ROLLOUT_TRACES_<NAME>`: the one reader of environment variables, for every kind of settings."""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import orjson

from rollout_traces.errors import ConfigError
from rollout_traces.settings.typed_value import kind_of, typed_value

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
    """The variables from which `read_environment` reads the values again."""
    return {
        variable_of(name): value if isinstance(value, str) else orjson.dumps(value).decode()
        for name, value in values.items()
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
