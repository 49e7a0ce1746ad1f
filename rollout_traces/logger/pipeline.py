"""The pipeline of one logger: the spool that it writes to and the worker that empties it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.cluster.receiving import NodeReceiver
from rollout_traces.cluster.rendezvous import Ranks, rank_spool
from rollout_traces.decode.decoder import DecodeSettings
from rollout_traces.decode.messages import MessagesDecoder
from rollout_traces.errors import StoreError, Warnings
from rollout_traces.logger.arguments import naming
from rollout_traces.logger.attempts import attempts_of
from rollout_traces.logger.spool_client import SpoolClient, place_of_run, unique
from rollout_traces.model.plain_values import plain
from rollout_traces.model.secrets import without_secrets
from rollout_traces.model.units import GB, MB
from rollout_traces.sink.trackio_sink import TrackioSink
from rollout_traces.sink.webhook import ENVIRONMENT, LAST_WAIT, AlertWebhook
from rollout_traces.spool.folder import MemorySpool, SpoolWriter
from rollout_traces.spool.record import ROLLOUTS, Record
from rollout_traces.spool.run_folder import (
    RANK_SPOOL,
    Publisher,
    RunFolder,
    RunManifest,
    save_tokenizer,
    take_run_folder,
)
from rollout_traces.steps.processor import StepProcessor
from rollout_traces.steps.run_state import StepOptions
from rollout_traces.worker.consumer import SpoolConsumer
from rollout_traces.worker.main import NamedTargets
from rollout_traces.worker.recovery import find_left
from rollout_traces.worker.replay import CloseLog
from rollout_traces.worker.runner import WorkerProcess, WorkerThread

log = logging.getLogger("rollout_traces")

MAX_MEMORY_BYTES = GB
"""Bytes that may wait in memory, where a redact hook keeps the spool off the disk."""
LINGER = 20.0
"""Seconds that a rank which is finished waits for those that hand over through it, at most."""
NOT_STORED = 0.1
"""Seconds that the worker and alerts on their way are given where not all was stored in time."""
PAUSE = 0.05
"""Seconds between two looks at the other ranks' spools, once finished."""


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
        run = sink.run
        folder, spool = _spool_in_memory() if plan.redact is not None else _spool_on_disk(run, plan, ranks)
        place = place_of_run(project=run.project, run=run.name, run_id=run.id)
        super().__init__(spool, folder, plan.steps, warnings, attempts_of(run.id), place)
        self._sink = sink
        self._plan = plan
        self._ranks = ranks
        self._receiver: NodeReceiver | None = None
        self._worker_counters: Counter[str] = Counter()
        self._named = NamedTargets()
        self._worker: WorkerThread | WorkerProcess = self._make_worker()

    def announce(self) -> None:
        """Makes the run known to readers before a step of it is stored."""
        self._sink.announce()

    @property
    def dies_with_process(self) -> bool:
        """True when only this process can write, process or send the records that wait."""
        return (
            super().dies_with_process
            or self._worker.kind == "thread"
            or (self._receiver is not None and self._receiver.has_nodes)
        )

    def take_from(self, receiver: NodeReceiver) -> None:
        """Lets the ranks of other nodes send to this run too."""
        self._receiver = receiver
        receiver.start()

    @property
    def kind(self) -> str:
        """The worker's place: `process` or `thread`."""
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
        self._worker.stop(min(timeout, 10.0) if stored else NOT_STORED)
        if self._sink.webhook is not None:
            self._sink.webhook.close(min(timeout, LAST_WAIT) if stored else NOT_STORED)
            self._last_counters = self._worker_counts()
        if isinstance(self._spool, MemorySpool):
            self._count_lost(self._spool.take_all())
            self._last_counters = self._worker_counts()
        if self.folder is not None and isinstance(self._worker, WorkerThread):
            self.folder.worker_lock.release()
            self.folder.remove_if_done()
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
        if self.folder is None or self._ranks is None or not isinstance(self._worker, WorkerThread):
            return
        self._worker.start()
        while not self.folder.is_done():
            if self._worker.failure is not None or time.monotonic() >= deadline:
                self._warnings.count(
                    "ranks_left", "not all ranks have finished or are stored; the rest waits"
                )
                break
            time.sleep(PAUSE)
        self._last_counters = self._worker_counts()

    def _make_worker(self) -> WorkerThread | WorkerProcess:
        if self.folder is None:
            return self._thread_worker()
        with naming("tokenizer"):
            saved = self._plan.tokenizer is None or save_tokenizer(
                self._plan.tokenizer, self.folder.tokenizer
            )
        self._declare(self.folder, self._manifest(has_tokenizer=saved))
        self._named = NamedTargets.of(self.folder.manifest())
        reason = self._why_not_a_process(tokenizer_saved=saved)
        if not self._plan.in_process:
            return self._thread_worker()
        if reason is not None:
            log.info("the worker runs in a thread: %s", reason)
            return self._thread_worker()
        return WorkerProcess(self.folder, self._named, self._secrets(), self._fall_back)

    def _declare(self, folder: RunFolder, manifest: RunManifest) -> None:
        """Writes what the worker reads, unless another logger of this run did and still hands over."""
        mine = self.reader.spool
        others = [
            reader
            for reader in folder.readers()
            if reader.spool != mine and not reader.spool.startswith(RANK_SPOOL) and not reader.owner_is_gone
        ]
        try:
            held = folder.manifest() if others else None
        except StoreError as error:  # the other is just beginning, or its manifest is damaged
            log.info("%s", error)
            held = None
        if held is None:
            folder.write_manifest(manifest)
            return
        wanted = RunManifest(**orjson.loads(manifest.as_json()))
        compared = ("options", "decoding", "has_tokenizer")
        differ = [name for name in compared if getattr(held, name) != getattr(wanted, name)]
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
            server_url=(self._plan.steps.server_url or "").split("?")[0]
            or getattr(run, "_server_base_url", None),
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
        decoder = self._decoder()
        while self.folder is not None and not self.folder.worker_lock.acquire():
            if self._stopped.wait(0.2):
                break
        folder = self.folder
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
        if self.folder is not None:
            Publisher(self.folder, self._worker_counters).now()

    def _decoder(self) -> Any:
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
        if self.folder is None or not self._plan.in_process:
            return
        for left in find_left(self._sink.run.project, [self.folder.path.parent.parent]):
            if left.folder.path == self.folder.path or left.in_use:
                continue
            if not self._named.has_remote(left.manifest):
                log.info("%s goes to %s, and this run does not", left.folder.path, left.manifest.remote)
                continue
            token = self._write_token() if left.manifest.remote else {}
            WorkerProcess(left.folder, self._named, token, log.warning).start_once()


def _spool_in_memory() -> tuple[None, MemorySpool]:
    log.warning(
        "redact: the spool is in memory only, %d MB at most; what is not stored is lost with this process.",
        MAX_MEMORY_BYTES // MB,
    )
    return None, MemorySpool(MAX_MEMORY_BYTES)


def _spool_on_disk(run: Any, plan: PipelineOptions, ranks: Ranks | None) -> tuple[RunFolder, SpoolWriter]:
    import trackio.utils

    folder = take_run_folder(Path(trackio.utils.TRACKIO_DIR), run.project, run.id)
    name = unique() if ranks is None else rank_spool(ranks.rank, unique())
    return folder, SpoolWriter(folder.writer_folder(name), plan.steps.max_spool_bytes)
