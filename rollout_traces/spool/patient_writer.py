"""Writes records on a thread, so that whoever hands one over waits for a slow disk up to a bound and no longer.

A write that is blocked cannot be left. So one thread writes, in the order handed over, and the caller waits for its
record: on a healthy disk until it is written. Once a record took longer than the bound, or the disk was full, it is
*pending*: in memory, within a budget, counted, and lost if the process is killed. As long as one is pending nobody waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple

from rollout_traces.errors import Warnings
from rollout_traces.model.units import MB
from rollout_traces.spool.folder import DiskFull, MemorySpool, SpoolFull, SpoolWriter
from rollout_traces.spool.record import decode

MAX_PENDING_BYTES = 256 * MB
"""Bytes of records that wait in memory for a slow or a full disk."""
TRY_AGAIN = 0.5
"""Seconds until a disk that refused a record is tried again."""
LAST_WAIT = 1.0
"""Seconds that the end waits for a write that is under way."""


class Put(NamedTuple):
    """The result of handing over a record: what became of it until its caller went on.

    Attributes:
        name: its name in the spool; None where it is not written.
        is_pending: it is in memory, and so are the buffers that it was given in: they are not the caller's any more.
    """

    name: str | None
    is_pending: bool = False


@dataclass(eq=False)
class _Job:
    buffers: Sequence[Any]
    size: int
    n_rows: int
    over: Any = field(default_factory=threading.Lock)
    name: str | None = None
    is_over: bool = False
    is_pending: bool = False
    why: object = ""


class PatientWriter:
    """Writes a spool's records.

    Args:
        spool: where they go.
        warnings: where pending and dropped records are counted.
        seconds: how long a caller waits for its record at most.

    Attributes:
        last_name: of the newest record that was written.
    """

    def __init__(self, spool: SpoolWriter | MemorySpool, warnings: Warnings, seconds: float) -> None:
        self.spool = spool
        self.last_name = ""
        self._warnings = warnings
        self._seconds = seconds
        self._lock = threading.Lock()
        self._given: SimpleQueue[_Job | None] = SimpleQueue()
        self._jobs: deque[_Job] = deque()
        self._pending_bytes = 0
        self._n_pending = 0
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    @property
    def n_pending(self) -> int:
        """Records in memory that their callers do not wait for any more."""
        return self._n_pending

    def room(self) -> int:
        """Bytes of tokens that there is room for, in memory where something is pending."""
        room = self.spool.room()
        return min(room, MAX_PENDING_BYTES - self._pending_bytes) if self._n_pending else room

    def put(self, buffers: Sequence[Any], n_rows: int = 0) -> Put:
        """Writes a record, or leaves it pending; a lack of room raises nothing.

        Args:
            buffers: its bytes.
            n_rows: rollouts in it, to be counted where it is dropped.
        """
        job = _Job(buffers, sum(map(len, buffers)), n_rows)
        job.over.acquire()
        with self._lock:
            if self._ended.is_set():
                return self._drop(job, "the logger has finished")
            waits = not self._n_pending
            if not waits and not self._keep(job, "the disk is still slow or full"):
                return Put(None)
            self._jobs.append(job)
            self._start()
            self._given.put(job)
        if waits and not job.over.acquire(timeout=self._seconds):
            with self._lock:
                if not job.is_over and not job.is_pending:
                    self._keep(job, f"the disk took longer than {self._seconds:g} s", within_budget=False)
        return Put(job.name, job.is_pending)

    def wait(self, timeout: float) -> bool:
        """Waits until nothing is pending.

        Returns:
            False when the time was not enough.
        """
        deadline = time.monotonic() + timeout
        while self._n_pending:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def close(self) -> None:
        """Ends: what is still pending then is counted as lost, and the spool is closed by who writes to it."""
        self.wait(LAST_WAIT)
        with self._lock:
            self._ended.set()
            for job in [job for job in self._jobs if job.is_pending]:
                self._forget(job)
                if job.n_rows or decode(b"".join(job.buffers)).kind not in ("flush", "finish"):
                    self._drop(job, "the disk was still slow or full when the logger finished")
            self._given.put(None)
        if self._thread is None:
            self.spool.close()
        else:
            self._thread.join(LAST_WAIT)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="rollout-traces-write", daemon=True)
            self._thread.start()

    def _keep(self, job: _Job, why: object, *, within_budget: bool = True) -> bool:
        """Lets a record be pending; the caller holds the lock. False where it is dropped."""
        if within_budget and self._pending_bytes + job.size > MAX_PENDING_BYTES:
            self._drop(job, f"{why}, and {self._pending_bytes} bytes are pending already")
            return False
        job.is_pending = True
        self._n_pending += 1
        self._pending_bytes += job.size
        self._warnings.count("records_kept_in_memory", f"{why}; a crash now would lose them")
        return True

    def _forget(self, job: _Job) -> None:
        """Takes a record off those that wait; the caller holds the lock."""
        job.is_over = True
        self._jobs.remove(job)
        if job.is_pending:
            self._n_pending -= 1
            self._pending_bytes -= job.size

    def _drop(self, job: _Job, why: object) -> Put:
        self._warnings.count("rollouts_dropped" if job.n_rows else "records_dropped", why, job.n_rows or 1)
        return Put(None)

    def _write_all(self) -> None:
        while (job := self._given.get()) is not None:
            while not job.is_over and not self._write(job):
                self._ended.wait(TRY_AGAIN)
        self.spool.close()

    def _write(self, job: _Job) -> bool:
        """Writes a record, or says that it is over without.

        Returns:
            False where there is no room for it now.
        """
        name, why = None, None
        try:
            if job.is_pending:
                self.spool.count_waiting()
            name = self.spool.append(job.buffers)
        except Exception as error:  # noqa: BLE001  the thread must go on; kept, or counted as dropped
            why = error
        with self._lock:
            if job.is_over:
                return True
            is_patient = isinstance(why, (OSError, DiskFull)) or (
                job.is_pending and isinstance(why, SpoolFull)
            )
            if is_patient and not self._ended.is_set():
                if not job.is_pending:
                    self._keep(job, why, within_budget=False)
                _release(job)
                return False
            self._forget(job)
            if why is not None:
                self._drop(job, why)
            job.name = name
            self.last_name = name or self.last_name
            _release(job)
            return True


def _release(job: _Job) -> None:
    if job.over.locked():
        job.over.release()
