"""Every option of a logger, once: all ways to set one, and what the worker gets, derive from these fields.

`LoggerKeywords` is generated from them by `python -m tests.settings.test_logger_options`. One reader takes environment
variables, `ROLLOUT_TRACES_<NAME>`, for every kind of settings. One filter reads which keys are asked for: `full`,
names of several patterns, patterns and `!` patterns.
"""

from __future__ import annotations

import math
import os
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import urlencode, urlsplit

import orjson

from rollout_traces.errors import ConfigError

Options = TypeVar("Options", bound="LoggerOptions")
HERE: Mapping[str, bool] = {"here": True}
"""Marks a field that only the process of the logger needs, or that the worker learns otherwise."""
SECRET: Mapping[str, bool] = {"here": True, "secret": True}
"""Marks a field that is written nowhere."""


@dataclass
class LoggerOptions:
    """The options of a `RolloutLogger`.

    A new option is a field here, with its line below: `RolloutLogger(...)`, the arguments of every hook,
    `stats_logger.trackio` of a config, `ROLLOUT_TRACES_<NAME>` and the manifest that the worker reads take it
    from there.

    Attributes:
        project: Trackio project.
        name: run name; Trackio makes one up when None.
        max_rollout_traces_per_step: rollouts that become traces, per step and split; 0 or less: none.
        selection: how that cap is spent: `portfolio`, `fixed_prompts`, `first`, `random`, `extremes`, `all` or, in
            Python, a callable; evaluation has `fixed_prompts` where training has `portfolio`.
        space_id: Hugging Face Space to log to, `user/name`.
        private: whether a Space that has to be created is private.
        server_url: self-hosted Trackio server to log to, perhaps with its write token.
        inspector_url: http or https address under which people open the inspector: the run's config and each trace
            lead there; where runs log to an inspector, its own by default. None: no address is written.
        resume: `allow`, `must` or `never`, for a new run.
        ledger: whether every step's ledger of all rows is kept.
        run_settings: what else the run declares, fields of `RunSettings`: clip bounds, a success threshold.
        reward_range: smallest and largest reward, for display.
        metric_ranges: name -> min, max and perhaps invert, for display.
        metric_keys: which metrics of a step are logged: `default`, `full`, or patterns (docs/metrics.md).
        flag_parameters: thresholds of flags by `<flag>.<parameter>`, `<flag>.alert_above` among them
            (docs/flags.md).
        all_rows_folder: folder that gets one JSON file a step and split with the text of every rollout,
            `{"columns": [...], "data": [[...]]}`; None: no such file.
        alert_webhook: http or https address that gets every alert as JSON (docs/logging.md). It is a secret: it
            reaches the worker through its environment, and is written nowhere.
        max_disk_gb: gigabytes of the project's database above which steps keep their ledger only; None: no limit.
        chat_template: the Jinja template that prompts are rendered with, where it is not the tokenizer's own.
        chat_template_kwargs: further arguments of the template, as `{"enable_thinking": False}`.
        worker: `process`, or `thread` where no process can be started. A callable selection, a redact hook
            or template arguments that JSON cannot hold work in a thread only.
        per_rank: under torch.distributed, one run a rank in one group; otherwise all ranks hand over to
            rank 0's run and share one selection with one cap.
        max_bytes_per_step: budget of one hand-over; above it the tokens of some groups are left out.
        max_spool_bytes: bytes that may wait on disk; above it tokens are left out.
        write_seconds: seconds that a call waits until its record is on disk; after that it is pending in memory, which a
            kill loses.
        max_step_bytes: memory of the worker for the tokens of one open step; above it those of a random sample of
            its groups are kept, and probabilities say so.
        quiet_seconds: seconds without rollouts after which an open step is closed, and at least three times the
            longest pause seen within a step; 0: never. It is off where closes are announced.
        join_seconds: seconds that a step which could be closed waits for awaited joins.
        announces_closes: every step is closed by `close_step`: neither the next step nor a quiet time closes it.
            For asynchronous trainers, whose steps overlap, and for hooks.
        not_secret: names of the config whose values are stored as they are though they look like secrets, which are
            stored as `***`: `token`, or `data.token` for one place (docs/logging.md).
        quiet: no line says where the run can be opened.
    """

    project: str | None = field(default=None, metadata=HERE)
    name: str | None = field(default=None, metadata=HERE)
    max_rollout_traces_per_step: int = 0
    selection: str | Callable[..., Any] = "portfolio"
    space_id: str | None = field(default=None, metadata=HERE)
    private: bool | None = field(default=True, metadata=HERE)
    server_url: str | None = field(default=None, repr=False, metadata=SECRET)
    inspector_url: str | None = None
    resume: str = field(default="allow", metadata=HERE)
    ledger: bool = True
    run_settings: dict[str, Any] = field(default_factory=dict, metadata=HERE)
    reward_range: list[float] | None = field(default=None, metadata=HERE)
    metric_ranges: dict[str, Any] = field(default_factory=dict, metadata=HERE)
    metric_keys: Any = "default"
    flag_parameters: dict[str, Any] = field(default_factory=dict)
    all_rows_folder: str | None = None
    alert_webhook: str | None = field(default=None, repr=False, metadata=SECRET)
    max_disk_gb: float | None = None
    chat_template: str | None = field(default=None, metadata=HERE)
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict, metadata=HERE)
    worker: str = field(default="process", metadata=HERE)
    per_rank: bool = field(default=False, metadata=HERE)
    max_bytes_per_step: int = field(default=128 << 20, metadata=HERE)
    max_spool_bytes: int = field(default=8 << 30, metadata=HERE)
    write_seconds: float = field(default=0.5, metadata=HERE)
    max_step_bytes: int = 1 << 30
    quiet_seconds: float = 60.0
    join_seconds: float = 600.0
    announces_closes: bool = field(default=False, metadata=HERE)
    not_secret: list[str] = field(default_factory=list, metadata=HERE)
    quiet: bool = field(default=False, metadata=HERE)

    @classmethod
    def of(cls: type[Options], **given: Any) -> Options:
        """The options with what was given; None leaves a default.

        Raises:
            TypeError: there is no such option.
        """
        names = option_names(cls)
        for name in given:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                meant = f" Meant {near[0]!r}?" if near else ""
                raise TypeError(f"{name!r} is no option of a logger.{meant}")
        return cls(**{name: value for name, value in given.items() if value is not None})


def option_names(options: type = LoggerOptions) -> tuple[str, ...]:
    """The names of all options."""
    return tuple(item.name for item in fields(options))


def secret_names() -> frozenset[str]:
    """The options that are written nowhere."""
    return frozenset(item.name for item in fields(LoggerOptions) if item.metadata.get("secret"))


def for_worker(options: LoggerOptions) -> dict[str, Any]:
    """The options that the worker reads from the manifest."""
    return {
        item.name: getattr(options, item.name)
        for item in fields(LoggerOptions)
        if not item.metadata.get("here")
    }


def default_of(name: str) -> Any:
    """The default of an option."""
    item = LoggerOptions.__dataclass_fields__[name]
    return item.default if item.default_factory is MISSING else item.default_factory()


def page_address(inspector: str, **state: object) -> str:
    """The address of a page.

    Args:
        inspector: an inspector's address, or one of its pages, to which `state` is added.
        **state: what is shown; None is left out.
    """
    known = urlencode({name: value for name, value in state.items() if value is not None})
    return f"{inspector}&{known}" if urlsplit(inspector).query else f"{inspector}/?{known}"


class LoggerKeywords(TypedDict, total=False):
    """Keyword arguments of a logger, as a type for editors and type checkers; None leaves a default."""

    max_rollout_traces_per_step: int | None
    selection: str | Callable[..., Any] | None
    space_id: str | None
    private: bool | None
    server_url: str | None
    inspector_url: str | None
    resume: str | None
    ledger: bool | None
    run_settings: dict[str, Any] | None
    reward_range: list[float] | None
    metric_ranges: dict[str, Any] | None
    metric_keys: Any
    flag_parameters: dict[str, Any] | None
    all_rows_folder: str | None
    alert_webhook: str | None
    max_disk_gb: float | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    worker: str | None
    per_rank: bool | None
    max_bytes_per_step: int | None
    max_spool_bytes: int | None
    write_seconds: float | None
    max_step_bytes: int | None
    quiet_seconds: float | None
    join_seconds: float | None
    announces_closes: bool | None
    not_secret: list[str] | None
    quiet: bool | None


@dataclass
class HookOptions(LoggerOptions):
    """The options of the `RolloutLogger` that a hook makes, and the hook's own; each can be an environment variable.

    Attributes:
        check_only: look at the first rollouts as `rollout-traces check` does, and end the script; nothing is logged.
    """

    check_only: bool = field(default=False, metadata=HERE)


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
    hints = get_type_hints(settings)
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
    choices = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((get_origin(choice) or choice for choice in choices if choice is not types.NoneType), Any)


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
    optional = isinstance(hint, types.UnionType) and types.NoneType in get_args(hint)
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


FULL = "full"
SLIM = "slim"
SLIM_DENIES = ("*/min", "*/max", "*/std", "*/p[0-9]*", "*_min", "*_max", "timeperf/*", "*/timeperf/*")
NAMED: Mapping[str, tuple[str, ...]] = {FULL: ("*",), SLIM: ("*", *(f"!{glob}" for glob in SLIM_DENIES))}
"""Names that stand for patterns."""


class KeyFilter:
    """Keeps the keys that were asked for.

    Args:
        keys: `fnmatch` patterns of keys to keep, those that start with `!` of keys to leave out, or names that
            stand for patterns. Only patterns to leave out: everything else is kept.
        named: name -> the patterns that it stands for.
        setting: what to call the keys in an error.

    Raises:
        ConfigError: neither a pattern nor a list of them.
    """

    def __init__(
        self,
        keys: str | Sequence[str] = FULL,
        named: Mapping[str, Sequence[str]] = NAMED,
        setting: str = "keys",
    ) -> None:
        given = [keys] if isinstance(keys, str) else list(keys)
        if not given or not all(isinstance(name, str) and name for name in given):
            expected = ", ".join(map(repr, named))
            raise ConfigError(f"{setting}: seen {keys!r}. Expected {expected}, or patterns such as 'loss/*'.")
        patterns = [pattern for name in given for pattern in named.get(name, (name,))]
        self._denied = tuple(pattern[1:] for pattern in patterns if pattern.startswith("!"))
        self._kept = tuple(pattern for pattern in patterns if not pattern.startswith("!")) or ("*",)

    def __call__(self, key: str) -> bool:
        """Tells whether a key is kept."""
        if any(fnmatchcase(key, pattern) for pattern in self._denied):
            return False
        return any(pattern == "*" or fnmatchcase(key, pattern) for pattern in self._kept)

    def keep(self, values: Mapping[str, float]) -> dict[str, float]:
        """The values whose keys are kept."""
        return {key: value for key, value in values.items() if self(key)}
