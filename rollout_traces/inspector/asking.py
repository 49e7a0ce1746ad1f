"""Calls of a page's function: what it takes, read off its signature, and what it answers, as JSON.

The first parameter is the workspace or a view. A parameter that is a dataclass, a view too, stands for its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from inspect import Parameter, signature
from typing import Any, cast, get_type_hints

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.inspector.workspace import LONGEST_TEXT, Workspace
from rollout_traces.model.text import BRIEF, NOTICE

Function = Callable[..., Any]
Names = tuple[str, ...]
"""Several names in one argument: a page sends a list, a program one text with commas."""
MOST_NAMES = 200
"""Names in one argument: charts, columns."""
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, kw_only=True)
class FromRuns:
    """An answer whose values runs and rollouts wrote; `notice` says so."""

    notice: str = NOTICE


@dataclass(frozen=True, kw_only=True)
class InParts:
    """An answer whose lists programs get some at a time; `next` is the `after` of those behind, None at the end."""

    next: int | None = None


@cache
def parameters(function: Function) -> tuple[Parameter, ...]:
    """Lists what may be sent to a function, by name, with resolved types."""
    return tuple(each for written in _written(function) for each in _expanded(written))


def answer_of(function: Function, workspace: Workspace, given: Mapping[str, Any]) -> Any:
    """Calls a function.

    Args:
        function: of a page, or of the API.
        workspace: what it reads.
        given: values by the names of `parameters`.
    """
    arguments = {}
    for written in _written(function):
        taken = {each.name: given[each.name] for each in _expanded(written) if each.name in given}
        if is_dataclass(kind := written.annotation):
            place = {"workspace": workspace} if "workspace" in kind.__dataclass_fields__ else {}
            arguments[written.name] = cast("type", kind)(**place, **taken)
        else:
            arguments |= {written.name: workspace} if written.annotation is Workspace else taken
    return function(**arguments)


def read_request(function: Function, sent: Any) -> dict[str, Any]:
    """Reads what a page sent, as a function takes it: absent texts are empty, names that it does not know are passed over.

    Raises:
        StoreError: a value cannot be understood, or a number that is needed is missing.
    """
    values = sent if isinstance(sent, Mapping) else {}
    return {each.name: _read(each, values.get(each.name)) for each in parameters(function)}


def as_json(answer: Any) -> bytes:
    """An answer as JSON; numbers that are not finite become null."""
    return orjson.dumps(answer, default=str, option=_OPTIONS)


def seen(value: object) -> str:
    """Quotes the beginning of what was sent, for a refusal."""
    return repr(str(value)[:BRIEF])


def listed(names: str) -> Names:
    """Names with commas between, one by one."""
    return tuple(name.strip() for name in names.split(",") if name.strip())


def as_plain(answer: Any) -> Any:
    """An answer as plain values, those that its JSON holds."""
    return orjson.loads(as_json(answer))


@cache
def _written(function: Function) -> tuple[Parameter, ...]:
    return tuple(signature(function, eval_str=True).parameters.values())


def _expanded(written: Parameter) -> Iterator[Parameter]:
    if written.annotation is Workspace:
        return
    if not is_dataclass(written.annotation):
        yield written
        return
    hints = get_type_hints(written.annotation)
    for field in fields(written.annotation):
        if field.name != "workspace":
            default = Parameter.empty if field.default is MISSING else field.default
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])


def _read(parameter: Parameter, value: Any) -> Any:
    name, kind = parameter.name, parameter.annotation
    if kind == Names:
        return (
            tuple(str(each)[:LONGEST_TEXT] for each in value[:MOST_NAMES]) if isinstance(value, list) else ()
        )
    if kind is bool:
        return value in (True, 1, "1")
    if value is None or (value == "" and kind not in (str, str | None)):
        if kind is int and parameter.default is Parameter.empty:
            raise StoreError(f"{name}: none named. Pick one on the page.")
        return "" if parameter.default is Parameter.empty and kind is str else parameter.default
    if kind in (str, str | None):
        if not isinstance(value, str):
            raise StoreError(f"{name}: seen {type(value).__name__}, expected a text.")
        if len(value) > LONGEST_TEXT:
            raise StoreError(f"{name}: {len(value):,} characters; at most {LONGEST_TEXT:,} are looked at.")
        return value
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{name}: seen {seen(value)}, expected a whole number.") from error
