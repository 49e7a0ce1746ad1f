"""Runs the registered detectors, and says how often they fired; one that fails costs its own flag and nothing else.

A detector gets a whole population without text, or one decoded rollout.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from rollout_traces.flags.registry import REGISTRY, Detector, FlagSpec, present_inputs
from rollout_traces.ledger.build import normalise_stop_reason
from rollout_traces.ledger.columns import Ledger
from rollout_traces.ledger.groups import episode_numbers
from rollout_traces.ledger.tokens import MaskedTokens
from rollout_traces.model.packed_batch import ASSUMED_MASK, PackedBatch
from rollout_traces.model.transcript import Flag, Transcript, Turn
from rollout_traces.settings.run_settings import RunSettings

RowFlags = Iterator[tuple[int, Flag]]
"""Flags, each with its row."""


@dataclass(frozen=True, eq=False)
class Runs:
    """R maximal runs of marked tokens, in order; none crosses a row's edge.

    Attributes:
        rows: int64 [R], ascending; the row of each run.
        starts: int64 [R]; flat position of its first token.
        stops: int64 [R]; flat position one past its last.
        offsets: int64 [B + 1]; where rows begin.
    """

    rows: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, mask_N: np.ndarray, offsets: np.ndarray) -> Runs:
        """Finds the runs of True.

        Args:
            mask_N: bool [N].
            offsets: int64 [B + 1].
        """
        n = len(mask_N)
        edges = np.empty(n + 1, bool)
        edges[0] = edges[n] = True
        np.not_equal(mask_N[1:], mask_N[:-1], out=edges[1:n])
        edges[offsets] = True
        at = edges.nonzero()[0]
        marked = mask_N[at[:-1]] if n else np.zeros(0, bool)
        starts, stops = at[:-1][marked], at[1:][marked]
        return cls(offsets.searchsorted(starts, side="right") - 1, starts, stops, offsets)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [R]: tokens of each run."""
        return self.stops - self.starts

    def first_of_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that have a run, and the index of the first run of each, both [rows with a run]."""
        rows, first = np.unique(self.rows, return_index=True)
        return rows, first

    def last_of_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that have a run, and the index of the last run of each, both [rows with a run]."""
        rows, counts = np.unique(self.rows, return_counts=True)
        return rows, np.cumsum(counts) - 1

    def local(self, run: int) -> tuple[int, int]:
        """Start and stop of a run in its row's own token positions."""
        base = self.offsets[self.rows[run]]
        return int(self.starts[run] - base), int(self.stops[run] - base)


@dataclass(frozen=True, eq=False)
class Population:
    """The input of a population detector: all rows of a hand-over, no text.

    Attributes:
        ledger: their ledger, before flags.
        parameters: thresholds by `<flag>.<parameter>`, over the detectors' defaults.
        settings: what the run declares; the reward range is read.
    """

    batch: PackedBatch
    ledger: Ledger
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: RunSettings = field(default_factory=RunSettings)

    @cached_property
    def sampled_runs(self) -> Runs:
        """Runs of sampled tokens, none across two rows."""
        return Runs.of(self.batch.response_mask, self.batch.offsets)

    @cached_property
    def sampled(self) -> MaskedTokens:
        """The tokens that the policy sampled."""
        return MaskedTokens.sampled(self.batch)

    @cached_property
    def groups(self) -> tuple[np.ndarray, ...]:
        """The rows of each group of two or more episodes, int64 [G] each."""
        group = self.ledger.get("group")
        order = group.argsort(kind="stable")
        by_group = group[order]
        new = (by_group[1:] != by_group[:-1]).nonzero()[0] + 1
        if len(new) + 1 >= len(group):  # each row is a group
            return ()
        parts = np.split(order, new)
        episodes = episode_numbers(self.ledger)
        return tuple(rows for rows in parts if len(set(episodes[rows].tolist())) > 1)


@dataclass(frozen=True, eq=False)
class TracedRow:
    """The input of a row detector: one decoded rollout.

    Attributes:
        batch: the hand-over it came from.
        row: its row there.
        parameters: thresholds by `<flag>.<parameter>`, over the detectors' defaults.
        tokenizer: the run's tokenizer, for detectors that encode again; None when there is none.
    """

    transcript: Transcript
    batch: PackedBatch
    row: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None

    @property
    def stop_reason(self) -> str | None:
        """Why sampling stopped, normalised as in the ledger; None when unknown."""
        reason = self.batch.row_value("stop_reasons", self.row)
        return None if reason is None else normalise_stop_reason(reason)

    def written_turns(self) -> Iterator[tuple[int, Turn]]:
        """The assistant's turns that the policy wrote, and their indices: those with sampled tokens; of a row without tokens all."""
        for index, turn in enumerate(self.transcript.turns):
            if turn.role == "assistant" and (turn.n_sampled or not len(self.transcript.tokens)):
                yield index, turn

    @property
    def sampling_known(self) -> bool:
        """True when the response mask is more than the loss mask by another name."""
        assumed = self.batch.not_given.get(ASSUMED_MASK)
        if assumed is not None:
            return not assumed[self.row]
        return self.batch.response_mask_source != "loss_mask"


log = logging.getLogger("rollout_traces.flags")

Found = TypeVar("Found")


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
    batch = population.batch
    if not batch.n_rows:
        return {}

    def run(detector: Detector, thresholds: Mapping[str, Any]) -> list[tuple[int, Flag]]:
        pairs = list(detector.find(population, **thresholds))
        if wrong := [row for row, _ in pairs if not 0 <= row < batch.n_rows]:
            raise IndexError(f"the detector gave row {wrong[0]} of {batch.n_rows}")
        flags = _flags_only(flag for _, flag in pairs)
        return [(int(row), flag) for (row, _), flag in zip(pairs, flags, strict=True)]

    specs = wanted(batch.split, only, population.parameters)
    present = present_inputs(batch, population.parameters, None)
    ready = _ready([(spec, spec.population) for spec in specs], present, population.parameters)
    found: dict[int, list[Flag]] = {}
    for pairs in _each(ready, errors, run):
        for row, flag in pairs:
            found.setdefault(row, []).append(flag)
    return found


@dataclass(frozen=True, eq=False)
class ReadyDetector:
    """A detector whose inputs are there, with the thresholds that were set."""

    name: str
    detector: Detector
    thresholds: Mapping[str, Any]


def row_detectors(
    batch: PackedBatch, parameters: Mapping[str, Any], tokenizer: Any, only: Collection[str] | None = None
) -> Sequence[ReadyDetector]:
    """The detectors that can look at the decoded rows of a hand-over; arguments as of `off_flags`."""
    specs = wanted(batch.split, only, parameters)
    present = present_inputs(batch, parameters, tokenizer)
    return _ready([(spec, spec.row) for spec in specs], present, parameters)


def flag_row(
    row: TracedRow,
    *,
    only: Collection[str] | None = None,
    errors: FlagErrors | None = None,
    ready: Sequence[ReadyDetector] | None = None,
) -> list[Flag]:
    """Finds the flags of one decoded rollout that need its text; arguments as of `flag_population`.

    Args:
        ready: what `row_detectors` gave for the row's hand-over, where many of its rows are looked at.

    Returns:
        Its flags, in order of registration.
    """

    def run(detector: Detector, thresholds: Mapping[str, Any]) -> list[Flag]:
        return _flags_only(detector.find(row, **thresholds))

    ready = row_detectors(row.batch, row.parameters, row.tokenizer, only) if ready is None else ready
    return [flag for flags in _each(ready, errors, run) for flag in flags]


def _ready(
    forms: Sequence[tuple[FlagSpec, Detector | None]], present: Collection[str], parameters: Mapping[str, Any]
) -> list[ReadyDetector]:
    ready = []
    for spec, form in forms:
        if form is not None and not form.missing(present):
            names = {f"{spec.name}.{parameter.name}": parameter.name for parameter in form.parameters}
            thresholds = {names[key]: value for key, value in parameters.items() if key in names}
            ready.append(ReadyDetector(spec.name, form, thresholds))
    return ready


def _each(
    ready: Sequence[ReadyDetector],
    errors: FlagErrors | None,
    run: Callable[[Detector, Mapping[str, Any]], Found],
) -> Iterable[Found]:
    """Runs detectors; one that raises is counted."""
    errors = FlagErrors() if errors is None else errors
    for each in ready:
        try:
            yield run(each.detector, each.thresholds)
        except Exception as error:  # noqa: BLE001 - counted and logged; the other flags go on
            errors.add(each.name, error)


def combine(
    population_flags: Sequence[Flag], row_flags: Sequence[Flag], transcript: Transcript
) -> list[Flag]:
    """Puts together all flags of a traced rollout, worst first.

    What a row detector says replaces what the population detector of the same flag said; flags without a turn
    learn the one that their first token lies in.

    Args:
        population_flags: what `flag_population` gave for the row.
        row_flags: what `flag_row` gave.
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
    """Names the flags that cannot be looked for, and what each of them lacks.

    Args:
        only: names to look for; None as in `wanted`.
        parameters: thresholds by `<flag>.<parameter>`.
        tokenizer: the run's tokenizer.

    Returns:
        Flag name -> missing batch keys, `tokenizer`, or `<flag>.<parameter>`.
    """
    present = present_inputs(batch, parameters or {}, tokenizer)
    specs = wanted(batch.split, only, parameters or {})
    return {spec.name: lacking for spec in specs if (lacking := spec.missing(present))}


def wanted(split: str, only: Collection[str] | None, parameters: Mapping[str, Any]) -> list[FlagSpec]:
    """Chooses the flags to look for on a split, in order of registration.

    Args:
        split: `rollout` or `eval-rollout`.
        only: their names; None for all, of those on request the ones that a threshold is set of.
        parameters: thresholds by `<flag>.<parameter>`.
    """
    requested = {key.partition(".")[0] for key in parameters}
    names = {n for n, spec in REGISTRY.items() if not spec.on_request} | requested if only is None else only
    return [spec for name, spec in REGISTRY.items() if split in spec.splits and name in names]


def flag_metrics(
    flags_by_row: Mapping[int, Sequence[Flag]],
    n_rows: int,
    split: str,
    *,
    off: Collection[str] = (),
    random_flags: Mapping[int, Sequence[Flag]] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Computes the shares of rollouts that carry each flag; a flag that is off has no key.

    Args:
        flags_by_row: what `flag_population` found on the step's rows.
        n_rows: rollouts of the step.
        split: `rollout` or `eval-rollout`.
        off: names of flags whose inputs are missing (`off_flags`).
        random_flags: row -> what `flag_row` found, for every traced row that was chosen uniformly at
            random, those without flags included; None when nothing was traced.
        parameters: the thresholds they were looked for with.

    Returns:
        `<split>/flags/<name>_share` over all rows for flags that need no text, and for those that do
        `<split>/flags/<name>_random_share` over the random rows, of which there are
        `<split>/flags/random_share_n`.
    """
    specs = [spec for spec in wanted(split, None, parameters or {}) if spec.name not in off]
    metrics: dict[str, float] = {}
    if n_rows:
        raised = _rows_with(flags_by_row)
        metrics |= {f"{s.name}_share": raised[s.name] / n_rows for s in specs if s.population}
    if random_flags:
        raised, n = _rows_with(random_flags), len(random_flags)
        metrics["random_share_n"] = float(n)
        metrics |= {f"{s.name}_random_share": raised[s.name] / n for s in specs if s.row}
    return {f"{split}/flags/{key}": value for key, value in metrics.items()}


def curves(metrics: Mapping[str, float], raised: set[str]) -> dict[str, float]:
    """Chooses what of a step's metrics is logged: a flag's curve begins at the first step that raised it.

    A dashboard with a flat zero for each flag that never fired is hard to read.

    Args:
        metrics: a step's metrics; keys that are not flag shares stay.
        raised: keys of the flag shares that were above zero so far; those of this step are added.
    """
    raised |= {key for key, share in metrics.items() if "/flags/" in key and share > 0}
    return {key: value for key, value in metrics.items() if "/flags/" not in key or key in raised}


def describe_off(off: Mapping[str, Sequence[str]]) -> str:
    """Says what `off_flags` found, by what is missing; empty when nothing is.

    Args:
        off: flag name -> what it lacks.
    """
    by_key: dict[str, list[str]] = {}
    for name, keys in off.items():
        by_key.setdefault(" or ".join(keys), []).append(name)
    parts = [f"{', '.join(names)} (no {keys})" for keys, names in by_key.items()]
    return f"{'; '.join(parts)}." if parts else ""


def _rows_with(flags_by_row: Mapping[int, Sequence[Flag]]) -> Counter[str]:
    return Counter(name for flags in flags_by_row.values() for name in {flag.name for flag in flags})


def _flags_only(found: Iterable[Flag]) -> list[Flag]:
    flags = list(found)
    for flag in flags:
        if not isinstance(flag, Flag):
            raise TypeError(f"the detector gave {type(flag).__name__}, expected Flag")
    return flags


def _with_turn(flag: Flag, transcript: Transcript) -> Flag:
    if not len(transcript.tokens):
        return replace(flag, start=None, stop=None)
    if flag.turn is not None or flag.start is None:
        return flag
    turns = enumerate(transcript.turns)
    turn = next((index for index, turn in turns if turn.start <= flag.start < turn.stop), None)
    return replace(flag, turn=turn)
