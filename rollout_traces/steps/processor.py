"""From hand-overs to stored steps: keeps the open steps, and stores each one when it is closed.

The same object works in the worker process or in a thread. Nothing here imports torch or shares memory with the
trainer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rollout_traces.alarms.figures import TRAIL
from rollout_traces.errors import Warnings
from rollout_traces.model.packed_batch import PackedBatch, StepKey
from rollout_traces.model.units import GIGABYTE
from rollout_traces.sink.trackio_sink import TrackioSink
from rollout_traces.steps.judge import Judge, Judgement
from rollout_traces.steps.open_step import ClosedStep, OpenStep
from rollout_traces.steps.redact import Redact, Redaction
from rollout_traces.steps.row_reader import Decoder, RowReader
from rollout_traces.steps.run_state import RunState, StepOptions, StoredStep, read_figures, read_run_state
from rollout_traces.steps.sample_table import write_all_rows
from rollout_traces.trace.conversion import STEPS, TRAJECTORIES

STEPS_OF_A_TRAIL = 2 * TRAIL
"""Step summaries that are read after a restart: of training and of an evaluation at each of its steps."""
PAUSES = (0.0, 0.25, 1.0, 2.0)
"""Seconds before each time that they are read, where they could not be."""
TRACES_AT_ONCE = 256
"""Traces of one log call at most: Trackio copies and checks a call's traces on the calling thread."""


class StepProcessor:
    """Keeps open steps and stores closed ones.

    Args:
        sink: where they go.
        decoder: `TranscriptDecoder`, or `MessagesDecoder` when there is no tokenizer; None: no traces.
        options: what to keep.
        counters: counts by name, shared with whoever shows them.
        redact: sees a message and returns the pieces of its text to hide, or None.
        checkpoint: called again and again while a step is judged; what it raises leaves the step open.
    """

    def __init__(
        self,
        sink: TrackioSink,
        decoder: Decoder | None,
        options: StepOptions,
        counters: Counter[str] | None = None,
        redact: Redact | None = None,
        checkpoint: Callable[[], None] = lambda: None,
    ) -> None:
        self.sink = sink
        self.options = options
        self.counters: Counter[str] = Counter() if counters is None else counters
        self._warnings = Warnings(self.counters)
        redaction = None if redact is None else Redaction(redact, self.counters)
        self._reader = RowReader(decoder, self.counters, redaction)
        self._judge = Judge(options, self._reader, self.counters, checkpoint=checkpoint)
        self._open: dict[StepKey, OpenStep] = {}
        self._state: RunState | None = None

    def add(self, key: StepKey, batch: PackedBatch, await_join: Sequence[str] = ()) -> None:
        """Takes a hand-over of a step.

        Args:
            key: the step, or the late part of it.
            await_join: columns that will be joined.
        """
        if key not in self._open:
            options = self.options
            self._open[key] = OpenStep(key, options.settings, options.max_step_bytes, options.seed)
        self._open[key].add(self._reader.label(batch), await_join)

    def join(
        self, batch_id: str, tracks: Mapping[str, np.ndarray], row_floats: Mapping[str, np.ndarray]
    ) -> bool:
        """Adds per-token [N] and per-row [B] columns to a hand-over.

        Returns:
            False when its step is not open.
        """
        for step in self._open.values():
            if batch_id in step:
                step.join(batch_id, tracks, row_floats)
                return True
        return False

    def key_of(self, batch_id: str) -> StepKey | None:
        """The open step that a hand-over belongs to."""
        return next((key for key, step in self._open.items() if batch_id in step), None)

    def n_joins(self, key: StepKey) -> int:
        """Joins that came for an open step."""
        return self._open[key].n_joins if key in self._open else 0

    def parts_of(self, key: StepKey) -> tuple[str, ...]:
        """Ids of the hand-overs of an open step."""
        return self._open[key].batch_ids if key in self._open else ()

    def awaits_joins(self, key: StepKey) -> bool:
        """True while an open step waits for columns that are to be joined."""
        return key in self._open and self._open[key].n_awaited > 0

    def close(self, key: StepKey, stored: StoredStep, *, again: bool = False) -> list[str]:
        """Judges a step and stores its traces, summary and scalars.

        Args:
            stored: what an earlier worker stored of it.
            again: its records may have been stored before.

        Returns:
            uids of its rollouts that became traces.
        """
        step = self._open[key]
        if self._state is None:
            self._state = self._resumed()
        over = self._is_over_disk_limit()
        closed = step.closed()
        try:
            judged = self._judge(closed, stored, self._state, over_disk_limit=over)
        except Exception:
            del self._open[key]
            raise
        del self._open[key]
        self.counters["joins_missed"] += step.n_awaited
        self._state = judged.state
        self._store(closed, judged, stored, again=again)
        self.counters["steps_closed"] += 1
        self.counters["steps_over_disk_limit"] += over
        if key.late:
            self.counters["late_parts"] += 1
            self.counters["rollouts_late"] += closed.batch.n_rows
        return [trace.metadata["uid"] for trace in judged.traces]

    def watch(self, scalars: Mapping[str, Any], step: int) -> None:
        """Judges what the trainer logged at a step, and raises what it says.

        Args:
            scalars: what was stored.
        """
        if self._state is None:
            self._state = self._resumed()
        self._state, alerts = self._judge.scalars(scalars, step, self._state)
        for alert in alerts:
            self.sink.alert(alert, step=step)

    def _store(self, step: ClosedStep, judged: Judgement, stored: StoredStep, *, again: bool) -> None:
        key = step.key
        for first in range(0, len(judged.traces), TRACES_AT_ONCE):
            traces = judged.traces[first : first + TRACES_AT_ONCE]
            self.sink.log_traces(f"{key.split}/{TRAJECTORIES}", traces, step=key.step)
        if stored.is_summarised:
            return
        if judged.summary is not None:
            self.sink.log_traces(
                f"{key.split}/{STEPS}",
                [judged.summary],
                step=key.step,
                attempt=key.attempt,
                scalars=judged.scalars,
                histograms=judged.histograms,
            )
        elif judged.scalars:
            self.sink.log_scalars(judged.scalars, step=key.step, attempt=key.attempt, again=again)
        for alert in judged.alerts:
            self.sink.alert(alert, step=key.step)
        self._write_all_rows(step, judged)

    def _write_all_rows(self, step: ClosedStep, judged: Judgement) -> None:
        if self.options.all_rows_folder is None or self._reader.decoder is None or step.key.late:
            return
        try:
            write_all_rows(self.options.all_rows_folder, step.batch, judged.rows, self._reader.transcripts)
        except Exception as error:  # noqa: BLE001  a full disk must not stop the worker; counted and warned
            self._warnings.count("all_rows_errors", f"the file of step {step.key.step}: {error!r}")

    def _resumed(self) -> RunState:
        for pause in PAUSES:
            time.sleep(pause)
            try:
                return self._stored_state()
            except Exception as error:  # noqa: BLE001  the store may be locked or away; counted and warned
                reason = error
        self._warnings.count("store_unreadable", f"totals and incidents of the run start anew: {reason!r}")
        return RunState()

    def _stored_state(self) -> RunState:
        stored = self.sink.stored
        kept = stored.details(STEPS_OF_A_TRAIL)
        logged, figures = stored.logged(STEPS_OF_A_TRAIL), read_figures(kept)
        return RunState.resumed(
            read_run_state(kept), figures, logged, stored.totals(), stored.traced_prompts()
        )

    def _is_over_disk_limit(self) -> bool:
        limit = self.options.max_disk_gb
        return limit is not None and self.sink.disk_bytes() > limit * GIGABYTE
