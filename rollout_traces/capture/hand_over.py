"""From the calling thread into the spool; a lack of room raises nothing."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

from rollout_traces.batch import RolloutBatch
from rollout_traces.capture.device_copy import MAX_IN_FLIGHT, Copier, CudaCopier, Staged, TooManyInFlight
from rollout_traces.capture.host_copy import Capture, Captured
from rollout_traces.counted_warnings import Warnings
from rollout_traces.spool.folder import DiskFull, SpoolFull
from rollout_traces.spool.record import Record, decode, encode

log = logging.getLogger("rollout_traces")

T = TypeVar("T")
MAX_KEPT_BYTES = 256 << 20
"""Bytes of records that are kept in memory while the disk is full."""


class RecordWriter(Protocol):
    """A spool as the hand-over sees it."""

    def append(self, buffers: Sequence[Any]) -> str: ...

    def room(self) -> int: ...

    def count_waiting(self) -> int: ...

    def keep_ahead(self) -> None: ...


class HandOver:
    """Writes records to a spool, in the order handed over.

    A spool at its limit takes batches without their tokens; while the disk is full records are kept in
    memory, and written by another thread when there is room again. Both are counted and said.

    Args:
        writer: the spool.
        warnings: where what was left out is counted.
        max_bytes: budget of one hand-over.
        copier: how tensors leave the device; CUDA's by default.
    """

    def __init__(
        self, writer: RecordWriter, warnings: Warnings, max_bytes: int, copier: Copier | None = None
    ) -> None:
        self.writer = writer
        self._warnings = warnings
        self._capture = Capture(max_bytes)
        self._background_capture = Capture(max_bytes)
        self._copier = copier if copier is not None else CudaCopier()
        self._background_writer: ThreadPoolExecutor | None = None
        self._newest: Future[Any] | None = None
        self._hiring = threading.Lock()
        self._capturing = threading.Lock()
        self._lock = threading.Lock()
        self._behind: list[Future[None]] = []
        self._retrying = threading.Lock()
        self._kept: deque[tuple[bytes, int]] = deque()
        self._kept_bytes = 0
        self._ended = False
        self.last_name = ""

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
            writing = self._write_in_order(captured.buffers, captured.n_rows)
            self._behind += [writing] if writing else []
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
        return captured

    def _can_be_taken(self, capture: Capture, batch: RolloutBatch, details: Mapping[str, Any]) -> bool:
        """Whether a part can be captured by itself; where not, that is counted and its siblings go on."""
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
                with self._lock:
                    self._write(captured.buffers, captured.n_rows)
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
            Its name; None when it is kept in memory for now, or dropped for want of room.
        """
        buffers = encode(record)
        with self._lock:
            return self._write(buffers, 0)

    def post(self, record: Record) -> None:
        """Writes a small record without waiting for pending GPU transfers: after these, on their thread."""
        self._write_in_order(encode(record), 0)

    def _write_in_order(self, buffers: Sequence[Any], n_rows: int) -> Future[None] | None:
        """Writes at once where no GPU transfer is pending, else after the pending ones, on their thread.

        Returns:
            None where it is written.
        """
        if self._newest is None or self._newest.done():
            with self._lock:
                self._write(buffers, n_rows)
            return None
        owned = b"".join(buffers)

        def write() -> None:
            try:
                with self._lock:
                    self._write([owned], n_rows)
            except Exception as error:  # noqa: BLE001  nobody asks for this future; counted and warned
                self._drop(n_rows, error)

        return self.later(write)

    def retry(self) -> bool:
        """Writes the records kept in memory, as far as there is room; call it from time to time, on any thread.

        A hand-over waits for none of it: what comes meanwhile is kept too, and so stays in order.

        Returns:
            True when nothing is kept.
        """
        with self._retrying:
            if self._kept:
                self.writer.count_waiting()
            while self._kept:
                try:
                    self.last_name = self.writer.append([self._kept[0][0]])
                except (SpoolFull, OSError):
                    return False
                with self._lock:
                    self._kept_bytes -= len(self._kept.popleft()[0])
            return True

    def drop_kept(self) -> None:
        """Ends: records still kept in memory are counted as lost, and none are kept any more."""
        with self._retrying, self._lock:
            self._ended = True
            while self._kept:
                data, n_rows = self._kept.popleft()
                if n_rows or decode(data).kind not in ("flush", "finish"):
                    self._drop(n_rows, "the disk was still full when the logger finished")
            self._kept_bytes = 0

    def _write(self, buffers: Sequence[Any], n_rows: int) -> str | None:
        if self._kept:
            self._keep(buffers, n_rows, "the disk is still full")
            return None
        try:
            self.last_name = self.writer.append(buffers)
        except DiskFull as error:
            self._keep(buffers, n_rows, error)
        except SpoolFull as error:
            self._drop(n_rows, error)
        except OSError as error:
            self._keep(buffers, n_rows, error)
        else:
            return self.last_name
        return None

    def _keep(self, buffers: Sequence[Any], n_rows: int, why: object) -> None:
        if self._ended:
            self._drop(n_rows, f"{why}, and the logger has finished")
            return
        size = sum(map(len, buffers))
        if self._kept_bytes + size > MAX_KEPT_BYTES:
            self._drop(n_rows, f"{why}, and {self._kept_bytes} bytes are kept in memory already")
            return
        self._kept.append((b"".join(buffers), n_rows))
        self._kept_bytes += size
        self._warnings.count("records_kept_in_memory", f"{why}; a crash now would lose them")

    def _drop(self, n_rows: int, why: object) -> None:
        self._warnings.count("rollouts_dropped" if n_rows else "records_dropped", why, n_rows or 1)
