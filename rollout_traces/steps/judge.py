"""A closed step, judged: its ledger, flags, selection, traces, metrics, step summary and alerts.

A pure function of the step, the options, what is stored of it and the run's state so far: it knows no Trackio, no
file, no clock and no lock. A part that fails is counted and left out; the rest of the step is stored.

Of rows that are copied with their ledger, what was stored of them holds: a copy may lack the tokens of some rows, and
a share of an update, or flags, speak of all rows of a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import orjson

from rollout_traces.alarms.alerts import alerts_of
from rollout_traces.alarms.figures import figures_of, scalar_figures
from rollout_traces.alarms.online import Trail, as_plain, judge
from rollout_traces.errors import Warnings
from rollout_traces.flags import REGISTRY
from rollout_traces.flags.detect import (
    FlagErrors,
    Population,
    TracedRow,
    combine,
    curves,
    flag_population,
    flag_row,
    row_detectors,
)
from rollout_traces.flags.registry import as_arrays
from rollout_traces.ledger.build import complete_from_transcripts
from rollout_traces.ledger.columns import COLUMNS, NULL_INT, Ledger, any_known
from rollout_traces.ledger.loss_histogram import loss_histogram, pack
from rollout_traces.metrics import step_histograms, tool_use
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.transcript import Alert, Flag, Transcript
from rollout_traces.settings.logger_options import page_address
from rollout_traces.sink.stored import StoredRow
from rollout_traces.steps.discarded import filtered_details, running_totals
from rollout_traces.steps.open_step import ClosedStep
from rollout_traces.steps.row_reader import Hide, RowReader, details_of, extra_metadata
from rollout_traces.steps.run_state import (
    FIGURES,
    LOGGED,
    RUN_STATE,
    RunState,
    StepOptions,
    StoredStep,
    of_trainer,
)
from rollout_traces.steps.selection import Selected, SelectionRequest, choose, policy_named
from rollout_traces.steps.summary import JudgedRows, JudgedStep, scalars_of, step_summary_of
from rollout_traces.trace.conversion import TraceRecord, rollout_trace

T = TypeVar("T")
LOSS_HISTOGRAM = "loss_histogram"
"""The key of a step summary's details that holds the histogram of its loss tokens."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """The records of a step that are to be stored.

    Attributes:
        traces: of the rows that were chosen.
        summary: the step summary; None where none is kept, or an earlier one is stored.
        scalars: the step's metrics by key; none for a late part.
        histograms: key -> the values behind a histogram.
        alerts: raised by this step.
        state: the run's state after the step.
        rows: the step's ledger, complete.
    """

    traces: Sequence[TraceRecord]
    summary: TraceRecord | None
    scalars: Mapping[str, float]
    histograms: Mapping[str, np.ndarray]
    alerts: Sequence[Alert]
    state: RunState
    rows: Ledger


@dataclass(frozen=True, eq=False)
class Judge:
    """Judges closed steps.

    Attributes:
        options: what to keep.
        reader: reads rows as transcripts.
        counters: what fails is counted here.
        flag_errors: flags that fail are named here.
        checkpoint: called between a step's rows and stages; what it raises is raised, and nothing has happened.
    """

    options: StepOptions
    reader: RowReader
    counters: Counter[str] = field(default_factory=Counter)
    flag_errors: FlagErrors = field(default_factory=FlagErrors)
    checkpoint: Callable[[], None] = lambda: None

    @cached_property
    def _warnings(self) -> Warnings:
        return Warnings(self.counters)

    def __call__(
        self, step: ClosedStep, stored: StoredStep, state: RunState, *, over_disk_limit: bool = False
    ) -> Judgement:
        """Judges a step.

        Args:
            step: all its rollouts.
            stored: what an earlier worker stored of it.
            state: the run's state before it.
            over_disk_limit: the project is above its `max_disk_gb`: no traces.

        Returns:
            What is to be stored.
        """
        self.checkpoint()
        flags, ledger = self._flagged(step)
        self.checkpoint()
        chosen: list[Selected] = []
        prompts = state.prompts.get(step.key.split, {})
        readable = self.reader.readable(step.batch)
        if not over_disk_limit and readable.any():
            chosen = choose_rows(step, ledger, self.options, stored, prompts, self.counters)
        rows, traces = self._traced(
            step,
            JudgedRows(ledger, flags, tokenizer=self.reader.tokenizer),
            [item for item in chosen if readable[item.row]],
        )
        if stored.is_summarised:
            return Judgement(traces, None, {}, {}, (), state, rows.ledger)
        judged = JudgedStep(step, rows, self.options)
        state = _with_prompts(state, step, rows.ledger, traces)
        self.checkpoint()
        scalars = {} if step.key.late else self._scalars(judged, state)
        raised = set(state.raised)
        logged = curves(scalars, raised)
        before = state.trails.get(step.key.split, Trail())
        figures: dict[str, str] = {}
        found: list[Alert] = []
        if not step.key.late:
            trail, found, figures = self._contained(
                "alert_errors", lambda: (before, [], {}), self._alarms, step, rows.ledger, before
            )
            state = replace(
                state,
                raised=frozenset(raised),
                trails={**state.trails, step.key.split: trail},
                totals={**state.totals, **{k: v for k, v in scalars.items() if "/total/" in k}},
            )
        self.checkpoint()
        kept = {RUN_STATE: state.as_text(), **figures}
        summary = self._summary(judged, scalars, kept, over_disk_limit) if self.options.ledger else None
        histograms: dict[str, np.ndarray] = {}
        if summary is not None and not step.key.late:
            histograms = self._contained(
                "histogram_errors", dict[str, np.ndarray], step_histograms, rows.ledger, step.key.split
            )
        return Judgement(traces, summary, logged, histograms, found, state, rows.ledger)

    def _flagged(self, step: ClosedStep) -> tuple[Mapping[int, Sequence[Flag]], Ledger]:
        population = Population(step.batch, step.rows, self.options.flag_parameters, self.options.settings)
        flags = flag_population(population, errors=self.flag_errors)
        n = step.batch.n_rows
        columns: dict[str, np.ndarray] = {"flags": as_arrays(flags, n)}
        if step.key.attempt:
            columns["attempt"] = np.full(n, step.key.attempt, object)
        if step.key.late:
            columns["late"] = np.ones(n, np.int64)
        elif step.key.attempt:
            columns["late"] = np.zeros(n, np.int64)
        copied = CopiedRows(step.batch)
        ledger, kept = copied.ledger(step.rows.with_columns(**columns)), copied.flags(flags)
        return kept, ledger.with_columns(flags=as_arrays(kept, n))

    def _traced(
        self, step: ClosedStep, judged: JudgedRows, chosen: Sequence[Selected]
    ) -> tuple[JudgedRows, list[TraceRecord]]:
        batch = step.batch
        read = {row: found for item in chosen for row, found in self._read(batch, item.row).items()}
        chosen = [item for item in chosen if item.row in read]
        if not chosen:
            return judged, []
        transcripts = {row: transcript for row, (transcript, _) in read.items()}
        row_flags = self._row_flags(transcripts, batch)
        self.checkpoint()
        copied = CopiedRows(batch)
        flags = copied.flags(
            {
                row: combine(judged.flags.get(row, ()), row_flags[row], transcript)
                for row, transcript in transcripts.items()
            }
        )
        chosen = [copied.chosen(item) for item in chosen]
        ledger = complete_from_transcripts(judged.ledger, transcripts)
        ledger = copied.ledger(_with_selection(ledger, chosen, flags))
        groups = ledger.get("group").tolist()
        sizes = Counter(groups)
        traces = [
            rollout_trace(
                transcripts[item.row],
                ledger,
                item.row,
                flags=flags[item.row],
                extra={
                    **read[item.row][1](extra_metadata(batch, sizes[groups[item.row]], item.row)),
                    "inspector": self._address(ledger, item.row),
                },
                details=read[item.row][1](details_of(batch, item.row)),
                images=self.reader.images(batch, item.row),
            )
            for item in chosen
        ]
        at_random = {item.row: row_flags[item.row] for item in chosen if item.selected_by == "random"}
        used = {row: tool_use(transcript) for row, transcript in transcripts.items()}
        return replace(judged, ledger=ledger, random_flags=at_random, tool_use=used), traces

    def _address(self, ledger: Ledger, row: int) -> str | None:
        """Makes the inspector's address of a rollout, as far as it is known where that is."""
        if self.options.inspector_url is None:
            return None
        known = ledger.row(row)
        place = {name: known.get(name) for name in ("split", "step", "group", "sample")}
        return page_address(self.options.inspector_url, tab="rollouts", **place)

    def _read(self, batch: PackedBatch, row: int) -> dict[int, tuple[Transcript, Hide]]:
        self.checkpoint()
        return self.reader.read(batch, [row])

    def _row_flags(self, transcripts: Mapping[int, Transcript], batch: PackedBatch) -> dict[int, list[Flag]]:
        parameters, tokenizer = self.options.flag_parameters, self.reader.tokenizer
        ready = row_detectors(batch, parameters, tokenizer)
        found = {}
        for row, transcript in transcripts.items():
            self.checkpoint()
            traced = TracedRow(transcript, batch, row, parameters, tokenizer)
            found[row] = flag_row(traced, errors=self.flag_errors, ready=ready)
        return found

    def _scalars(self, judged: JudgedStep, state: RunState) -> dict[str, float]:
        def compute() -> dict[str, float]:
            totals = running_totals(state.totals, judged.rows.ledger, judged.step.key.split)
            return scalars_of(judged) | totals

        return self._contained("metric_errors", dict[str, float], compute)

    def scalars(
        self, scalars: Mapping[str, Any], step: int, state: RunState
    ) -> tuple[RunState, Sequence[Alert]]:
        """Judges what the trainer logged.

        Args:
            scalars: by key.
            state: the run's state before.

        Returns:
            The state after it, and what it raises.
        """
        before = state.trails.get(LOGGED, Trail())

        def compute() -> tuple[Trail, list[Alert]]:
            figures = scalar_figures(of_trainer(scalars, state.trails), step)
            found = judge(before, figures)
            return found.trail, alerts_of(found, step, 0, LOGGED, self.options.flag_parameters)

        trail, alerts = self._contained("alert_errors", lambda: (before, []), compute)
        return replace(state, trails={**state.trails, LOGGED: trail}), alerts

    def _alarms(
        self, step: ClosedStep, ledger: Ledger, before: Trail
    ) -> tuple[Trail, list[Alert], dict[str, str]]:
        """The split's trail after a step, what the step raises, and what is stored of it."""
        figures = figures_of(ledger, step.key.step, before.names)
        found = judge(before, figures)
        alerts = alerts_of(found, step.key.step, ledger.n_rows, step.key.split, self.options.flag_parameters)
        return found.trail, alerts, {FIGURES: orjson.dumps(as_plain(figures)).decode()}

    def _summary(
        self,
        judged: JudgedStep,
        scalars: Mapping[str, float],
        further: Mapping[str, str],
        over_disk_limit: bool,
    ) -> TraceRecord | None:
        def details() -> dict[str, Any]:
            reads = self.reader.transcripts if self.reader.decoder is not None else None
            return filtered_details(judged.step.batch, judged.rows.ledger, reads)

        def histogram() -> dict[str, Any]:
            found = loss_histogram(judged.step.batch)
            return {} if found is None else {LOSS_HISTOGRAM: pack(found)}

        kept = {
            **self._contained("filtered_errors", dict[str, Any], details),
            **self._contained("histogram_errors", dict[str, Any], histogram),
            **further,
        }
        try:
            return step_summary_of(judged, scalars=scalars, details=kept, over_disk_limit=over_disk_limit)
        except Exception as error:  # noqa: BLE001  counted and warned
            self._warnings.count(
                "step_summary_errors",
                f"{judged.step.key}, its ledger goes on: {error!r}",
                with_traceback=True,
            )
        return self._contained(
            "ledgers_failed",
            lambda: None,
            lambda: step_summary_of(judged, scalars={}, details={}, described=False),
        )

    def _contained(
        self, counter: str, otherwise: Callable[[], T], compute: Callable[..., T], *arguments: Any
    ) -> T:
        """Returns `compute()`; where it fails, counts the failure and returns `otherwise`."""
        try:
            return compute(*arguments)
        except Exception as error:  # noqa: BLE001  counted and warned
            self._warnings.count(counter, repr(error), with_traceback=True)
            return otherwise()


def choose_rows(
    step: ClosedStep,
    ledger: Ledger,
    options: StepOptions,
    stored: StoredStep,
    traced_prompts: Mapping[str, int],
    counters: Counter[str],
) -> list[Selected]:
    """The rows that become traces.

    What an earlier worker began to store was its choice and stays the choice. Rows whose tokens the memory budget
    gave up are no candidates, and the others' probabilities say so.

    Args:
        ledger: its rows, flags included.
        options: the cap and the policy.
        stored: what an earlier worker stored of it.
        traced_prompts: prompt key -> traces of it so far.
        counters: a policy that fails is counted here.

    Returns:
        Rows, each with its reason and its probability over the whole step.
    """
    if stored.is_summarised:
        return _stored_choice(step, stored.chosen)
    candidates = np.flatnonzero(~step.given_up)
    request = SelectionRequest(
        ledger.take(candidates),
        options.max_rollout_traces_per_step - stored.n_traced,
        options.seed,
        traced_prompts,
        step.key.step,
        step.key.split,
    )
    try:
        chosen = choose(options.policy(step.key.split), request)
    except Exception as error:  # noqa: BLE001  a caller's policy may fail; the first rows are taken instead
        Warnings(counters).count("selection_errors", f"the first rows are taken instead: {error!r}")
        chosen = choose(policy_named("first"), request)
    kept = step.kept_probability
    chosen = [
        replace(item, row=int(candidates[item.row]), probability=item.probability * kept) for item in chosen
    ]
    if set(stored.chosen) - {step.batch.uid(item.row) for item in chosen}:
        return _stored_choice(step, stored.chosen)
    return chosen


def _stored_choice(step: ClosedStep, stored: Mapping[str, StoredRow]) -> list[Selected]:
    rows = {step.batch.uid(row): row for row in range(step.batch.n_rows)}
    chosen = [
        Selected(rows[uid], known.selected_by, known.probability)
        for uid, known in stored.items()
        if uid in rows
    ]
    return sorted(chosen, key=lambda item: item.row)


def _with_prompts(
    state: RunState, step: ClosedStep, ledger: Ledger, traces: Sequence[TraceRecord]
) -> RunState:
    if not traces:
        return state
    keys = ledger.get("prompt_key").tolist()
    traced = [str(keys[row]) for row, uid in enumerate(ledger.get("trace_uid").tolist()) if uid is not None]
    prompts = Counter(state.prompts.get(step.key.split, {}))
    prompts.update(traced)
    return replace(state, prompts={**state.prompts, step.key.split: prompts})


def _with_selection(
    ledger: Ledger, chosen: Sequence[Selected], flags: Mapping[int, Sequence[Flag]]
) -> Ledger:
    selected_by = ledger.get("selected_by").copy()
    probability = ledger.get("selected_probability").copy()
    trace_uid = ledger.get("trace_uid").copy()
    names = ledger.get("flags").copy()
    for item in chosen:
        selected_by[item.row] = item.selected_by
        probability[item.row] = item.probability
        trace_uid[item.row] = ledger.get("uid")[item.row]
        names[item.row] = tuple(dict.fromkeys(flag.name for flag in flags[item.row]))
    return ledger.with_columns(
        selected_by=selected_by, selected_probability=probability, trace_uid=trace_uid, flags=names
    )


UNSEEN = "Raised when the rollout was logged; what it was raised for is not in the copy."
OF_THE_WHOLE_STEP = ("update_share", "equal_to")
"""Columns that other rows' tokens decide: unknown where the stored row does not have them."""
_PLACE = ("step", "group", "sample", "selected_probability")
_NUMBERS = {c.name for c in COLUMNS if c.kind in ("float", "int") and "/" not in c.name} - {*_PLACE}


class CopiedRows:
    """The rows of a batch that came with their ledger's rows; for all others everything stays as it is found.

    Args:
        batch: B rollouts.
    """

    def __init__(self, batch: PackedBatch) -> None:
        given = enumerate(batch.row_lists.get("ledger_rows") or ())
        self._stored: dict[int, Mapping[str, Any]] = {n: row for n, row in given if isinstance(row, Mapping)}

    def ledger(self, ledger: Ledger) -> Ledger:
        """Puts the stored numbers into a ledger; what no copied row knows stays as it was computed."""
        names = {name for row in self._stored.values() for name in row if name in _NUMBERS}
        changed = {}
        for name in sorted(names | {*OF_THE_WHOLE_STEP}) if self._stored else ():
            column = ledger.get(name).copy()
            unknown = NULL_INT if column.dtype == np.int64 else np.nan
            for row, stored in self._stored.items():
                value = stored.get(name)
                if isinstance(value, (int, float)) and np.isfinite(value):
                    column[row] = value
                elif name in OF_THE_WHOLE_STEP:
                    column[row] = unknown
            if name in ledger.columns or any_known(name, column):
                changed[name] = column
        return ledger.with_columns(**changed)

    def flags(self, found: Mapping[int, Sequence[Flag]]) -> dict[int, Sequence[Flag]]:
        """Gives each copied row the flags that it had, with the sentences that were found anew."""
        kept = dict(found)
        for row, stored in self._stored.items():
            names = stored.get("flags")
            if isinstance(names, (list, tuple)) and (names or row in found):
                kept[row] = [flag for name in names for flag in _named(str(name), found.get(row, ()))]
        return kept

    def chosen(self, item: Selected) -> Selected:
        """Tells how a row was chosen when it was logged, where the copy takes every row that it can read."""
        stored = self._stored.get(item.row, {})
        if item.selected_by != "all" or not isinstance(stored.get("selected_by"), str):
            return item
        probability = stored.get("selected_probability")
        known = float(probability) if isinstance(probability, (int, float)) else float("nan")
        return replace(item, selected_by=stored["selected_by"], probability=known)


def _named(name: str, found: Sequence[Flag]) -> list[Flag]:
    severity = REGISTRY[name].severity if name in REGISTRY else "info"
    return [flag for flag in found if flag.name == name] or [Flag(name, severity, UNSEEN)]
