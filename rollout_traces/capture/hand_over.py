"""From the calling thread into the spool; a lack of room raises nothing.

Columns that exist only after the update are joined to the rollouts that were handed over before it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from rollout_traces.capture.device_copy import (
    MAX_IN_FLIGHT,
    CudaCopier,
    Staged,
    TooManyInFlight,
    flat,
    on_gpu,
    owned_copy,
)
from rollout_traces.capture.host_copy import Capture, Captured, plain_list
from rollout_traces.capture.part import PaddedRows, find_rows, host_array
from rollout_traces.errors import BatchError, Warnings
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.transcript import FLOAT_TRACKS
from rollout_traces.spool.patient_writer import PatientWriter
from rollout_traces.spool.record import Record, encode

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


ROW_KEYS = ("advantages", "losses")
"""Keys that may be given per row, [B]."""


JOINABLE = tuple(dict.fromkeys((*FLOAT_TRACKS, *ROW_KEYS)))
"""Keys that may come later."""


def join_record(captured: Captured, columns: Mapping[str, Any]) -> Record:
    """The record of a join.

    Args:
        captured: the hand-over.
        columns: canonical per-token float tracks, [B, T] in one array or one array a part, in the layout
            of the hand-over or of an `attention_mask` given along; `advantages` or `losses` [B];
            `sample_ids` when the rows come in another order.

    Returns:
        The record: tracks without padding as float32 [N], row values as float64 [B].

    Raises:
        BatchError: a key is unknown, or a shape does not fit; the text says what was expected.
    """
    values = dict(columns)
    order = _order(captured.sample_ids, values.pop("sample_ids", None), captured.n_rows)
    mask = values.pop("attention_mask", None)
    layout = captured.rows if mask is None else tuple(find_rows(part) for part in _arrays(mask))
    arrays: dict[str, np.ndarray] = {}
    for key, value in values.items():
        parts = _arrays(value)
        if key in ROW_KEYS and sum(part.size for part in parts) == captured.n_rows:
            row_values = np.concatenate([part.reshape(-1) for part in parts])
            arrays[f"row/{key}"] = row_values[order].astype(np.float64)
        elif key in FLOAT_TRACKS:
            arrays[f"track/{key}"] = _track(key, parts, layout, captured, order)
        else:
            raise BatchError(
                f"join: {key!r} is unknown. Expected one of {', '.join(FLOAT_TRACKS)} as [B, T], or "
                f"{', '.join(ROW_KEYS)} as [B] = ({captured.n_rows},)."
            )
    return Record("join", {"batch_id": captured.batch_id}, arrays)


def _track(
    key: str, parts: Sequence[np.ndarray], layout: Sequence[PaddedRows], captured: Captured, order: np.ndarray
) -> np.ndarray:
    rows = [
        (part, rows, b) for part, rows in zip(parts, layout, strict=False) for b in range(len(rows.lengths))
    ]
    fits = len(parts) == len(layout) and all(
        part.ndim == 2 and len(part) == len(rows.lengths) for part, rows in zip(parts, layout, strict=False)
    )
    if not fits or len(rows) != captured.n_rows:
        raise BatchError(
            f"join: {key!r} seen with shapes {[part.shape for part in parts]}. Expected {len(layout)} arrays [B, T] "
            f"with {[len(part.lengths) for part in layout]} rows, as they were handed over."
        )
    lengths = [length for part in captured.rows for length in part.lengths]
    taken = []
    for row in np.flatnonzero(captured.kept).tolist():
        part, where, b = rows[int(order[row])]
        tokens = where.tokens_of(part, b)
        if len(tokens) != lengths[row]:
            raise BatchError(
                f"join: {key!r} has {len(tokens)} tokens in row {row}. Expected {lengths[row]}, as handed over; give the "
                "attention_mask along when the padding is another."
            )
        taken.append(tokens.astype(np.float32))
    return np.concatenate(taken) if taken else np.zeros(0, np.float32)


def _order(own: Sequence[Any] | None, given: Any, n_rows: int) -> np.ndarray:
    """int64 [B]: for each row handed over, its row in the joined columns; equal ids in their order."""
    if given is None:
        return np.arange(n_rows)
    if own is None:
        raise BatchError("join: sample_ids given, but the hand-over had none. Join in its order instead.")
    places: dict[str, deque[int]] = {}
    for place, value in enumerate(plain_list(given)):
        places.setdefault(str(value), deque()).append(place)
    order = []
    for value in own:
        left = places.get(str(value))
        if not left:
            raise BatchError(f"join: sample_ids lack {value!r}. Expected all {n_rows} of the hand-over.")
        order.append(left.popleft())
    return np.asarray(order, np.int64)


def _arrays(value: Any) -> list[np.ndarray]:
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "shape"):
        return [host_array(part) for part in value]
    return [host_array(value)]


@dataclass(frozen=True, eq=False)
class RolloutHandle:
    """One hand-over, to which columns can be joined later in the same step.

    Attributes:
        batch_id: the hand-over's id; None when it was refused.
    """

    batch_id: str | None
    _captured: Captured | Future[Captured] | None = None
    _joins: Joins | None = None

    def join(self, **columns: Any) -> None:
        """Adds columns to the rollouts handed over; they reach the ledger, and traces that await them.

        Args:
            **columns: canonical keys: per-token float tracks [B, T] in the batch's own layout
                (`advantages`, `prox_logprobs`, `new_logprobs`, ...), one array or one a part;
                `advantages` or `losses` [B]; `attention_mask` [B, T] when the padding is another;
                `sample_ids` when the rows come in another order.
        """
        if self._joins is not None and self._captured is not None:
            self._joins.add(self._captured, columns)


class Joins:
    """Writes what a logger's handles join to its spool.

    Args:
        hand_over: writes the records.
        warnings: where joins are counted, and refused ones warned about.
        check_open: raises where nothing can be logged any more.
    """

    def __init__(self, hand_over: HandOver, warnings: Warnings, check_open: Callable[[], None]) -> None:
        self._hand_over = hand_over
        self._warnings = warnings
        self._check_open = check_open

    def add(self, captured: Captured | Future[Captured], columns: Mapping[str, Any]) -> None:
        """Joins columns to a hand-over; those on a GPU, or of a hand-over that still comes from one, later."""
        try:
            self._check_open()
            if isinstance(captured, Captured) and not any(map(on_gpu, flat(columns))):
                self._hand_over.post(join_record(captured, columns))
            else:
                owned = {key: owned_copy(value) for key, value in columns.items()}

                def join() -> str | None:
                    known = captured if isinstance(captured, Captured) else captured.result()
                    return self._hand_over.put(join_record(known, owned))

                warn_of_failure(self._hand_over.later(join), self._warnings)
            self._warnings.counters["joins_handed_over"] += 1
        except Exception as error:  # noqa: BLE001  logging never raises into training; counted and warned
            self._warnings.count("joins_refused", error)


def warn_of_failure(future: Future[Any], warnings: Warnings) -> None:
    """Counts and warns when work on the device's thread fails."""

    def look(done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            warnings.count("batches_refused", error)

    future.add_done_callback(look)
