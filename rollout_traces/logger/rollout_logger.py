"""RolloutLogger: what a training loop holds. Hand over and forget."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from rollout_traces.capture.device_copy import any_on_gpu
from rollout_traces.capture.hand_over import Joins, RolloutHandle, warn_of_failure
from rollout_traces.capture.host_copy import Captured
from rollout_traces.capture.part import GroupNumbers
from rollout_traces.cluster.rendezvous import current_ranks, first_group_of, next_key
from rollout_traces.decode.decoder import DecodeSettings
from rollout_traces.decode.vocabulary import check_tokenizer
from rollout_traces.errors import BatchError, Warnings
from rollout_traces.logger.arguments import (
    awaited_keys,
    batches_of_call,
    check_cap,
    check_split,
    checked_options,
    naming,
    plain_step,
    say_where_to_open,
)
from rollout_traces.logger.live import NOT_LIVE, LiveRollout, LiveWriter
from rollout_traces.logger.pipeline import LoggerPipeline, PipelineOptions
from rollout_traces.logger.rank_client import RankClient, client_of_rank, share
from rollout_traces.model.live_lines import MAX_TEXT, LivePlace
from rollout_traces.model.names import node_name
from rollout_traces.model.plain_values import finite_or_named, plain
from rollout_traces.model.secrets import stored_config
from rollout_traces.model.text import fresh_name
from rollout_traces.model.units import MINUTE
from rollout_traces.settings.logger_options import LoggerKeywords, LoggerOptions, default_of, page_address
from rollout_traces.settings.run_settings import CONFIG_KEY, FLAG_PARAMETERS
from rollout_traces.sink.trackio_sink import TrackioSink
from rollout_traces.spool.record import Record
from rollout_traces.steps.run_state import StepOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


log = logging.getLogger("rollout_traces")
STEPS_WITH_GROUPS = 16
"""Steps whose group numbers are kept for further calls."""


class RolloutLogger:
    """Logs rollouts and scalars to Trackio without holding up the training loop.

    Nothing here raises into the caller after construction: what cannot be understood is warned about with
    the text that `RolloutBatch` would raise, and counted. What was handed over is on disk when the call
    returns; a worker process turns it into traces, even if the trainer is killed.

    Args:
        project: Trackio project.
        name: run name; Trackio makes one up when None.
        tokenizer: the policy's tokenizer; without it no rollout is decoded and only ledgers are kept.
        config: stored with the run, secrets in it as `***`. A mapping under `rollout_traces` declares what `RunSettings` holds
            (clip bounds, a success threshold, ranges).
        run: a `trackio.Run`; else the current one, else a new one.
        redact: sees every message of a trace, a dict, and returns the pieces of its text to hide. The
            spool is then in memory alone, and is lost with the process.
        dialect: overrides what is learned from the chat template.
        **options: fields of `rollout_traces.LoggerOptions`, each documented there; None leaves the default:
            `max_rollout_traces_per_step`, `selection`, `space_id`, `private`, `server_url`, `inspector_url`, `resume`,
            `ledger`, `run_settings`, `reward_range`, `metric_ranges`, `metric_keys`, `flag_parameters`,
            `all_rows_folder`, `alert_webhook`, `max_disk_gb`, `chat_template`, `chat_template_kwargs`,
            `worker`, `per_rank`, `max_bytes_per_step`, `max_spool_bytes`, `write_seconds`,
            `max_step_bytes`, `quiet_seconds`, `join_seconds`, `announces_closes`, `not_secret`, `quiet`.

    Raises:
        ConfigError: a setting cannot be understood, or fails; the text names it.
        StoreError: there is no place for a spool that belongs to this user.
        TypeError: there is no such option.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        tokenizer: Any = None,
        *,
        config: Mapping[str, Any] | None = None,
        run: Any = None,
        redact: Callable[[Mapping[str, Any]], Sequence[str]] | None = None,
        dialect: Any = None,
        **options: Unpack[LoggerKeywords],
    ) -> None:
        check_cap(options.get("max_rollout_traces_per_step", 0))
        asked = checked_options(StepOptions.of(**options, project=project, name=name), config)
        if tokenizer is not None:
            with naming("tokenizer"):
                check_tokenizer(tokenizer)
        decoding = DecodeSettings(dialect, asked.chat_template, asked.chat_template_kwargs)
        plan = PipelineOptions(asked, tokenizer, decoding, redact)
        self._counters: Counter[str] = Counter()
        self._warnings = Warnings(self._counters)
        self._groups: dict[tuple[str, int, str], GroupNumbers] = {}
        self._pid = os.getpid()
        self._finished: bool | None = None
        self._announces_closes = asked.announces_closes
        self._finishing = threading.Lock()
        self._says_texts = redact is None
        self._beginning = threading.Lock()
        self._live: LiveWriter | None = None
        ranks = current_ranks()
        self._n_ranks, self._rank = (1, 0) if ranks is None or asked.per_rank else (ranks.n_ranks, ranks.rank)
        suffix, key = "", next_key(project)
        shares = ranks is not None and self._rank > 0 and redact is None
        client = client_of_rank(ranks, key, plan, self._warnings) if ranks is not None and shares else None
        if client is not None:
            self._pipeline: LoggerPipeline | RankClient = client
        else:
            if ranks is not None and (asked.per_rank or self._rank > 0):
                suffix, self._n_ranks = f"-rank{ranks.rank}", 1
            with naming(f"project: {project!r} cannot be opened {_place(asked)}"):
                sink = TrackioSink.open(
                    project=project,
                    name=f"{name or 'run'}{suffix}" if suffix else name,
                    group=name if suffix else None,
                    run=run,
                    resume=asked.resume,
                    space_id=asked.space_id,
                    server_url=asked.server_url,
                    private=asked.private if asked.space_id else None,
                    config={
                        **stored_config(plain(dict(config or {})), asked.not_secret),
                        CONFIG_KEY: _run_config(asked, tokenizer),
                    },
                )
            if asked.inspector_url is not None:
                place = {"project": sink.run.project, "run": sink.run.name}
                asked.inspector_url = page_address(asked.inspector_url, **place)
            shared = ranks if self._n_ranks > 1 else None
            with naming(f"project: {project!r} cannot be spooled in Trackio's folder (TRACKIO_DIR)"):
                self._pipeline = pipeline = LoggerPipeline(sink, plan, self._warnings, shared)
            if shared is not None:
                share(pipeline, shared, key, plan, self._warnings)
            if not asked.quiet and (ranks is None or ranks.rank == 0):
                say_where_to_open(sink.run)
        self._joins = Joins(self._pipeline.hand_over, self._warnings, self._check_open)
        _finish_at_exit(self)

    @property
    def counters(self) -> Counter[str]:
        """Numbers handed over, stored, left out, dropped and refused so far; `spooled` is the number that waits."""
        return Counter(self._counters) + self._pipeline.counters()

    @property
    def worker(self) -> str:
        """The worker's place: `process` or `thread`."""
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
        with self._contained("batches_refused"):
            check_split(split)
            awaited = awaited_keys(await_join, self._warnings)
            at = plain_step(step)
            self._check_open()
            batch_id = fresh_name()
            batches = batches_of_call(batch, batch_id, self._warnings)
            attempt = self._pipeline.attempts.note_rollouts(at, split, announced=self._announces_closes)
            self._counters["attempts_begun"] = self._pipeline.attempts.n_begun - 1
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
            return RolloutHandle(batch_id, captured, self._joins)
        return RolloutHandle(None)

    def live(
        self,
        prompt: str | None = None,
        *,
        step: int | None = None,
        split: str = "rollout",
        source: str | None = None,
        group: str | None = None,
    ) -> LiveRollout:
        """Begins a rollout in flight, which the page Live shows while it is sampled.

        It is droppable, and no part of what is stored: rollouts are stored by `log_rollouts`.

        Args:
            prompt: its beginning is shown.
            step: the trainer's global step that it is sampled for.
            split: `rollout` or `eval-rollout`.
            source: environment or data set.
            group: what rollouts of one prompt share.

        Returns:
            What its stages are said to; one that does nothing where this logger can say none.
        """
        with self._contained("live_refused"):
            self._check_open()
            said = prompt[:MAX_TEXT] if isinstance(prompt, str) else None
            return self._live_writer().begin(
                {
                    "prompt": said,
                    "step": step,
                    "split": split,
                    "source": source,
                    "group": group,
                    "attempt": self._pipeline.attempts.current,
                }
            )
        return NOT_LIVE

    def live_place(self) -> tuple[LivePlace, bool]:
        """Gives the place of the live files, and whether they may hold rollouts' texts: for processes beside this one."""
        self._announce()
        return self._pipeline.live_place, self._says_texts

    def log_scalars(self, scalars: Mapping[str, Any], step: int) -> None:
        """Logs numbers at a step.

        Args:
            scalars: key -> number; one that is not finite is stored as Trackio stores it.
            step: the trainer's global step.
        """
        with self._contained("scalars_refused"):
            self._check_open()
            if not isinstance(scalars, Mapping):
                raise BatchError(
                    f"scalars: seen {type(scalars).__name__}. Expected a mapping from key to number."
                )
            self._pipeline.hand_over.post(
                Record(
                    "scalars",
                    {
                        "scalars": {key: finite_or_named(value) for key, value in scalars.items()},
                        "step": plain_step(step),
                        "attempt": self._pipeline.attempts.current,
                    },
                )
            )
            self._counters["scalars_handed_over"] += 1
            self._pipeline.start()

    def close_step(self, step: int, split: str = "rollout") -> None:
        """Announces that a step is over: no more of its rollouts will be logged.

        The step's flags, metrics and traces are made then, over everything that was logged for it. Rollouts
        that come afterwards are a late part: stored, counted and marked.

        Args:
            step: the trainer's global step.
            split: `rollout` or `eval-rollout`.
        """
        with self._contained("closes_refused"):
            self._check_open()
            at = plain_step(step)
            check_split(split)
            attempt = self._pipeline.attempts.note_close(at, split)
            meta = {"step": at, "split": split, "attempt": attempt, "n_ranks": self._n_ranks}
            self._pipeline.hand_over.post(Record("close", meta))
            self._counters["closes_handed_over"] += 1
            self._pipeline.start()

    def begin_attempt(self) -> None:
        """Announces that training starts again from an earlier step: steps logged from now on supersede the earlier ones.

        A new process and a step that goes back by more than one begin an attempt by themselves.
        """
        self._pipeline.attempts.begin()
        self._counters["attempts_begun"] = self._pipeline.attempts.n_begun - 1

    def flush(self, timeout: float = 30.0, close: bool = True) -> bool:
        """Waits until everything logged is stored, and closes the steps that are open.

        Args:
            timeout: seconds to wait at most.
            close: False: only waits until everything is safe on disk, and closes no step.

        Returns:
            True when everything is stored. Otherwise what waits stays spooled and is stored later, or something is
            damaged, which a warning and `counters` say. False at
            once in a forked child, which has no logger.
        """
        if os.getpid() != self._pid:
            return False
        with self._contained("flush_errors"):
            if not close:
                return self._pipeline.wait_spooled(timeout)
            with self._pipeline.somebody_waits():
                return self._is_stored("flush", timeout)
        return False

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
                with self._pipeline.somebody_waits():
                    self._finish(timeout)
        return bool(self._finished)

    def _finish(self, timeout: float) -> None:
        started = time.monotonic()
        if self._live is not None:
            self._live.close()
        is_stored = False
        with self._contained("flush_errors"):
            is_stored = self._is_stored("finish", timeout)
        self._finished = is_stored
        with self._contained("finish_errors"):
            left = max(float(timeout or 0.0) - (time.monotonic() - started), 1.0)
            self._pipeline.close(left, stored=is_stored)

    def _live_writer(self) -> LiveWriter:
        if self._live is None:
            with self._beginning:
                self._live = self._live or self._begin_live()
        return self._live

    def _begin_live(self) -> LiveWriter:
        self._announce()
        return LiveWriter(
            self._pipeline.live_place,
            node_name(),
            self._warnings,
            rank=self._rank,
            n_ranks=self._n_ranks,
            says_texts=self._says_texts,
        )

    def _announce(self) -> None:
        if isinstance(self._pipeline, LoggerPipeline):
            self._pipeline.announce()

    def _check_open(self) -> None:
        """Raises BatchError when the logger is finished."""
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

    def _is_stored(self, kind: str, timeout: float) -> bool:
        """Waits; False, and said, also where something of what was handed over cannot be stored."""
        if not self._pipeline.wait_stored(kind, timeout):
            return False
        account = self._pipeline.account_of_damage()
        if account is not None:
            log.warning("not everything is stored: %s", account)
        return account is None

    @contextmanager
    def _contained(self, counter: str) -> Iterator[None]:
        """Counts what is raised inside, and warns of it: logging never raises into training."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  counted and warned
            self._warnings.count(counter, error)


def _place(asked: LoggerOptions) -> str:
    """Says in words where a project is opened."""
    if asked.server_url:
        return "on the server (server_url)"
    return "in the Space (space_id)" if asked.space_id else "in Trackio's folder (TRACKIO_DIR)"


def _run_config(options: StepOptions, tokenizer: Any) -> dict[str, Any]:
    """Makes this package's part of the run's config: settings, thresholds of flags, and which tokenizer wrote the rollouts."""
    name = getattr(tokenizer, "name_or_path", None)
    address = options.inspector_url and page_address(
        options.inspector_url, project=options.project, run=options.name
    )
    written = {
        FLAG_PARAMETERS: dict(options.flag_parameters),
        "tokenizer": str(name) if name else None,
        "inspector": address,
    }
    return {**options.settings.as_config(), **{key: value for key, value in written.items() if value}}


def _signature() -> inspect.Signature:
    """The constructor's arguments with every option by name, for `help` and editors."""
    own = inspect.signature(RolloutLogger.__init__)
    written = [item for item in own.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
    known = {item.name for item in written}
    derived = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default_of(item.name),
            annotation=item.type,
        )
        for item in fields(LoggerOptions)
        if item.name not in known
    ]
    return own.replace(parameters=[*written, *derived])


RolloutLogger.__init__.__signature__ = _signature()  # type: ignore[attr-defined]


def _finish_at_exit(logger: RolloutLogger) -> None:
    """A trainer that ends without `finish` loses nothing: a thread processes to the end, a process goes on alone."""
    known = weakref.ref(logger)

    def finish() -> None:
        alive = known()
        if alive is not None and alive._pipeline.dies_with_process:
            alive.finish(timeout=10 if alive._pipeline.is_on_disk else MINUTE)

    atexit.register(finish)
