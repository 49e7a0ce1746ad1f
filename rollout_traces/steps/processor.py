"""From a handed-over batch to what is stored: ledger, flags, selection, transcripts, traces, step summaries.

One function's worth of work with two hosts: a process of its own or a thread. Nothing here imports torch,
and nothing that was handed over is shared with the trainer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rollout_traces.flags import (
    Alert,
    Flag,
    FlagErrors,
    Population,
    TracedRow,
    alerts,
    combine,
    curves,
    flag_population,
    flag_row,
)
from rollout_traces.flags.base import as_arrays
from rollout_traces.ledger import columns as ledgers
from rollout_traces.ledger.build import FROM_TRANSCRIPTS, build_ledger, complete_from_transcripts
from rollout_traces.ledger.columns import Ledger
from rollout_traces.metrics import step_histograms, tool_use
from rollout_traces.packed_batch import PackedBatch
from rollout_traces.selection import (
    Selected,
    SelectionPolicy,
    SelectionRequest,
    choose,
    default_policy,
    policy_named,
)
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.sink.stored import Stored, StoredRow
from rollout_traces.steps.discarded import RunningTotals
from rollout_traces.steps.redact import Redact, Redaction
from rollout_traces.steps.row_metadata import details_of, extra_metadata
from rollout_traces.steps.step_files import filtered_details, write_all_rows
from rollout_traces.trace.conversion import STEPS, TRAJECTORIES, TraceRecord, rollout_trace
from rollout_traces.trace.step_summary import ClosedStep, StepPart, scalars_of, step_summary_of
from rollout_traces.transcript import Transcript

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where scalars and traces go, and what is known to be there already."""

    stored: Stored
    sending_again: bool

    def log_scalars(self, scalars: Mapping[str, Any], *, step: int) -> list[str]: ...

    def log_traces(
        self,
        key: str,
        records: Sequence[TraceRecord],
        *,
        step: int,
        scalars: Mapping[str, Any] | None = None,
        histograms: Mapping[str, np.ndarray] | None = None,
    ) -> None: ...

    def alert(self, alert: Alert, *, step: int) -> None: ...

    def disk_bytes(self) -> int: ...


@dataclass(frozen=True)
class StepOptions:
    """What the worker needs to know; plain values, so that it can cross to another process.

    Attributes:
        max_traces: rollouts that become traces, per step and split; 0 or less: none.
        selection: policy for training rollouts, a name or a callable; None: the split's default.
        ledger: whether a step summary with the ledger of all rows is logged each step.
        seed: what random choices are drawn from.
        metric_keys: patterns of step metrics to log, see `metrics`.
        flag_parameters: thresholds by `<flag>.<parameter>`.
        settings: what the run declares about itself.
        max_disk_gb: gigabytes of the project above which steps keep their ledger only; None: no limit.
        all_rows_folder: folder for a file a step with the text of all its rows; None: none.
    """

    max_traces: int = 0
    selection: str | SelectionPolicy | None = None
    ledger: bool = True
    seed: int = 0
    metric_keys: tuple[str, ...] = ("default",)
    flag_parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: RunSettings = field(default_factory=RunSettings)
    max_disk_gb: float | None = None
    all_rows_folder: str | None = None

    def policy(self, split: str) -> SelectionPolicy:
        """The policy that spends a split's cap; evaluation shows its panel where training has its portfolio."""
        if self.selection is None or (split == "eval-rollout" and self.selection == "portfolio"):
            return default_policy(split)
        return policy_named(self.selection)


class StepProcessor:
    """Turns handed-over batches into what is stored, in order.

    Args:
        sink: where it goes.
        decoder: `TranscriptDecoder`, or `MessagesDecoder` when there is no tokenizer; None: no traces.
        config: what to keep.
        counters: counts by name, shared with whoever shows them.
        redact: sees a message and returns the pieces of its text to hide, or None.
    """

    def __init__(
        self,
        sink: Sink,
        decoder: Any,
        config: StepOptions,
        counters: Counter[str] | None = None,
        redact: Redact | None = None,
    ) -> None:
        self.sink = sink
        self.decoder = decoder
        self._tokenizer = getattr(decoder, "tokenizer", None)
        self.config = config
        self.counters: Counter[str] = Counter() if counters is None else counters
        self._redaction = None if redact is None else Redaction(redact, self.counters)
        self.flag_errors = FlagErrors()
        self._open: dict[tuple[int, str], list[StepPart]] = {}
        self._raised: set[str] = set()
        self._previous: dict[str, Mapping[str, float]] = {}
        self._totals: RunningTotals | None = None
        self._traced_prompts: dict[str, Counter[str]] = {}
        self._traced: dict[tuple[int, str], set[str]] = {}
        self._awaited: dict[str, set[str]] = {}
        self._completed: set[str] = set()
        self._sent_again: set[str] = set()

    def process(self, batches: Sequence[PackedBatch], await_join: Sequence[str] = ()) -> None:
        """Stores hand-overs: their traces now, their part of the step summary when the step closes.

        What an earlier worker stored of it is not stored again, and what is missing of it is: Trackio may have
        stored the step summary and dropped the traces, or the other way round.

        Args:
            batches: hand-overs of one step and split, one or one a rank; they share one selection.
            await_join: keys that have to be joined before its traces are written; at the latest they are
                written when the step closes.
        """
        for key in [key for key in self._open if key[0] < batches[0].step]:
            self._close(key)
        if self.sink.sending_again:
            self._sent_again.update(batch.batch_id for batch in batches)
        ready = []
        for batch in batches:
            if batch.batch_id in self.sink.stored.summarised:
                self._complete(batch)
                continue
            part = self._part(batch)
            missing = set(await_join) - set(batch.tracks) - set(batch.row_floats)
            if missing:
                self._awaited[batch.batch_id] = missing
                self._open.setdefault((batch.step, batch.split), []).append(part)
            else:
                ready.append(part)
        for part, chosen in zip(ready, self._choose(ready), strict=True):
            written = self._write_traces(part, chosen)
            self._open.setdefault((part.batch.step, part.batch.split), []).append(written)

    def _part(self, batch: PackedBatch) -> StepPart:
        """A hand-over with its ledger and the flags that need no text."""
        if self._redaction is not None:
            batch = self._redaction.labels(batch)
        ledger = build_ledger(batch, self.config.settings)
        population = Population(batch, ledger, self.config.flag_parameters, self.config.settings)
        flags = flag_population(population, errors=self.flag_errors)
        ledger = ledger.with_columns(flags=as_arrays(flags, batch.n_rows))
        return StepPart(batch, ledger, flags)

    def _complete(self, batch: PackedBatch) -> None:
        """Writes the traces that a stored step summary speaks of and the store does not hold."""
        stored = self.sink.stored
        self._completed.add(batch.batch_id)
        expected = stored.chosen_in_summary(batch.batch_id)
        if any(uid not in stored.uids for uid in expected):
            self._write_traces(self._part(batch), _stored_choice(batch, expected))

    def is_open(self, batch_id: str) -> bool:
        """True while a hand-over's step is open: more may come for it."""
        return any(part.batch.batch_id == batch_id for parts in self._open.values() for part in parts)

    def join(self, batch_id: str, tracks: Mapping[str, np.ndarray], row_floats: Mapping[str, Any]) -> None:
        """Adds per-token [N] and per-row [B] columns to a hand-over whose step is still open."""
        for parts in self._open.values():
            for index, part in enumerate(parts):
                if part.batch.batch_id == batch_id:
                    parts[index] = self._joined(part, tracks, row_floats)
                    return
        if (
            batch_id in self._completed
        ):  # processed again together with its hand-over: the stored step summary has it
            return
        self.counters["joins_too_late"] += 1
        log.warning(
            "join: hand-over %s is not open any more. Join before the next step's rollouts.", batch_id
        )

    def close_step(self, step: int, split: str) -> None:
        """Writes the step summary and metrics of one step; nothing where it is not open."""
        if (step, split) in self._open:
            self._close((step, split))

    def close_steps(self) -> None:
        """Writes the step summaries and metrics of all steps that are still open."""
        for key in list(self._open):
            self._close(key)

    def _joined(
        self, part: StepPart, tracks: Mapping[str, np.ndarray], row_floats: Mapping[str, Any]
    ) -> StepPart:
        batch = part.batch.joined(tracks, row_floats)
        known = ("flags", "selected_by", "selected_probability", "trace_uid", *FROM_TRANSCRIPTS)
        kept = {name: part.ledger.get(name) for name in known if name in part.ledger.columns}
        ledger = build_ledger(batch, self.config.settings).with_columns(**kept)
        part = replace(part, batch=batch, ledger=ledger)
        awaited = self._awaited.get(batch.batch_id)
        if awaited is not None:
            awaited -= {*tracks, *row_floats}
            if not awaited:
                part = self._write_awaited(part)
        return part

    def _write_awaited(self, part: StepPart) -> StepPart:
        del self._awaited[part.batch.batch_id]
        population = Population(part.batch, part.ledger, self.config.flag_parameters, self.config.settings)
        flags = flag_population(population, errors=self.flag_errors)
        ledger = part.ledger.with_columns(flags=as_arrays(flags, part.batch.n_rows))
        part = replace(part, ledger=ledger, flags=flags)
        [chosen] = self._choose([part])
        return self._write_traces(part, chosen)

    def _close(self, key: tuple[int, str]) -> None:
        step, split = key
        parts = self._open[key]
        if not self.config.ledger and self._is_counted(step, split, parts):
            del self._open[key]
            return
        for index, part in enumerate(parts):
            if part.batch.batch_id in self._awaited:
                self.counters["joins_missed"] += 1
                parts[index] = self._write_awaited(part)
        del self._open[key]
        try:
            self._write_step(step, split, parts)
        except Exception as error:
            self.counters["step_summary_errors"] += 1
            log.warning(
                "the step summary of step %d of %s failed, its ledger goes on: %r",
                step,
                split,
                error,
                exc_info=True,
            )
            self._write_bare_summary(step, split, parts)

    def _is_counted(self, step: int, split: str, parts: Sequence[StepPart]) -> bool:
        """Without a step summary, which names its hand-overs: the step's totals tell that an earlier worker closed it."""
        if any(part.batch.batch_id not in self._sent_again for part in parts):
            return False
        try:
            return self.sink.stored.has_totals(step, split)
        except Exception as error:  # noqa: BLE001  the store may be locked or away: better twice than never; counted
            self.counters["store_unreadable"] += 1
            log.warning("it is unknown whether step %d of %s was closed before: %r", step, split, error)
            return False

    def _write_step(self, step: int, split: str, parts: Sequence[StepPart]) -> None:
        closed = ClosedStep.of(parts, self._tokenizer)
        scalars = self._scalars(closed)
        logged = curves(scalars, self._raised)
        if self.config.ledger:
            digest = _identified(
                step_summary_of(closed, self.config, scalars=scalars, details=self._filtered(closed)),
                parts,
                over_disk_limit=self._is_over_disk_limit(),
            )
            histograms = step_histograms(closed.rows, split)
            self.sink.log_traces(
                f"{split}/{STEPS}", [digest], step=step, scalars=logged, histograms=histograms
            )
        else:
            self.sink.log_scalars(logged, step=step)
        self._raise_alerts(step, split, scalars)
        self._write_all_rows(closed)

    def _write_bare_summary(self, step: int, split: str, parts: Sequence[StepPart]) -> None:
        """Writes what a step must not lose: the ledger of its rows."""
        if not self.config.ledger:
            return
        try:
            digest = step_summary_of(ClosedStep.of(parts, None), self.config, scalars={}, details={})
            digest = _identified(digest, parts, over_disk_limit=self._is_over_disk_limit())
            self.sink.log_traces(f"{split}/{STEPS}", [digest], step=step)
        except Exception as error:
            self.counters["ledgers_failed"] += 1
            log.warning("the ledger of step %d of %s failed: %r", step, split, error, exc_info=True)

    def _raise_alerts(self, step: int, split: str, scalars: Mapping[str, float]) -> None:
        try:
            for alert in alerts(scalars, self.config.flag_parameters, previous=self._previous.get(split)):
                self.sink.alert(alert, step=step)
        except Exception as error:
            self.counters["alert_errors"] += 1
            log.warning("the alerts of step %d of %s failed: %r", step, split, error, exc_info=True)
        self._previous[split] = scalars

    def _filtered(self, step: ClosedStep) -> dict[str, Any]:
        try:
            return filtered_details(step.batch, step.rows, self._read if self.decoder is not None else None)
        except Exception as error:
            self.counters["filtered_errors"] += 1
            log.warning("the dropped rollouts of a step could not be listed: %r", error, exc_info=True)
            return {}

    def _write_all_rows(self, step: ClosedStep) -> None:
        if self.config.all_rows_folder is None or self.decoder is None:
            return
        try:
            write_all_rows(self.config.all_rows_folder, step.batch, step.rows, self._read)
        except Exception as error:  # noqa: BLE001  a full disk must not stop the worker; counted and warned
            self.counters["all_rows_errors"] += 1
            log.warning("the file of all rows of step %d was not written: %r", step.batch.step, error)

    def _scalars(self, step: ClosedStep) -> dict[str, float]:
        try:
            if self._totals is None:
                self._totals = RunningTotals.resumed(self.sink.stored.totals())
            return scalars_of(step, self.config) | self._totals.add(step.rows, step.batch.split)
        except Exception as error:
            self.counters["metric_errors"] += 1
            log.warning("the metrics of a step failed, its ledger goes on: %r", error, exc_info=True)
            return {}

    def _write_traces(self, part: StepPart, chosen: Sequence[Selected]) -> StepPart:
        batch = part.batch
        if self.decoder is None or not chosen:
            return part
        readable = self.decoder.readable(batch)
        transcripts = self._decode(batch, [item.row for item in chosen if readable[item.row]])
        chosen = [item for item in chosen if item.row in transcripts]
        if not chosen:
            return part
        hide: dict[int, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {}
        if self._redaction is not None:
            for row, transcript in transcripts.items():
                transcripts[row], hide[row] = self._redaction.apply(transcript)
        self._history(batch.split).update(part.ledger.get("prompt_key")[item.row] for item in chosen)
        row_flags = {row: self._row_flags(batch, row, transcript) for row, transcript in transcripts.items()}
        flags = {
            row: combine(part.flags.get(row, ()), row_flags[row], transcript)
            for row, transcript in transcripts.items()
        }
        ledger = _with_selection(complete_from_transcripts(part.ledger, transcripts), chosen, flags)
        records = [
            rollout_trace(
                transcripts[item.row],
                ledger,
                item.row,
                flags=flags[item.row],
                extra=hide.get(item.row, _as_it_is)(extra_metadata(batch, ledger, item.row)),
                details=hide.get(item.row, _as_it_is)(details_of(batch, item.row)),
            )
            for item in chosen
        ]
        self.sink.log_traces(f"{batch.split}/{TRAJECTORIES}", records, step=batch.step)
        self._traced.setdefault((batch.step, batch.split), set()).update(
            record.metadata["uid"] for record in records
        )
        at_random = {item.row: row_flags[item.row] for item in chosen if item.selected_by == "random"}
        used = {row: tool_use(transcript) for row, transcript in transcripts.items()}
        return replace(part, ledger=ledger, random_flags=at_random, tool_use=used)

    def _choose(self, parts: Sequence[StepPart]) -> list[list[Selected]]:
        """The rows of each part that become traces; what an earlier worker stored of a part was its choice."""
        chosen: list[list[Selected]] = [[] for _ in parts]
        fresh = []
        for index, part in enumerate(parts):
            stored = self.sink.stored.rows_of(part.batch.batch_id)
            if stored:
                chosen[index] = _stored_choice(part.batch, stored)
            elif part.batch.n_rows:
                fresh.append(index)
        if fresh and self.decoder is not None:
            stops = np.cumsum([parts[index].batch.n_rows for index in fresh])
            for item in self._choose_fresh([parts[index] for index in fresh]):
                at = int(np.searchsorted(stops, item.row, side="right"))
                first = int(stops[at]) - parts[fresh[at]].batch.n_rows
                chosen[fresh[at]].append(replace(item, row=item.row - first))
        return chosen

    def _choose_fresh(self, parts: Sequence[StepPart]) -> list[Selected]:
        """Rows, counted through all parts, by the run's policy and what is left of the cap."""
        batch = parts[0].batch
        key = (batch.step, batch.split)
        if self._is_over_disk_limit():
            self.counters["steps_over_disk_limit"] += 1
            return []
        taken = self._traced.get(key, set()) | self.sink.stored.traced_at(*key)
        request = SelectionRequest(
            ledgers.concatenate([part.ledger for part in parts]),
            self.config.max_traces - len(taken),
            self.config.seed,
            self._history(batch.split),
            batch.step,
            batch.split,
        )
        try:
            return choose(self.config.policy(batch.split), request)
        except Exception as error:  # noqa: BLE001  a caller's policy may fail; the first rows stand in for it
            self.counters["selection_errors"] += 1
            log.warning("selection failed, the first rows are taken instead: %r", error)
            return choose(policy_named("first"), request)

    def _is_over_disk_limit(self) -> bool:
        limit = self.config.max_disk_gb
        return limit is not None and self.sink.disk_bytes() > limit * 1e9

    def _history(self, split: str) -> Counter[str]:
        if split not in self._traced_prompts:
            self._traced_prompts[split] = self.sink.stored.traced_prompts(split)
        return self._traced_prompts[split]

    def _row_flags(self, batch: PackedBatch, row: int, transcript: Transcript) -> list[Flag]:
        seen = TracedRow(transcript, batch, row, self.config.flag_parameters, self._tokenizer)
        return flag_row(seen, errors=self.flag_errors)

    def _read(self, batch: PackedBatch, rows: Sequence[int]) -> dict[int, Transcript]:
        """Rows decoded, with what the redact hook hides hidden."""
        transcripts = self._decode(batch, rows)
        if self._redaction is None:
            return transcripts
        return {row: self._redaction.apply(transcript)[0] for row, transcript in transcripts.items()}

    def _decode(self, batch: PackedBatch, rows: Sequence[int]) -> dict[int, Transcript]:
        decoded = {}
        for row in rows:
            try:
                decoded[row] = self.decoder.decode_batch(batch, [row])[0]
            except Exception as error:  # noqa: BLE001  one bad row must not take its siblings; it is counted
                self.counters["decode_errors"] += 1
                log.warning("decoding %s failed, its siblings go on: %r", batch.uid(row), error)
        return decoded


def _identified(digest: TraceRecord, parts: Sequence[StepPart], *, over_disk_limit: bool) -> TraceRecord:
    """A step summary that says which hand-overs it speaks of, so that none is counted twice after a crash."""
    batches = [part.batch.batch_id for part in parts]
    notes = list(dict.fromkeys(note for part in parts for note in part.batch.notes))
    if over_disk_limit:
        notes.append("The project is above its max_disk_gb: no traces, the ledger only.")
    known = {"uid": f"{batches[0]}-digest", "batches": ",".join(batches), "notes": notes or None}
    return replace(digest, metadata={**digest.metadata, **{k: v for k, v in known.items() if v is not None}})


def _stored_choice(batch: PackedBatch, stored: Mapping[str, StoredRow]) -> list[Selected]:
    """The rows that an earlier worker chose before it was stopped."""
    rows = {batch.uid(row): row for row in range(batch.n_rows)}
    chosen = [
        Selected(rows[uid], known.selected_by, known.probability)
        for uid, known in stored.items()
        if uid in rows
    ]
    return sorted(chosen, key=lambda item: item.row)


def _with_selection(ledger: Ledger, chosen: Sequence[Any], flags: Mapping[int, Sequence[Flag]]) -> Ledger:
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


def _as_it_is(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return fields
