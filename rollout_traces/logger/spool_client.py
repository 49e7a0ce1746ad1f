"""The client of a logger's spool, which also learns that what was handed over is stored."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rollout_traces.capture.hand_over import HandOver
from rollout_traces.errors import Warnings
from rollout_traces.logger.attempts import Attempts
from rollout_traces.model.live_lines import LIVE_FOLDER, LivePlace, live_folder
from rollout_traces.model.names import file_stem
from rollout_traces.model.text import fresh_name
from rollout_traces.settings.logger_options import LoggerOptions
from rollout_traces.spool.folder import MemorySpool, SpoolReader, SpoolWriter
from rollout_traces.spool.patient_writer import PatientWriter
from rollout_traces.spool.record import Record
from rollout_traces.spool.run_folder import Account, RunFolder, account_of, damage_of, safe_name

WATCH_EVERY = 0.5
"""Seconds between two looks at the worker and at what is kept in memory."""


class SpoolClient:
    """The spool that a logger hands over to, with news of what was stored.

    Args:
        spool: what is written to.
        folder: of the run's spools on this node; None where they are in memory.
        options: budget of one hand-over, and how long a call waits for the disk.
        warnings: where what happens is counted.
        attempts: the run's.
        live: where what this process says of rollouts in flight goes.
    """

    def __init__(
        self,
        spool: SpoolWriter | MemorySpool,
        folder: RunFolder | None,
        options: LoggerOptions,
        warnings: Warnings,
        attempts: Attempts,
        live: LivePlace,
    ) -> None:
        self.folder = folder
        self.attempts = attempts
        self.live_place = live
        self._spool = spool
        self._writer = PatientWriter(spool, warnings, options.write_seconds)
        self._warnings = warnings
        self._stopped = threading.Event()
        self._started = False
        self._last_counters: Counter[str] = Counter()
        self.reader = spool if isinstance(spool, MemorySpool) else SpoolReader(spool.folder)
        self.hand_over = HandOver(self._writer, warnings, options.max_bytes_per_step)

    @property
    def dies_with_process(self) -> bool:
        """True when only this process can write, process or send the records that wait."""
        return self._writer.n_pending > 0

    @property
    def is_on_disk(self) -> bool:
        """True when waiting records outlive this process."""
        return isinstance(self._spool, SpoolWriter)

    def account_of_damage(self) -> Account | None:
        """Reads the account of what was handed over to the run on this node; None where nothing of it is damaged."""
        return None if self.folder is None or not self._damage().is_hurt else account_of(self.folder)

    def _damage(self) -> Account:
        return Account() if self.folder is None else damage_of(self.folder)

    def somebody_waits(self) -> AbstractContextManager[None]:
        """Tells the worker, where it is another process of this node, that somebody waits, as long as the context lasts."""
        return nullcontext() if self.folder is None else self.folder.waiters.one_more()

    def start(self) -> None:
        """Starts the background work; does nothing when it already runs."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._watch, name="rollout-traces-watch", daemon=True).start()

    def counters(self) -> Counter[str]:
        """The worker's counters, and the numbers of records that wait: on disk to be stored, in memory for the disk."""
        if not self._stopped.is_set():
            self._last_counters = self._worker_counts() + Counter({"rollouts_lost": self._damage().lost})
        waiting = len(self.reader.names())
        return Counter(self._last_counters) + Counter(
            {"spooled": waiting, "records_pending": self._writer.n_pending}
        )

    def wait_spooled(self, timeout: float) -> bool:
        """Waits until everything handed over is in the spool; no step is closed.

        Returns:
            False when the time was not enough.
        """
        deadline = time.monotonic() + timeout
        if not self.hand_over.wait_for_device(timeout):
            return False
        self.start()
        return self._writer.wait(deadline - time.monotonic())

    def wait_stored(self, kind: str, timeout: float) -> bool:
        """Hands over a `flush` or `finish` and waits until all up to it is stored.

        Returns:
            False when the time was not enough.
        """
        deadline = time.monotonic() + timeout
        if self._stopped.is_set():
            return not self.reader.names()
        if kind == "finish" and not self._started and not self.reader.names():
            return True
        if not self.hand_over.wait_for_device(timeout):
            return False
        mark = self.hand_over.put(Record(kind, {}))
        self.start()
        pause = 0.01
        while True:
            if not self._writer.n_pending:
                mark = mark or self._writer.last_name
                if self._is_stored(mark):
                    self._spool.count_waiting()
                    return True
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def _is_stored(self, name: str) -> bool:
        """True when a record, and all before it, are stored; that one is mostly the last to be."""
        if self.reader.has(name):
            return False
        names = self.reader.names()
        return not names or names[0] > name

    def _end_writing(self) -> None:
        """Ends writing; records that could not be written to disk by now are counted as lost."""
        self.counters()
        self._stopped.set()
        self._writer.close()

    def _watch(self) -> None:
        while True:
            try:
                self._look_after()
                self._spool.count_waiting()
                self._spool.keep_ahead()
            except Exception as error:  # noqa: BLE001  the watch must go on; counted and warned
                self._warnings.count("watch_errors", error)
            if self._stopped.wait(WATCH_EVERY):
                return

    def _look_after(self) -> None:
        """Runs the periodic work."""

    def _worker_counts(self) -> Counter[str]:
        return Counter()


def place_of_run(project: str, run: str, run_id: str) -> LivePlace:
    """The live files of a run, beside its project.

    Args:
        project: Trackio project.
        run: Trackio run.
        run_id: Trackio's id of it.
    """
    import trackio.utils

    beside = Path(trackio.utils.TRACKIO_DIR)
    folder = live_folder(beside, file_stem(project), safe_name(run_id))
    return LivePlace(folder, beside / LIVE_FOLDER, project, run, run_id)


def unique() -> str:
    """A name for a spool that no other process uses."""
    return f"{os.getpid()}-{fresh_name()}"
