"""Runs the registered detectors; one that fails costs its own flag and nothing else."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from rollout_traces.flags.base import Flag, Population, TracedRow
from rollout_traces.flags.registry import (
    REGISTRY,
    Detector,
    FlagSpec,
    can_run,
    missing_among,
    present_inputs,
    thresholds_of,
)
from rollout_traces.packed_batch import PackedBatch
from rollout_traces.transcript import Transcript

log = logging.getLogger("rollout_traces.flags")


@dataclass
class FlagErrors:
    """Detectors that raised. Hand the same one to every call to count over a run.

    Attributes:
        counts: flag name -> times its detector raised.
        first: flag name -> the first error, as text.
    """

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Times any detector raised."""
        return self.counts.total()

    def add(self, name: str, error: Exception) -> None:
        """Counts an error; the first of a flag is also logged."""
        self.counts[name] += 1
        if name not in self.first:
            self.first[name] = f"{type(error).__name__}: {error}"
            log.warning("flag %s could not be computed: %s", name, self.first[name])


def flag_population(
    population: Population, *, only: Collection[str] | None = None, errors: FlagErrors | None = None
) -> dict[int, list[Flag]]:
    """Finds the flags that need no text, on every row.

    Args:
        population: the rollouts and their ledger.
        only: names to look for; None as in `wanted`.
        errors: counts detectors that raise.

    Returns:
        Row -> its flags, for the rows that have any.
    """
    if not population.batch.n_rows:
        return {}
    errors = FlagErrors() if errors is None else errors
    present = present_inputs(population.batch, population.parameters, None)
    found: dict[int, list[Flag]] = {}
    for spec in wanted(population.batch.split, only, population.parameters):
        if spec.population is None or not can_run(spec.population, present):
            continue
        try:
            by_row = spec.population.find(population, **_thresholds(spec, spec.population, population))
            checked = [(_row_number(row, population), _flags_only(flags)) for row, flags in by_row.items()]
        except Exception as error:  # noqa: BLE001 - counted and logged; the other flags go on
            errors.add(spec.name, error)
            continue
        for row, flags in checked:
            found.setdefault(row, []).extend(flags)
    return found


def flag_row(
    row: TracedRow, *, only: Collection[str] | None = None, errors: FlagErrors | None = None
) -> list[Flag]:
    """Finds the flags of one decoded rollout that need its text.

    Args:
        row: the rollout.
        only: names to look for; None as in `wanted`.
        errors: counts detectors that raise.

    Returns:
        Its flags, in order of registration.
    """
    errors = FlagErrors() if errors is None else errors
    present = present_inputs(row.batch, row.parameters, row.tokenizer)
    found: list[Flag] = []
    for spec in wanted(row.batch.split, only, row.parameters):
        if spec.row is None or not can_run(spec.row, present):
            continue
        try:
            found.extend(_flags_only(spec.row.find(row, **_thresholds(spec, spec.row, row))))
        except Exception as error:  # noqa: BLE001 - counted and logged; the other flags go on
            errors.add(spec.name, error)
    return found


def combine(
    population_flags: Sequence[Flag], row_flags: Sequence[Flag], transcript: Transcript
) -> list[Flag]:
    """All flags of a traced rollout, worst first.

    What a row detector says replaces what the population detector of the same flag said; flags without a turn
    learn the one that their first token lies in.

    Args:
        population_flags: what `flag_population` gave for the row.
        row_flags: what `flag_row` gave.
        transcript: the decoded row.
    """
    of_rows = {flag.name for flag in row_flags}
    kept = [flag for flag in population_flags if flag.name not in of_rows]
    order = ("error", "warn", "info")
    worst_first = sorted([*kept, *row_flags], key=lambda flag: order.index(flag.severity))
    return [_with_turn(flag, transcript) for flag in worst_first]


def off_flags(
    batch: PackedBatch,
    *,
    only: Collection[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
) -> dict[str, tuple[str, ...]]:
    """The flags that cannot be looked for, and what each of them lacks.

    Args:
        batch: the hand-over.
        only: names to look for; None as in `wanted`.
        parameters: thresholds by `<flag>.<parameter>`.
        tokenizer: the run's tokenizer.

    Returns:
        Flag name -> missing batch keys, `tokenizer`, or `<flag>.<parameter>`.
    """
    present = present_inputs(batch, parameters or {}, tokenizer)
    return dict(_off(tuple(wanted(batch.split, only, parameters or {})), present))


@lru_cache(64)
def _off(specs: tuple[FlagSpec, ...], present: frozenset[str]) -> Mapping[str, tuple[str, ...]]:
    """A run's steps mostly have the same inputs: what is off is found out once."""
    missing = {spec.name: missing_among(spec, present) for spec in specs}
    return {name: keys for name, keys in missing.items() if keys}


def wanted(split: str, only: Collection[str] | None, parameters: Mapping[str, Any]) -> Sequence[FlagSpec]:
    """The flags to look for on a split, in order of registration.

    Args:
        split: `rollout` or `eval-rollout`.
        only: their names; None for all, of those on request the ones that a threshold is set of.
        parameters: thresholds by `<flag>.<parameter>`.
    """
    requested = frozenset(key.partition(".")[0] for key in parameters)
    return _wanted(tuple(REGISTRY.values()), split, None if only is None else frozenset(only), requested)


@lru_cache(64)
def _wanted(
    specs: tuple[FlagSpec, ...], split: str, only: frozenset[str] | None, requested: frozenset[str]
) -> tuple[FlagSpec, ...]:
    def is_named(spec: FlagSpec) -> bool:
        return spec.name in only if only is not None else not spec.on_request or spec.name in requested

    return tuple(spec for spec in specs if split in spec.splits and is_named(spec))


def _thresholds(spec: FlagSpec, form: Detector, seen: Population | TracedRow) -> dict[str, Any]:
    return thresholds_of(spec, form, seen.parameters)


def _flags_only(found: Iterable[Flag]) -> list[Flag]:
    flags = list(found)
    for flag in flags:
        if not isinstance(flag, Flag):
            raise TypeError(f"the detector gave {type(flag).__name__}, expected Flag")
    return flags


def _row_number(row: int, population: Population) -> int:
    if not 0 <= row < population.batch.n_rows:
        raise IndexError(f"the detector gave row {row} of {population.batch.n_rows}")
    return int(row)


def _with_turn(flag: Flag, transcript: Transcript) -> Flag:
    if not len(transcript.tokens):
        return replace(flag, start=None, stop=None)
    if flag.turn is not None or flag.start is None:
        return flag
    turns = enumerate(transcript.turns)
    turn = next((index for index, turn in turns if turn.start <= flag.start < turn.stop), None)
    return replace(flag, turn=turn)
