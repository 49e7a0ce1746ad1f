"""The registry of flags: one entry a flag, one or two detectors an entry.

A detector is a function of the flag's name; adding one is a new function in a family's file (or a
file of the user's own) and its test. Its keyword-only arguments are the flag's thresholds:

    @population_flag(severity="info", meaning="few sampled tokens")
    def very_short(
        population: Population, *, min_tokens: Annotated[int, "sampled tokens that are enough"] = 3
    ) -> Iterator[tuple[int, Flag]]: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

import numpy as np

from rollout_traces.errors import ConfigError
from rollout_traces.model.batch import SPLITS
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.transcript import Flag, Severity
from rollout_traces.settings.run_settings import CONFIG_KEY, FLAG_PARAMETERS


def counted(n: int, noun: str) -> str:
    """Writes `1 token`, `2 tokens`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def as_arrays(flags_by_row: Mapping[int, Sequence[Flag]], n_rows: int) -> np.ndarray:
    """Makes the ledger's `flags` column: object [B] of tuples of names."""
    column = np.empty(n_rows, object)
    column[:] = [()] * n_rows
    for row, flags in flags_by_row.items():
        column[row] = tuple(dict.fromkeys(flag.name for flag in flags))
    return column


PopulationDetector = Callable[..., Iterable[tuple[int, Flag]]]
"""`(population, **thresholds)` gives flags, each with its row."""
RowDetector = Callable[..., Iterable[Flag]]
"""`(traced_row, **thresholds)` gives the row's flags."""
AnyDetector = TypeVar("AnyDetector", bound=Callable[..., Any])

ALERT_ABOVE = "alert_above"
"""The parameter that every flag has: `<flag>.alert_above` is the share of rollouts that a rise has to pass to be an alert, None: never."""


@dataclass(frozen=True)
class Parameter:
    """A threshold of a flag.

    Attributes:
        name: set by `<flag>.<name>`.
        default: its value unless set.
        meaning: one phrase with the unit.
    """

    name: str
    default: Any
    meaning: str


@dataclass(frozen=True, eq=False)
class Detector:
    """One way to find a flag.

    Attributes:
        find: the function.
        needs: what it cannot do without: canonical batch keys, `tokenizer`, or `<flag>.<parameter>` for
            a threshold that has no sensible default; of `a or b` one is enough.
        parameters: its thresholds.
    """

    find: Callable[..., Any]
    needs: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    def missing(self, present: Collection[str]) -> tuple[str, ...]:
        """Names what it needs and does not have, see `present_inputs`."""
        return tuple(need for need in self.needs if not any(name in present for name in need.split(" or ")))


@dataclass(frozen=True, eq=False)
class FlagSpec:
    """The one description of a flag.

    Attributes:
        name: snake case.
        family: which file it belongs to.
        meaning: one sentence: when it fires.
        severity: `error`, `warn` or `info`.
        on_request: off until one of its thresholds is set, because of its cost.
        splits: the splits it makes sense on.
        explained_by: flags of the same row (of the same turn, where both name one) that are its cause.
        of_group: it speaks of the group, and is drawn there.
        given: the column that it is computed from; empty for none.
        follows: columns, with a value behind where it is of one, that it is a plain consequence of; `*` is any value.
        population: finds it on all rows without text, or None.
        row: finds it on a decoded row, or None.
    """

    name: str
    family: str
    meaning: str
    severity: Severity = "warn"
    on_request: bool = False
    splits: tuple[str, ...] = SPLITS
    explained_by: tuple[str, ...] = ()
    of_group: bool = False
    given: str = ""
    follows: tuple[str, ...] = ()
    population: Detector | None = None
    row: Detector | None = None

    @property
    def detectors(self) -> tuple[Detector, ...]:
        """The ways to find it, one or two."""
        return tuple(form for form in (self.population, self.row) if form)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The thresholds of all its detectors, each once."""
        return tuple({p.name: p for form in self.detectors for p in form.parameters}.values())

    def missing(self, present: Collection[str]) -> tuple[str, ...]:
        """Names what it needs and does not have; empty when one of its detectors can work."""
        lacking = [form.missing(present) for form in self.detectors]
        return tuple(dict.fromkeys(name for names in lacking for name in names)) if all(lacking) else ()


REGISTRY: dict[str, FlagSpec] = {}
"""Every known flag by name, in order of registration."""


def population_flag(
    name: str = "",
    *,
    meaning: str,
    family: str = "",
    severity: Severity = "warn",
    needs: tuple[str, ...] = (),
    on_request: bool = False,
    splits: tuple[str, ...] = SPLITS,
    explained_by: tuple[str, ...] = (),
    of_group: bool = False,
    given: str = "",
    follows: tuple[str, ...] = (),
) -> Callable[[PopulationDetector], PopulationDetector]:
    """Registers a detector that sees all rows without their text; for the other arguments see `FlagSpec`.

    Args:
        name: the flag's name, snake case; the function's by default.
        family: `mask`, `text`, `policy`, `group`, or a word of the user's own; the function's file by default.
        needs: inputs without which it is off.

    Raises:
        ConfigError: the name is taken.
    """
    spec = FlagSpec(
        name, family, meaning, severity, on_request, splits, explained_by, of_group, given, follows
    )
    return _registers(spec, "population", needs)


def row_flag(
    name: str = "",
    *,
    meaning: str,
    family: str = "",
    severity: Severity = "warn",
    needs: tuple[str, ...] = (),
    on_request: bool = False,
    splits: tuple[str, ...] = SPLITS,
    explained_by: tuple[str, ...] = (),
    of_group: bool = False,
    given: str = "",
    follows: tuple[str, ...] = (),
) -> Callable[[RowDetector], RowDetector]:
    """Registers a detector that sees one decoded rollout; arguments as in `population_flag`."""
    spec = FlagSpec(
        name, family, meaning, severity, on_request, splits, explained_by, of_group, given, follows
    )
    return _registers(spec, "row", needs)


def also_on_rows(name: str, *, needs: tuple[str, ...] = ()) -> Callable[[RowDetector], RowDetector]:
    """Registers a second detector of a known flag: what it says of a traced rollout stands instead of the first one's."""
    return _registers(REGISTRY[name], "row", needs)


def make_flag(
    name: str, message: str, *, turn: int | None = None, start: int | None = None, stop: int | None = None
) -> Flag:
    """Makes a flag with its registered severity; positions may be numpy integers."""
    places = (None if place is None else int(place) for place in (turn, start, stop))
    return Flag(name, REGISTRY[name].severity, message, *places)


def present_inputs(batch: PackedBatch, parameters: Mapping[str, Any], tokenizer: Any) -> frozenset[str]:
    """Names what of all that `needs` may speak of is there.

    `group_ids` are where two rows share one, `tokens` where any row has some.
    """
    there = {
        "group_ids": len(set(batch.group_ids.tolist())) < batch.n_rows,
        "response_mask": batch.response_mask_source != "loss_mask",
        "train_version": batch.train_version is not None,
        "pad_id": batch.pad_id is not None,
        "tokenizer": tokenizer is not None,
        "tokens": batch.has_tokens.any(),
        **{name: value is not None for name, value in parameters.items()},
    }
    given = {*batch.tracks, *batch.row_floats, *batch.row_lists}
    return frozenset(given | {name for name, is_there in there.items() if is_there})


def needs_text(name: str) -> bool:
    """Tells whether only a decoded rollout can carry a flag: it is known of traced rollouts alone."""
    return name in REGISTRY and REGISTRY[name].population is None


def parameters_of_run(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Reads the thresholds that a run was judged with; what is no threshold here is left out.

    Args:
        config: the run's; what it holds under `rollout_traces.flag_parameters` is read.
    """
    own = (config or {}).get(CONFIG_KEY)
    stored = own.get(FLAG_PARAMETERS) if isinstance(own, Mapping) else None
    known = {}
    for key, value in stored.items() if isinstance(stored, Mapping) else ():
        try:
            check_parameters({str(key): value})
        except ConfigError:
            continue
        known[str(key)] = value
    return known


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuses thresholds that no flag has, and values that are none.

    Raises:
        ConfigError: a name is not `<flag>.<parameter>` of a registered flag, or a value is of another kind
            than the default; the text lists what there is.
    """
    for key, value in parameters.items():
        name, _, parameter = key.partition(".")
        if name not in REGISTRY:
            raise ConfigError(
                f"flag threshold {key!r}={value!r}: no flag {name!r}. Flags: {', '.join(REGISTRY)}."
            )
        defaults = {p.name: p.default for p in REGISTRY[name].parameters} | {ALERT_ABOVE: None}
        if parameter not in defaults:
            known = ", ".join(f"{name}.{p}" for p in defaults)
            raise ConfigError(
                f"flag threshold {key!r}={value!r}: {name} has no parameter {parameter!r}. It has {known}."
            )
        expected = _expected(parameter, defaults[parameter], value)
        if expected:
            raise ConfigError(f"flag threshold {key!r}: seen {value!r}. Expected {expected}.")


def _expected(parameter: str, default: Any, value: Any) -> str:
    """Says what a threshold ought to be, where the value is not of its default's kind; empty where it is."""
    if not isinstance(default, (int, float)) and default is not None:
        return "" if isinstance(value, Collection) and not isinstance(value, str) else "a list"
    if value is None:
        return "" if default is None else "a number"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if parameter == ALERT_ABOVE:
        return "" if number and 0 <= value <= 1 else "a share from 0 to 1, or None for no alert"
    return "" if number else "a number" if default is not None else "a number, or None"


def _registers(
    spec: FlagSpec, form: Literal["population", "row"], needs: tuple[str, ...]
) -> Callable[[AnyDetector], AnyDetector]:
    """Makes a decorator that registers a function as a detector of a flag."""

    def register(function: AnyDetector) -> AnyDetector:
        own = spec.name or function.__name__
        parameters = _parameters_of(function)
        if any(parameter.name == ALERT_ABOVE for parameter in parameters):
            raise ConfigError(
                f"flag {own!r}: its detector has a parameter {ALERT_ABOVE!r}, which every flag has. "
                "Expected another name."
            )
        family = spec.family or function.__module__.rpartition(".")[2]
        known = REGISTRY.get(own) or replace(spec, name=own, family=family)
        if getattr(known, form) is not None:
            raise ConfigError(f"flag {own!r} is registered already. Expected a name of its own.")
        changed: dict[str, Any] = {form: Detector(function, needs, parameters)}
        REGISTRY[own] = replace(known, **changed)
        return function

    return register


def _parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(argument.name, argument.default, _meaning(argument.annotation))
        for argument in inspect.signature(function, eval_str=True).parameters.values()
        if argument.kind is inspect.Parameter.KEYWORD_ONLY
    )


def _meaning(hint: Any) -> str:
    return cast(str, get_args(hint)[1]) if get_origin(hint) is Annotated else ""
