"""RolloutLogger: what a training loop holds. Hand over and forget."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout_traces.capture.device_copy import any_on_gpu
from rollout_traces.capture.groups import GroupNumbers
from rollout_traces.capture.hand_over import Warnings
from rollout_traces.capture.host_copy import MAX_BYTES, Captured
from rollout_traces.cluster.rendezvous import current_ranks, first_group_of, next_key
from rollout_traces.decode.settings import DecodeSettings
from rollout_traces.decode.vocabulary import check_tokenizer
from rollout_traces.errors import BatchError
from rollout_traces.flags import check_parameters, current_parameters
from rollout_traces.logger.arguments import (
    RESUMES,
    WORKERS,
    awaited_keys,
    batches_of_call,
    check_cap,
    check_choice,
    check_split,
    plain_step,
)
from rollout_traces.logger.pipeline import MAX_SPOOL_BYTES, LoggerPipeline, PipelineOptions
from rollout_traces.logger.rank_client import RankClient, client_of_rank, share
from rollout_traces.logger.rollout_handle import Joins, RolloutHandle, warn_of_failure
from rollout_traces.metrics import check_keys
from rollout_traces.selection import policy_named
from rollout_traces.settings.names import check_project, check_run
from rollout_traces.settings.run_settings import CONFIG_KEY, FLAG_PARAMETERS, RunSettings
from rollout_traces.sink.trackio_sink import TrackioSink
from rollout_traces.sink.webhook import ENVIRONMENT as ALERT_WEBHOOK
from rollout_traces.sink.webhook import check_webhook
from rollout_traces.spool.record import Record
from rollout_traces.steps.options import JOIN_SECONDS, MAX_STEP_BYTES, QUIET_SECONDS, StepOptions

STEPS_WITH_GROUPS = 16
"""Steps whose group numbers are kept for further calls."""


class RolloutLogger:
    """Logs rollouts and scalars to Trackio without holding up the training loop.

    Nothing here raises into the caller after construction: what cannot be understood is warned about with
    the text that `RolloutBatch` would raise, and counted. What was handed over is on disk when the call
    returns; a process beside the trainer turns it into traces, also when the trainer is killed.

    Args:
        project: Trackio project.
        name: run name; Trackio makes one up when None.
        tokenizer: the policy's tokenizer; without it no rollout is decoded and only ledgers are kept.
        max_rollout_traces_per_step: rollouts that become traces, per step and split; 0 or less: none.
        selection: how that cap is spent: `portfolio`, `fixed_prompts`, `first`, `random`, `extremes`, `all` or a
            callable; evaluation has `fixed_prompts` where training has `portfolio`.
        space_id: Hugging Face Space to log to.
        private: whether a Space that has to be created is private.
        server_url: self-hosted Trackio server to log to.
        config: stored with the run. A mapping under `rollout_traces` declares what `RunSettings` holds
            (clip bounds, a success threshold, ranges).
        run: a `trackio.Run`; else the current one, else a new one.
        resume: `allow`, `must` or `never`, for a new run.
        ledger: whether every step's ledger of all rows is kept.
        redact: sees every message of a trace, a dict, and returns the pieces of its text to hide. The
            spool then lies in memory alone, and is lost with the process.
        dialect: overrides what is learned from the chat template.
        chat_template: the Jinja template that prompts are rendered with, where it is not the tokenizer's own.
        chat_template_kwargs: further arguments of the template (`{"enable_thinking": False}`).
        max_disk_gb: gigabytes of the project's database above which steps keep their ledger only.
        reward_range: (smallest, largest) reward, for display.
        metric_ranges: name -> {min, max, invert}, for display.
        metric_keys: which metrics of a step are logged: `default`, `full`, or patterns (docs/metrics.md).
        flag_parameters: thresholds of flags by `<flag>.<parameter>`, `<flag>.alert_above` among them
            (docs/flags.md).
        all_rows_folder: folder that gets one JSON file a step and split with the text of every rollout,
            `{"columns": [...], "data": [[...]]}`; None: no such file.
        alert_webhook: http or https address that gets every alert as JSON (docs/logging.md); the variable
            `ROLLOUT_TRACES_ALERT_WEBHOOK` when None. It is a secret: it reaches the worker through its
            environment, and is written nowhere.
        worker: `process`, or `thread` where no process can be started. A callable selection, a redact hook
            or template arguments that JSON cannot hold work in a thread only.
        per_rank: under torch.distributed, one run a rank in one group; otherwise all ranks hand over to
            rank 0's run and share one selection with one cap.
        max_bytes_per_step: budget of one hand-over; above it the tokens of some groups are left out.
        max_spool_bytes: bytes that may wait on disk; above it tokens are left out.
        max_step_bytes: memory of the worker for the tokens of one open step; above it those of a random sample of
            its groups are kept, and probabilities say so.
        quiet_seconds: seconds without rollouts after which an open step is closed, and at least three times the
            longest pause seen within a step; 0: never. It is off where closes are announced.
        join_seconds: seconds that a step which could be closed waits for awaited joins.
        announces_closes: every step is closed by `close_step`: neither the next step nor a quiet time closes it.
            For asynchronous trainers, whose steps overlap, and for hooks.
        drain: the former name of `worker`.

    Raises:
        ConfigError: a setting cannot be understood.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        tokenizer: Any = None,
        *,
        max_rollout_traces_per_step: int = 0,
        selection: str | Callable[..., Any] = "portfolio",
        space_id: str | None = None,
        private: bool | None = True,
        server_url: str | None = None,
        config: Mapping[str, Any] | None = None,
        run: Any = None,
        resume: str = "allow",
        ledger: bool = True,
        redact: Callable[[Mapping[str, Any]], Sequence[str]] | None = None,
        dialect: Any = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_disk_gb: float | None = None,
        reward_range: tuple[float, float] | None = None,
        metric_ranges: Mapping[str, Mapping[str, Any]] | None = None,
        metric_keys: str | Sequence[str] = "default",
        flag_parameters: Mapping[str, Any] | None = None,
        all_rows_folder: str | Path | None = None,
        alert_webhook: str | None = None,
        worker: str = "process",
        per_rank: bool = False,
        max_bytes_per_step: int = MAX_BYTES,
        max_spool_bytes: int = MAX_SPOOL_BYTES,
        max_step_bytes: int = MAX_STEP_BYTES,
        quiet_seconds: float = QUIET_SECONDS,
        join_seconds: float = JOIN_SECONDS,
        announces_closes: bool = False,
        drain: str | None = None,
    ) -> None:
        check_cap(max_rollout_traces_per_step)
        check_project(project)
        check_run(name)
        check_choice("resume", resume, RESUMES)
        if drain is not None:
            warnings.warn(
                "drain= is now worker=; the old name goes with the next release.",
                DeprecationWarning,
                stacklevel=2,
            )
            worker = drain
        check_choice("worker", worker, WORKERS)
        settings = RunSettings.declared(config, reward_range=reward_range, metric_ranges=metric_ranges)
        if not callable(selection):
            policy_named(selection)
        if tokenizer is not None:
            check_tokenizer(tokenizer)
        flag_parameters = current_parameters(flag_parameters or {})
        check_parameters(flag_parameters)
        check_keys(metric_keys)
        alert_webhook = alert_webhook or os.environ.get(ALERT_WEBHOOK)
        if alert_webhook:
            check_webhook(alert_webhook)
        self._counters: Counter[str] = Counter()
        self._warnings = Warnings(self._counters)
        self._groups: dict[tuple[str, int, str], GroupNumbers] = {}
        self._pid = os.getpid()
        self._finished: bool | None = None
        self._announces_closes = announces_closes
        self._finishing = threading.Lock()
        step_options = StepOptions(
            max_traces=max_rollout_traces_per_step,
            selection=selection,
            ledger=ledger,
            settings=settings,
            max_disk_gb=max_disk_gb,
            metric_keys=(metric_keys,) if isinstance(metric_keys, str) else tuple(metric_keys),
            flag_parameters=flag_parameters,
            all_rows_folder=None if all_rows_folder is None else str(Path(all_rows_folder).absolute()),
            quiet_seconds=quiet_seconds,
            join_seconds=join_seconds,
            max_step_bytes=max_step_bytes,
        )
        plan = PipelineOptions(
            steps=step_options,
            in_process=worker == "process",
            tokenizer=tokenizer,
            decoding=DecodeSettings(dialect, chat_template, chat_template_kwargs or {}),
            redact=redact,
            space_id=space_id,
            server_url=server_url,
            private=private if space_id else None,
            max_bytes=max_bytes_per_step,
            max_spool_bytes=max_spool_bytes,
            alert_webhook=alert_webhook,
        )
        ranks = current_ranks()
        self._n_ranks, self._rank = (1, 0) if ranks is None or per_rank else (ranks.n_ranks, ranks.rank)
        suffix, key = "", next_key(project)
        shares = ranks is not None and self._rank > 0 and redact is None
        client = client_of_rank(ranks, key, plan, self._warnings) if ranks is not None and shares else None
        if client is not None:
            self._pipeline: LoggerPipeline | RankClient = client
        else:
            if ranks is not None and (per_rank or self._rank > 0):
                suffix, self._n_ranks = f"-rank{ranks.rank}", 1
            sink = TrackioSink.open(
                project=project,
                name=f"{name or 'run'}{suffix}" if suffix else name,
                group=name if suffix else None,
                run=run,
                resume=resume,
                space_id=space_id,
                server_url=server_url,
                private=private if space_id else None,
                config={**(config or {}), CONFIG_KEY: _run_config(settings, flag_parameters, tokenizer)},
            )
            shared = ranks if self._n_ranks > 1 else None
            self._pipeline = pipeline = LoggerPipeline(sink, plan, self._warnings, shared)
            if shared is not None:
                share(pipeline, shared, key, plan, self._warnings)
        self._joins = Joins(self._pipeline.hand_over, self._warnings, self._check_open)
        _finish_at_exit(self)

    @property
    def counters(self) -> Counter[str]:
        """What was handed over, stored, left out, dropped and refused so far; `spooled` is what waits."""
        return Counter(self._counters) + self._pipeline.counters()

    @property
    def worker(self) -> str:
        """Where the worker runs: `process` or `thread`."""
        return self._pipeline.kind

    @property
    def run(self) -> Any:
        """The `trackio.Run` that is written to."""
        return self._pipeline.run

    def log_rollouts(
        self, batch: Any, step: int, split: str = "rollout", await_join: Sequence[str] = ()
    ) -> RolloutHandle:
        """Hands a step's rollouts over.

        Args:
            batch: a `RolloutBatch`, one dict of tensors, or a list of dicts (each one group).
            step: the trainer's global step.
            split: `rollout` or `eval-rollout`.
            await_join: keys that will be joined later in the step; the step is not closed before they are there,
                at the latest when a later step is closed, or after `join_seconds`.

        Returns:
            A handle for `join`; without id when the batch was refused.
        """
        try:
            check_split(split)
            awaited = awaited_keys(await_join, self._warnings)
            at = plain_step(step)
            self._check_open()
            batch_id = secrets.token_hex(6)
            batches = batches_of_call(batch, batch_id, self._warnings)
            attempt = self._pipeline.attempts.note_rollouts(at, split, announced=self._announces_closes)
            details = {
                "step": at,
                "split": split,
                "groups": self._groups_of((attempt, at, split)),
                "await_join": awaited,
                "batch_id": batch_id,
                "n_ranks": self._n_ranks,
                "attempt": attempt,
                "announced": self._announces_closes,
            }
            hand_over = self._pipeline.hand_over
            captured: Captured | Future[Captured]
            if any_on_gpu(batches):
                captured = hand_over.from_device(batches, **details)
                warn_of_failure(captured, self._warnings)
            else:
                captured = hand_over.rollouts(batches, **details)
                captured = replace(captured, buffers=[])
            self._pipeline.start()
        except Exception as error:  # noqa: BLE001  logging never raises into training; counted and warned
            self._warnings.count("batches_refused", error)
            return RolloutHandle(None)
        return RolloutHandle(batch_id, captured, self._joins)

    def log_scalars(self, scalars: Mapping[str, Any], step: int) -> None:
        """Logs numbers at a step, beside its traces.

        Args:
            scalars: key -> number; values that are not finite are left out.
            step: the trainer's global step.
        """
        try:
            self._check_open()
            if not isinstance(scalars, Mapping):
                raise BatchError(
                    f"scalars: seen {type(scalars).__name__}. Expected a mapping from key to number."
                )
            self._pipeline.hand_over.post(
                Record(
                    "scalars",
                    {
                        "scalars": dict(scalars),
                        "step": plain_step(step),
                        "attempt": self._pipeline.attempts.current,
                    },
                )
            )
            self._counters["scalars_handed_over"] += 1
            self._pipeline.start()
        except Exception as error:  # noqa: BLE001  logging never raises into training; counted and warned
            self._warnings.count("scalars_refused", error)

    def close_step(self, step: int, split: str = "rollout") -> None:
        """Says that a step is over: no more of its rollouts will be logged.

        The step's flags, metrics and traces are made then, over everything that was logged for it. Rollouts
        that come afterwards are a late part: stored, counted and marked.

        Args:
            step: the trainer's global step.
            split: `rollout` or `eval-rollout`.
        """
        try:
            self._check_open()
            at = plain_step(step)
            check_split(split)
            attempt = self._pipeline.attempts.note_close(at, split)
            meta = {"step": at, "split": split, "attempt": attempt, "n_ranks": self._n_ranks}
            self._pipeline.hand_over.post(Record("close", meta))
            self._counters["closes_handed_over"] += 1
            self._pipeline.start()
        except Exception as error:  # noqa: BLE001  logging never raises into training; counted and warned
            self._warnings.count("closes_refused", error)

    def begin_attempt(self) -> None:
        """Says that training starts again from an earlier step: what is logged now supersedes what was.

        A new process and a step that goes back by more than one begin an attempt by themselves.
        """
        self._pipeline.attempts.begin()
        self._counters["attempts_begun"] += 1

    def flush(self, timeout: float = 30.0, close: bool = True) -> bool:
        """Waits until everything logged is stored, and closes the steps that are open.

        Args:
            timeout: seconds to wait at most.
            close: False: only waits until everything is safe on disk, and closes no step.

        Returns:
            True when nothing is waiting any more; otherwise it stays spooled and is stored later. False at
            once in a forked child, which has no logger.
        """
        if os.getpid() != self._pid:
            return False
        return self._wait("flush", timeout) if close else self._wait_spooled(timeout)

    def finish(self, timeout: float = 300.0) -> bool:
        """Flushes, and finishes the run when it was created here.

        Args:
            timeout: seconds to wait at most.

        Returns:
            True when everything was stored. Otherwise what is spooled stays there, and the worker, the next
            logger of the project or `rollout-traces recover` stores it; what a full disk, or a spool in memory,
            could not keep is lost, and counted as `rollouts_dropped` and `records_dropped`.
        """
        if os.getpid() != self._pid:
            return bool(self._finished)
        with self._finishing:
            if self._finished is None:
                started = time.monotonic()
                self._finished = self._wait("finish", timeout)
                try:
                    left = max(float(timeout or 0.0) - (time.monotonic() - started), 1.0)
                    self._pipeline.close(left, stored=self._finished)
                except Exception as error:  # noqa: BLE001  logging never raises into training; counted and warned
                    self._warnings.count("finish_errors", error)
        return self._finished

    def _check_open(self) -> None:
        """Raises BatchError where nothing can be handed over any more."""
        if os.getpid() != self._pid:
            raise BatchError("a forked child has no logger. Make one in the child, or log from the parent.")
        if self._finished is not None:
            raise BatchError("the logger is finished. Make a new one to log more.")

    def _groups_of(self, key: tuple[str, int, str]) -> GroupNumbers:
        """The numbers of a step's groups, kept for the last few steps."""
        groups = self._groups.setdefault(key, GroupNumbers(first_group_of(self._rank)))
        for old in list(self._groups)[:-STEPS_WITH_GROUPS]:
            self._groups.pop(old, None)
        return groups

    def _wait_spooled(self, timeout: float) -> bool:
        try:
            return self._pipeline.wait_spooled(timeout)
        except Exception as error:  # noqa: BLE001  logging never raises into training; counted and warned
            self._warnings.count("flush_errors", error)
            return False

    def _wait(self, kind: str, timeout: float) -> bool:
        try:
            return self._pipeline.wait_stored(kind, timeout)
        except Exception as error:  # noqa: BLE001  logging never raises into training; counted and warned
            self._warnings.count("flush_errors", error)
            return False


def _run_config(settings: RunSettings, parameters: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """What the run's config says of us: settings, thresholds of flags, and which tokenizer wrote the rollouts."""
    name = getattr(tokenizer, "name_or_path", None)
    written = {FLAG_PARAMETERS: dict(parameters), "tokenizer": str(name) if name else None}
    return {**settings.as_config(), **{key: value for key, value in written.items() if value}}


def _finish_at_exit(logger: RolloutLogger) -> None:
    """A trainer that ends without `finish` loses nothing: a thread processes to the end, a process goes on alone."""
    known = weakref.ref(logger)

    def finish() -> None:
        alive = known()
        if alive is not None and alive._pipeline.dies_with_process:
            alive.finish(timeout=10 if alive._pipeline.is_on_disk else 60)

    atexit.register(finish)
