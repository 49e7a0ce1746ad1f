"""The registry of detectors: one entry a flag, one or two detectors an entry.

A detector is a function registered by the flag's name; adding one is a new function in a family's file (or a
file of the user's own) and its test. Its keyword-only arguments are the flag's thresholds:

    @population_flag("very_short", family="text", severity="info", meaning="few sampled tokens")
    def very_short(
        population: Population, *, min_tokens: Annotated[int, "sampled tokens that are enough"] = 3
    ) -> dict[int, list[Flag]]: ...
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from rollout_traces.batch import SPLITS
from rollout_traces.errors import ConfigError
from rollout_traces.flags.base import Flag, Severity
from rollout_traces.packed_batch import PackedBatch
from rollout_traces.settings.run_settings import CONFIG_KEY, FLAG_PARAMETERS

PopulationDetector = Callable[..., Mapping[int, Sequence[Flag]]]
"""`(population, **thresholds)` gives row -> flags for the rows that have any."""
RowDetector = Callable[..., Iterable[Flag]]
"""`(traced_row, **thresholds)` gives the row's flags."""
AnyDetector = TypeVar("AnyDetector", bound=Callable[..., Any])

ALERT_ABOVE = "alert_above"
"""The parameter that every flag has: `<flag>.alert_above` is the share of rollouts that a rise has to pass to be an alert, None: never."""


@dataclass(frozen=True)
class Parameter:
    """A threshold of a flag.

    Attributes:
        name: its name; set by `<flag>.<name>`.
        default: what it is unless set.
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


@dataclass(frozen=True, eq=False)
class FlagSpec:
    """A registered flag.

    Attributes:
        name: the flag's name.
        family: which file it belongs to.
        severity: its severity.
        meaning: one sentence: when it fires.
        population: finds it on all rows without text, or None.
        row: finds it on a decoded row, or None.
        on_request: off until one of its thresholds is set, because of its cost.
        splits: the splits it makes sense on.
        explained_by: flags of the same row (of the same turn, where both name one) that are its cause.
        of_group: it speaks of the group, and is drawn there.
    """

    name: str
    family: str
    severity: Severity
    meaning: str
    population: Detector | None = None
    row: Detector | None = None
    on_request: bool = False
    splits: tuple[str, ...] = SPLITS
    explained_by: tuple[str, ...] = ()
    of_group: bool = False

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The thresholds of all its detectors, each once."""
        seen = {p.name: p for form in (self.population, self.row) if form for p in form.parameters}
        return tuple(seen.values())


REGISTRY: dict[str, FlagSpec] = {}
"""Every known flag by name, in order of registration."""


def population_flag(
    name: str,
    *,
    family: str,
    severity: Severity,
    meaning: str,
    needs: tuple[str, ...] = (),
    on_request: bool = False,
    splits: tuple[str, ...] = SPLITS,
    explained_by: tuple[str, ...] = (),
    of_group: bool = False,
) -> Callable[[PopulationDetector], PopulationDetector]:
    """Registers a detector that sees all rows without their text.

    Args:
        name: the flag's name, snake case.
        family: `mask`, `text`, `policy`, `group`, or a word of the user's own.
        severity: `error`, `warn` or `info`.
        meaning: one sentence: when it fires.
        needs: inputs without which it is off.
        on_request: off until one of its thresholds is set.
        splits: the splits it makes sense on.
        explained_by: flags of the same row that are its cause: it is nested under them.
        of_group: it speaks of the group.

    Raises:
        ConfigError: the name is taken.
    """

    spec = FlagSpec(name, family, severity, meaning, None, None, on_request, splits, explained_by, of_group)
    return _registers(name, needs, lambda form: replace(spec, population=form))


def row_flag(
    name: str,
    *,
    family: str,
    severity: Severity,
    meaning: str,
    needs: tuple[str, ...] = (),
    on_request: bool = False,
    splits: tuple[str, ...] = SPLITS,
    explained_by: tuple[str, ...] = (),
    of_group: bool = False,
) -> Callable[[RowDetector], RowDetector]:
    """Registers a detector that sees one decoded rollout; arguments as in `population_flag`.

    A flag may have both: what the row detector says of a traced rollout then stands instead of what the
    population detector said of it.
    """

    spec = FlagSpec(name, family, severity, meaning, None, None, on_request, splits, explained_by, of_group)
    return _registers(name, needs, lambda form: replace(spec, row=form))


def make_flag(
    name: str, message: str, *, turn: int | None = None, start: int | None = None, stop: int | None = None
) -> Flag:
    """A flag with its registered severity; positions may be numpy integers."""
    return Flag(
        name,
        REGISTRY[name].severity,
        message,
        turn=None if turn is None else int(turn),
        start=None if start is None else int(start),
        stop=None if stop is None else int(stop),
    )


def missing_inputs(
    spec: FlagSpec,
    batch: PackedBatch,
    *,
    parameters: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
) -> tuple[str, ...]:
    """What a flag needs and does not have; empty when one of its detectors can work.

    Args:
        spec: the flag.
        batch: the hand-over.
        parameters: thresholds by `<flag>.<parameter>`.
        tokenizer: the run's tokenizer.
    """
    return missing_among(spec, present_inputs(batch, parameters or {}, tokenizer))


def missing_among(spec: FlagSpec, present: frozenset[str]) -> tuple[str, ...]:
    """As `missing_inputs`, of what `present_inputs` found."""
    missing = [_missing(form, present) for form in (spec.population, spec.row) if form is not None]
    return () if not all(missing) else tuple(dict.fromkeys(itertools.chain.from_iterable(missing)))


def present_inputs(batch: PackedBatch, parameters: Mapping[str, Any], tokenizer: Any) -> frozenset[str]:
    """The names that `needs` may speak of, as far as they are there.

    `group_ids` are where two rows share one, `tokens` where any row has some.
    """
    present = {*batch.tracks, *batch.row_floats, *batch.row_lists}
    if len(set(batch.group_ids.tolist())) < batch.n_rows:
        present.add("group_ids")
    if batch.response_mask_source != "loss_mask":
        present.add("response_mask")
    if batch.train_version is not None:
        present.add("train_version")
    if batch.pad_id is not None:
        present.add("pad_id")
    if tokenizer is not None:
        present.add("tokenizer")
    if batch.has_tokens.any():
        present.add("tokens")
    return frozenset(present | {name for name, value in parameters.items() if value is not None})


def can_run(form: Detector | None, present: frozenset[str]) -> bool:
    """True when there is a detector and everything it needs."""
    return form is not None and not _missing(form, present)


def thresholds_of(spec: FlagSpec, form: Detector, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments that a detector is called with: what was set, over its defaults."""
    if not parameters:
        return {}
    names = {f"{spec.name}.{parameter.name}": parameter.name for parameter in form.parameters}
    return {names[key]: value for key, value in parameters.items() if key in names}


def needs_text(name: str) -> bool:
    """Whether only a decoded rollout can carry a flag: it is known of traced rollouts alone."""
    return name in REGISTRY and REGISTRY[name].population is None


def parameters_of_run(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The thresholds that a run was judged with, as its stored config has them.

    Args:
        config: the run's; what it holds under `rollout_traces.flag_parameters` is read.

    Returns:
        Those that are known here: what is no threshold is left out.
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
    """What a threshold ought to be, where the value is not of its default's kind; empty where it is."""
    if not isinstance(default, (int, float)) and default is not None:
        return "" if isinstance(value, Collection) and not isinstance(value, str) else "a list"
    if value is None:
        return "" if default is None else "a number"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if parameter == ALERT_ABOVE:
        return "" if number and 0 <= value <= 1 else "a share from 0 to 1, or None for no alert"
    return "" if number else "a number" if default is not None else "a number, or None"


def _registers(
    name: str, needs: tuple[str, ...], spec_with: Callable[[Detector], FlagSpec]
) -> Callable[[AnyDetector], AnyDetector]:
    """A decorator that registers a flag with a function as its detector."""

    def register(detector: AnyDetector) -> AnyDetector:
        parameters = _parameters_of(detector)
        if any(parameter.name == ALERT_ABOVE for parameter in parameters):
            raise ConfigError(
                f"flag {name!r}: its detector has a parameter {ALERT_ABOVE!r}, which every flag has. "
                "Expected another name."
            )
        _register(spec_with(Detector(detector, needs, parameters)))
        return detector

    return register


def _register(spec: FlagSpec) -> None:
    known = REGISTRY.get(spec.name)
    if known is None:
        REGISTRY[spec.name] = spec
    elif known.row is None and spec.population is None:
        REGISTRY[spec.name] = replace(known, row=spec.row)
    elif known.population is None and spec.row is None:
        REGISTRY[spec.name] = replace(known, population=spec.population)
    else:
        raise ConfigError(f"flag {spec.name!r} is registered already. Expected a name of its own.")


def _parameters_of(detector: Callable[..., Any]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(argument.name, argument.default, _meaning(argument.annotation))
        for argument in inspect.signature(detector, eval_str=True).parameters.values()
        if argument.kind is inspect.Parameter.KEYWORD_ONLY
    )


def _meaning(hint: Any) -> str:
    return cast(str, get_args(hint)[1]) if get_origin(hint) is Annotated else ""


@lru_cache(4096)
def _missing(form: Detector, present: frozenset[str]) -> tuple[str, ...]:
    return tuple(need for need in form.needs if present.isdisjoint(need.split(" or ")))
