"""The pipeline of one logger: the spool that it writes to and the worker that empties it."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.capture.hand_over import HandOver
from rollout_traces.cluster.receiving import NodeReceiver
from rollout_traces.cluster.rendezvous import Ranks, rank_spool
from rollout_traces.decode.settings import DecodeSettings
from rollout_traces.errors import StoreError
from rollout_traces.logger.arguments import naming
from rollout_traces.logger.attempts import Attempts, attempts_of
from rollout_traces.model.counted_warnings import Warnings
from rollout_traces.model.live_lines import LIVE_FOLDER, LivePlace, live_folder
from rollout_traces.model.plain_values import plain
from rollout_traces.settings.logger_options import LoggerOptions
from rollout_traces.settings.names import file_stem
from rollout_traces.settings.secrets import without_secrets
from rollout_traces.sink.trackio_sink import TrackioSink
from rollout_traces.sink.webhook import ENVIRONMENT, LAST_WAIT, AlertWebhook
from rollout_traces.spool.account import Account, account_of, damage_of
from rollout_traces.spool.batch_record import ROLLOUTS
from rollout_traces.spool.folder import SpoolReader, SpoolWriter
from rollout_traces.spool.memory import MemorySpool
from rollout_traces.spool.patient_writer import PatientWriter
from rollout_traces.spool.record import Record
from rollout_traces.spool.run_folder import RANK_SPOOL, RunFolder, RunManifest, safe_name, take_run_folder
from rollout_traces.spool.tokenizer_files import save_tokenizer
from rollout_traces.steps.options import StepOptions
from rollout_traces.worker.close_log import CloseLog
from rollout_traces.worker.named_targets import NamedTargets
from rollout_traces.worker.publisher import Publisher
from rollout_traces.worker.recovery import find_left
from rollout_traces.worker.runner import WorkerProcess, WorkerThread

if TYPE_CHECKING:
    from rollout_traces.worker.consumer import SpoolConsumer

log = logging.getLogger("rollout_traces")

MAX_MEMORY_BYTES = 1 << 30
"""Bytes that may wait in memory, where a redact hook keeps the spool off the disk."""
LINGER = 20.0
"""Seconds that a rank which is finished waits for those that hand over through it, at most."""
PAUSE = 0.05
"""Seconds between two looks at the other ranks' spools, once finished."""
WATCH_EVERY = 0.5
"""Seconds between two looks at the worker and at what is kept in memory."""


@dataclass(frozen=True, eq=False)
class PipelineOptions:
    """Options of a logger's pipeline.

    Attributes:
        steps: all options of the logger, and what the run declares.
        tokenizer: the policy's, or None.
        decoding: settings for decoding in addition to the tokenizer.
        redact: see `RolloutLogger`.
    """

    steps: StepOptions
    tokenizer: Any
    decoding: DecodeSettings
    redact: Callable[[Mapping[str, Any]], Sequence[str]] | None

    @property
    def in_process(self) -> bool:
        """Starts the worker as a separate process where possible."""
        return self.steps.worker == "process"


class SpoolClient:
    """Where a logger hands over, and how it learns that it was stored.

    Args:
        spool: what is written to.
        warnings: where what happens is counted.
        options: budget of one hand-over, and how long a call waits for the disk.
        attempts: the run's.
    """

    def __init__(
        self,
        spool: SpoolWriter | MemorySpool,
        warnings: Warnings,
        options: LoggerOptions,
        attempts: Attempts,
    ) -> None:
        self.attempts = attempts
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
        """What became of what was handed over to the run on this node; None where nothing of it is damaged."""
        return (
            None if self._run_folder is None or not self._damage().is_hurt else account_of(self._run_folder)
        )

    @property
    def _run_folder(self) -> RunFolder | None:
        """The folder of the run's spools; None where they are in memory."""
        return None

    def _damage(self) -> Account:
        return Account() if self._run_folder is None else damage_of(self._run_folder)

    def somebody_waits(self) -> AbstractContextManager[None]:
        """Tells the worker that somebody waits for it, as long as the context lasts."""
        return nullcontext()

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


class LoggerPipeline(SpoolClient):
    """The spool and the worker of one logger.

    Args:
        sink: the run, as this process holds it.
        plan: what is wanted.
        warnings: where what happens is counted.
        ranks: this rank 0 among the others that share the run; None where there are none.
    """

    def __init__(
        self, sink: TrackioSink, plan: PipelineOptions, warnings: Warnings, ranks: Ranks | None = None
    ) -> None:
        self._sink = sink
        self._plan = plan
        self._ranks = ranks
        self._receiver: NodeReceiver | None = None
        self._folder: RunFolder | None = None
        self._worker_counters: Counter[str] = Counter()
        self._named = NamedTargets()
        spool = self._spool_on_disk() if plan.redact is None else self._spool_in_memory()
        super().__init__(spool, warnings, plan.steps, attempts_of(sink.run.id))
        self._worker: WorkerThread | WorkerProcess = self._make_worker()

    @property
    def _run_folder(self) -> RunFolder | None:
        return self._folder

    @property
    def live_place(self) -> LivePlace:
        """Where what this process says of rollouts in flight goes."""
        run = self._sink.run
        return place_of_run(project=run.project, run=run.name, run_id=run.id)

    def announce(self) -> None:
        """Makes the run known to readers before a step of it is stored."""
        self._sink.announce()

    @property
    def folder(self) -> RunFolder | None:
        """The run's spools; None where they are in memory."""
        return self._folder

    @property
    def dies_with_process(self) -> bool:
        """True when only this process can write, process or send the records that wait."""
        return (
            super().dies_with_process
            or self._worker.kind == "thread"
            or (self._receiver is not None and self._receiver.has_nodes)
        )

    def somebody_waits(self) -> AbstractContextManager[None]:
        """Tells the worker that somebody waits for it; a thread of this process is never niced."""
        return nullcontext() if self._folder is None else self._folder.waiters.one_more()

    def take_from(self, receiver: NodeReceiver) -> None:
        """Lets the ranks of other nodes send to this run too."""
        self._receiver = receiver
        receiver.start()

    @property
    def kind(self) -> str:
        """Where the worker runs: `process` or `thread`."""
        return self._worker.kind

    @property
    def run(self) -> Any:
        """The `trackio.Run`."""
        return self._sink.run

    def close(self, timeout: float, *, stored: bool) -> None:
        """Ends the hand-over. The worker goes on by itself while records wait."""
        deadline = time.monotonic() + min(timeout, LINGER)
        if self._receiver is not None:
            self._receiver.close(deadline - time.monotonic())
        self._end_writing()
        self._wait_for_ranks(deadline)
        self._worker.stop(min(timeout, 10.0) if stored else 0.1)
        if self._sink.webhook is not None:
            self._sink.webhook.close(min(timeout, LAST_WAIT) if stored else 0.1)
            self._last_counters = self._worker_counts()
        if isinstance(self._spool, MemorySpool):
            self._count_lost(self._spool.take_all())
            self._last_counters = self._worker_counts()
        if self._folder is not None and isinstance(self._worker, WorkerThread):
            self._folder.worker_lock.release()
            self._folder.remove_if_done()
        self._sink.finish()

    def _count_lost(self, records: Sequence[Record]) -> None:
        """A spool in memory ends with its logger: records that were not seen stored by then are counted as dropped."""
        why = "not stored when the logger finished, and the spool is in memory"
        for record in records:
            if record.kind == ROLLOUTS:
                self._warnings.count("rollouts_dropped", why, len(record.arrays["lengths"]))
            elif record.kind not in ("flush", "finish"):
                self._warnings.count("records_dropped", why)

    def _wait_for_ranks(self, deadline: float) -> None:
        """Processes for the other ranks until they have finished, where that takes this process."""
        if self._folder is None or self._ranks is None or not isinstance(self._worker, WorkerThread):
            return
        self._worker.start()
        while not self._folder.is_done():
            if self._worker.failure is not None or time.monotonic() >= deadline:
                self._warnings.count(
                    "ranks_left", "not all ranks have finished or are stored; the rest waits"
                )
                break
            time.sleep(PAUSE)
        self._last_counters = self._worker_counts()

    def _spool_in_memory(self) -> MemorySpool:
        log.warning(
            "redact: the spool is in memory only, %d MB at most; what is not stored is lost with this process.",
            MAX_MEMORY_BYTES >> 20,
        )
        return MemorySpool(MAX_MEMORY_BYTES)

    def _spool_on_disk(self) -> SpoolWriter:
        import trackio.utils

        run = self._sink.run
        self._folder = take_run_folder(Path(trackio.utils.TRACKIO_DIR), run.project, run.id)
        name = unique() if self._ranks is None else rank_spool(self._ranks.rank, unique())
        writer = self._folder.writer_folder(name)
        return SpoolWriter(writer, self._plan.steps.max_spool_bytes)

    def _make_worker(self) -> WorkerThread | WorkerProcess:
        if self._folder is None:
            return self._thread_worker()
        with naming("tokenizer"):
            saved = self._plan.tokenizer is None or save_tokenizer(
                self._plan.tokenizer, self._folder.tokenizer
            )
        self._declare(self._folder, self._manifest(has_tokenizer=saved))
        self._named = NamedTargets.of(self._folder.manifest())
        reason = self._why_not_a_process(tokenizer_saved=saved)
        if not self._plan.in_process:
            return self._thread_worker()
        if reason is not None:
            log.info("the worker runs in a thread: %s", reason)
            return self._thread_worker()
        return WorkerProcess(self._folder, self._named, self._secrets(), self._fall_back)

    def _declare(self, folder: RunFolder, manifest: RunManifest) -> None:
        """Writes what the worker reads, unless another logger of this run did and still hands over."""
        mine = self.reader.spool
        others = [
            reader
            for reader in folder.readers()
            if reader.spool != mine and not reader.spool.startswith(RANK_SPOOL) and not reader.owner_is_gone
        ]
        try:
            held = folder.manifest().as_plain() if others else None
        except StoreError as error:  # the other is just beginning, or its manifest is damaged
            log.info("%s", error)
            held = None
        if held is None:
            folder.write_manifest(manifest)
            return
        wanted = RunManifest.from_plain(orjson.loads(manifest.as_json())).as_plain()
        differ = [key for key in ("options", "decoding", "has_tokenizer") if held[key] != wanted[key]]
        if differ:
            log.warning(
                "another logger writes to run %s with other settings (%s): its settings hold for both.",
                manifest.run_name,
                ", ".join(differ),
            )

    def _why_not_a_process(self, *, tokenizer_saved: bool) -> str | None:
        """Why the worker's inputs cannot be sent to another process; None when they can."""
        if callable(self._plan.steps.selection):
            return "a callable selection stays in this process"
        if self._plan.decoding.as_plain() is None:
            return "a dialect or template arguments that JSON cannot hold stay in this process"
        return None if tokenizer_saved else "the tokenizer does not survive save_pretrained"

    def _manifest(self, *, has_tokenizer: bool) -> RunManifest:
        run, steps = self._sink.run, self._plan.steps
        if callable(steps.selection):
            steps = replace(steps, selection="portfolio")
        config = {key: value for key, value in dict(run.config or {}).items() if not key.startswith("_")}
        return RunManifest(
            project=run.project,
            run_name=run.name,
            run_id=run.id,
            group=getattr(run, "group", None),
            config=without_secrets(plain(config), self._plan.steps.not_secret)[0],
            space_id=self._plan.steps.space_id or getattr(run, "_space_id", None),
            server_url=(self._plan.steps.server_url or "").split("?")[0] or run_server(run),
            private=self._plan.steps.private if self._plan.steps.space_id else None,
            options=steps.as_plain(),
            decoding=self._plan.decoding.as_plain() or {},
            has_tokenizer=has_tokenizer and self._plan.tokenizer is not None,
        )

    def _secrets(self) -> dict[str, str]:
        """Secrets that are never written to disk: the worker gets them through its environment."""
        webhook = {ENVIRONMENT: self._plan.steps.alert_webhook} if self._plan.steps.alert_webhook else {}
        return webhook | self._write_token()

    def _write_token(self) -> dict[str, str]:
        token = getattr(self._sink.run, "_write_token", None)
        return {"TRACKIO_WRITE_TOKEN": token} if token else {}

    def _thread_worker(self) -> WorkerThread:
        return WorkerThread(self._open_loop, self._worker_counters)

    def _open_loop(self) -> SpoolConsumer:
        # a worker of another process has no need of them here
        from rollout_traces.steps.processor import StepProcessor
        from rollout_traces.worker.consumer import SpoolConsumer

        decoder = self._decoder()
        while self._folder is not None and not self._folder.worker_lock.acquire():
            if self._stopped.wait(0.2):
                break
        folder = self._folder
        readers = folder.readers if folder is not None else lambda: [self.reader]
        counters = self._worker_counters
        if folder is not None:
            counters.update(folder.status().get("counters", {}))
        if self._plan.steps.alert_webhook:
            run = self._sink.run
            self._sink.webhook = AlertWebhook(self._plan.steps.alert_webhook, run.project, run.name, counters)
        return SpoolConsumer(
            readers,
            lambda: StepProcessor(self._sink, decoder, self._plan.steps, counters, redact=self._plan.redact),
            self._sink,
            counters,
            CloseLog(None if folder is None else folder.closes),
            self._publish,
        )

    def _publish(self) -> None:
        if self._folder is not None:
            Publisher(self._folder, self._worker_counters).now()

    def _decoder(self) -> Any:
        from rollout_traces.decode.messages import MessagesDecoder

        if self._plan.tokenizer is None:
            return MessagesDecoder()
        return self._plan.decoding.decoder(self._plan.tokenizer)

    def _fall_back(self, why: str) -> None:
        self._warnings.count("workers_failed", why)
        self._worker = self._thread_worker()
        self._worker.start()

    def _watch(self) -> None:
        self._recover_others()
        super()._watch()

    def _look_after(self) -> None:
        if isinstance(self._worker, WorkerThread):
            self._worker.start()
        else:
            self._worker.watch()

    def _worker_counts(self) -> Counter[str]:
        return self._worker.counters()

    def _recover_others(self) -> None:
        """Starts recovery of the spools that killed trainers of the project left behind."""
        if self._folder is None or not self._plan.in_process:
            return
        for left in find_left(self._sink.run.project, [self._folder.path.parent.parent]):
            if left.folder.path == self._folder.path or left.in_use:
                continue
            if not self._named.has_remote(left.manifest):
                log.info("%s goes to %s, and this run does not", left.folder.path, left.manifest.remote)
                continue
            token = self._write_token() if left.manifest.remote else {}
            WorkerProcess(left.folder, self._named, token, log.warning).start_once()


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
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def run_server(run: Any) -> str | None:
    """The self-hosted server a run writes to, without its write token."""
    return getattr(run, "_server_base_url", None)
