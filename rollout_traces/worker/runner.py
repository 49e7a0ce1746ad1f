"""Runs the worker: in a separate process, or in a thread of the trainer's process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from rollout_traces.errors import Warnings
from rollout_traces.model.private_files import is_locked
from rollout_traces.spool.run_folder import RunFolder
from rollout_traces.worker.consumer import SpoolConsumer
from rollout_traces.worker.main import NamedTargets

log = logging.getLogger("rollout_traces")

MAX_STARTS = 3
"""Workers that may fail to start before a thread takes over."""
UNHURT = 10.0
"""Seconds after which a worker that died had started well."""


class WorkerThread:
    """Processes in a thread of the trainer's process.

    Args:
        open_loop: builds the loop, on the thread.
        counters: the loop's counters.
    """

    kind = "thread"

    def __init__(self, open_loop: Callable[[], SpoolConsumer], counters: Counter[str]) -> None:
        self._open_loop = open_loop
        self._counters = counters
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Starts the thread; does nothing when it already runs."""
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="rollout-traces-worker", daemon=True)
                self._thread.start()

    def watch(self) -> None:
        """Nothing has to be restarted."""

    def counters(self) -> Counter[str]:
        """The worker's counters so far."""
        return Counter(self._counters)

    def stop(self, timeout: float) -> None:
        """Lets the thread end; what waits stays in the spool."""
        with self._lock:
            self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self._open_loop().run_until(self._stopped.is_set)
        except Exception as error:  # noqa: BLE001  counted and warned
            self.failure = error
            Warnings(self._counters).count(
                "worker_deaths", f"the worker stopped, records stay spooled: {error!r}", with_traceback=True
            )


class WorkerProcess:
    """Processes in a separate process, which outlives the trainer until nothing waits.

    Args:
        folder: the run's spools.
        named: what they may be sent to.
        environment: variables set for it in addition to the trainer's environment.
        on_failure: called once when no worker can be started.
    """

    kind = "process"

    def __init__(
        self,
        folder: RunFolder,
        named: NamedTargets,
        environment: Mapping[str, str],
        on_failure: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._named = named
        self._environment = environment
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._n_failed = 0
        self._given_up = False
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Starts the worker, in the background."""
        threading.Thread(target=self.watch, name="rollout-traces-start", daemon=True).start()

    def start_once(self) -> None:
        """Starts the worker, in the background; when it ends it is not started again."""
        threading.Thread(target=self._run_once, name="rollout-traces-start", daemon=True).start()

    def watch(self) -> None:
        """Starts the worker when there is none, and starts it again when it died with work left."""
        with self._lock:
            if self._given_up or self._stopping:
                return
            if self._process is not None:
                code = self._process.poll()
                if code is None:
                    return
                self._process = None
                well_started = time.monotonic() - self._started > UNHURT
                self._n_failed = 0 if well_started or code <= 0 else self._n_failed + 1
                if code:
                    log.warning(
                        "the worker ended with %d and is started again; see %s", code, self._folder.log
                    )
            if is_locked(self._folder.worker_lock.path):
                return
            if self._n_failed >= MAX_STARTS:
                self._give_up(f"it failed {MAX_STARTS} times, see {self._folder.log}")
                return
            self._start_process()

    def counters(self) -> Counter[str]:
        """The worker's counters so far."""
        return Counter(self._folder.status().get("counters", {}))

    def stop(self, timeout: float) -> None:
        """Waits for the worker to end by itself, as it does once its writers are gone and nothing waits."""
        with self._lock:
            self._stopping = True
            process = self._process
        if process is not None:
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                threading.Thread(target=process.wait, name="rollout-traces-reap", daemon=True).start()

    def _run_once(self) -> None:
        self.watch()
        if self._process is not None:
            self._process.wait()

    def _start_process(self) -> None:
        command = worker_command(self._folder, self._named)
        package = str(Path(__file__).resolve().parents[2])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "0"),
            "USE_TORCH": "0",
            **self._environment,
        }
        try:
            with self._folder.open_log() as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env=environment,
                )
            self._started = time.monotonic()
        except OSError as error:
            self._give_up(repr(error))

    def _give_up(self, why: str) -> None:
        self._given_up = True
        log.warning("no worker can be started (%s); a thread of this process processes instead", why)
        self._on_failure(why)


def worker_command(folder: RunFolder, named: NamedTargets) -> list[str]:
    """The command line of a process that processes a folder."""
    return [sys.executable, "-m", "rollout_traces.worker.main", str(folder.path), *named.as_arguments()]
