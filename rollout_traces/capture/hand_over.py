"""From the calling thread into the spool; a lack of room raises nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from rollout_traces.capture.device_copy import MAX_IN_FLIGHT, CudaCopier, Staged, TooManyInFlight
from rollout_traces.capture.host_copy import Capture, Captured
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.counted_warnings import Warnings
from rollout_traces.spool.patient_writer import PatientWriter
from rollout_traces.spool.record import Record, encode

log = logging.getLogger("rollout_traces")

T = TypeVar("T")


class HandOver:
    """Writes records to a spool, in the order handed over.

    A spool at its limit takes batches without their tokens, which is counted and said.

    Args:
        writer: writes to the spool.
        warnings: where what was left out is counted.
        max_bytes: budget of one hand-over.
        copier: how tensors leave the device; made when None.
    """

    def __init__(
        self, writer: PatientWriter, warnings: Warnings, max_bytes: int, copier: CudaCopier | None = None
    ) -> None:
        self.writer = writer
        self._warnings = warnings
        self._capture = Capture(max_bytes)
        self._background_capture = Capture(max_bytes)
        self._copier = copier or CudaCopier()
        self._background_writer: ThreadPoolExecutor | None = None
        self._newest: Future[Any] | None = None
        self._hiring = threading.Lock()
        self._capturing = threading.Lock()
        self._behind: list[Future[None]] = []

    def rollouts(self, batches: Sequence[RolloutBatch], **details: Any) -> Captured:
        """Captures batches and writes them: in order after pending GPU transfers, without waiting for these.

        Args:
            batches: the parts of one hand-over.
            **details: as `Capture.take`.

        Returns:
            What was captured; its buffers are not valid any more.

        Raises:
            TooManyInFlight: too many are waiting for the GPU already.
        """
        with self._capturing:
            self._behind = [writing for writing in self._behind if not writing.done()]
            if len(self._behind) >= MAX_IN_FLIGHT:
                raise TooManyInFlight(
                    f"{len(self._behind)} hand-overs are waiting for one from the GPU already"
                )
            captured = self._take(self._capture, batches, details)
            if self._is_behind_the_device:
                self._behind.append(self._write_later(captured.buffers, captured.n_rows))
            elif self.writer.put(captured.buffers, captured.n_rows).is_pending:
                self._capture.give_away()
        self._warnings.counters["rollouts_handed_over"] += captured.n_rows
        return captured

    def _take(
        self, capture: Capture, batches: Sequence[RolloutBatch], details: Mapping[str, Any]
    ) -> Captured:
        room = self.writer.room()
        try:
            captured = capture.take(batches, **details, room=room)
        except Exception:
            if len(batches) == 1:
                raise
            good = [batch for batch in batches if self._can_be_taken(capture, batch, details)]
            if not good:
                raise
            captured = capture.take(good, **details, room=room)
        if captured.n_without_tokens:
            self._warnings.count(
                "rollouts_without_tokens",
                "no room for the tokens of a hand-over; its scalars are kept",
                captured.n_without_tokens,
            )
        holes = [rows.holes for rows in captured.rows]
        if n_rows := sum(rows for rows, _ in holes):
            left_out = sum(tokens for _, tokens in holes)
            what = f"attention_mask has holes: {left_out} tokens between first and last ones of {n_rows} rollouts are "
            self._warnings.count("rollouts_with_holes", f"{what}taken for padding and left out", n_rows)
        return captured

    def _can_be_taken(self, capture: Capture, batch: RolloutBatch, details: Mapping[str, Any]) -> bool:
        """Tells whether a part can be captured by itself; where not, that is counted and its siblings go on."""
        try:
            capture.take([batch], **details)
        except Exception as error:  # noqa: BLE001  counted and warned
            self._warnings.count("batches_refused", error)
            return False
        return True

    def from_device(self, batches: Sequence[RolloutBatch], **details: Any) -> Future[Captured]:
        """Starts the transfer of batches with tensors on a GPU, and their writing; waits for neither.

        Until they are written, some tens of milliseconds, a crash loses them.

        Args:
            batches: the parts of one hand-over.
            **details: as `Capture.take`.

        Returns:
            What was captured, once it is.
        """
        staged = Staged(batches, self._copier)

        def write() -> Captured:
            try:
                captured = self._take(self._background_capture, staged.arrive(), details)
                if self.writer.put(captured.buffers, captured.n_rows).is_pending:
                    self._background_capture.give_away()
                self._warnings.counters["rollouts_handed_over"] += captured.n_rows
                return captured
            finally:
                staged.release()

        return self.later(write)

    def later(self, work: Callable[[], T]) -> Future[T]:
        """Queues work for the thread that waits for the device."""
        with self._hiring:
            if self._background_writer is None:
                self._background_writer = ThreadPoolExecutor(
                    1, thread_name_prefix="rollout-traces-background_writer"
                )
            self._newest = future = self._background_writer.submit(work)
        return future

    def wait_for_device(self, timeout: float) -> bool:
        """Waits until everything from a GPU is written.

        Returns:
            False when the time was not enough.
        """
        if self._newest is None:
            return True
        return bool(wait([self._newest], timeout).done)

    def put(self, record: Record) -> str | None:
        """Writes a small record.

        Returns:
            Its name; None when it is pending, or dropped for want of room.
        """
        return self.writer.put(encode(record)).name

    def post(self, record: Record) -> None:
        """Writes a small record without waiting for pending GPU transfers: after these, on their thread."""
        if self._is_behind_the_device:
            self._write_later(encode(record), 0)
        else:
            self.put(record)

    @property
    def _is_behind_the_device(self) -> bool:
        return self._newest is not None and not self._newest.done()

    def _write_later(self, buffers: Sequence[Any], n_rows: int) -> Future[None]:
        """Writes after the pending GPU transfers, on their thread."""
        owned = b"".join(buffers)

        def write() -> None:
            try:
                self.writer.put([owned], n_rows)
            except Exception as error:  # noqa: BLE001  nobody asks for this future; counted and warned
                self._warnings.count("rollouts_dropped" if n_rows else "records_dropped", error, n_rows or 1)

        return self.later(write)
