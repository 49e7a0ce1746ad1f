"""StatsLogger: what a trainer's loop commits its statistics to, in AReaL's shape.

Commits are logged at steps that never go back; those that are not logged are averaged into the next.

logger = StatsLogger({"trackio": {"mode": "local", "project": "gsm8k", "max_rollout_traces_per_step": 32}})
logger.log_rollout_traces(trajectories, split="rollout", global_step=step, tokenizer=tokenizer)
logger.commit(epoch, step_in_epoch, global_step, stats_tracker.export_all())
logger.close()
"""

from __future__ import annotations

import logging
import math
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rollout_traces.capture.hand_over import RolloutHandle
from rollout_traces.decode.decoder import DecodeSettings
from rollout_traces.decode.vocabulary import check_tokenizer
from rollout_traces.errors import ConfigError, Warnings
from rollout_traces.logger.arguments import check_judging
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.settings.logger_options import KeyFilter
from rollout_traces.stats.config import (
    StatsLoggerConfig,
    SwanlabConfig,
    TensorBoardConfig,
    TrackioConfig,
    WandBConfig,
    plain_config,
)
from rollout_traces.stats.console import CompletionPrinter, print_scalars
from rollout_traces.stats.trackers import ScalarSink, sink_makers
from rollout_traces.stats.trajectories import canonical

__all__ = [
    "StatsLogger",
    "StatsLoggerConfig",
    "SwanlabConfig",
    "TensorBoardConfig",
    "TrackioConfig",
    "WandBConfig",
]

log = logging.getLogger("rollout_traces.stats.stats_logger")
COUNT = "__count"
HELD_COMMITS = 8
"""Commits whose scalars wait for a tokenizer before the run is opened without one."""
MAX_HELD_COMMITS = 1000
"""Commits that are kept while the run cannot be opened; older ones are dropped and counted."""


class StatsLogger:
    """Commits scalars and rollouts to Trackio and other trackers.

    Only rank 0 of a torch.distributed job writes, as AReaL's does: it is to be given the rollouts of all
    ranks. On other ranks no call does anything, and rollouts given there are counted and said once. After
    construction nothing raises into the caller: what fails is counted and warned about once a kind.

    Args:
        config: what `StatsLoggerConfig.create` reads: a dataclass, a mapping, a trainer's whole config with
            a `stats_logger` section, or a YAML file.
        ft_spec: AReaL's `FinetuneSpec`; its totals are shown in the progress line.
        tokenizer: the policy's; else the first one that `log_rollout_traces` is given.
        sinks: further places for scalars.

    Attributes:
        config: the config that was read.
        counters: commits, scalars left out, calls with rollouts that are not rank 0's, errors by sink.

    Raises:
        ConfigError: the config cannot be understood.
    """

    def __init__(
        self, config: Any, ft_spec: Any = None, *, tokenizer: Any = None, sinks: Sequence[ScalarSink] = ()
    ) -> None:
        self.config = StatsLoggerConfig.create(config)
        if self.config.trackio.mode != "disabled":
            check_judging(self.config.trackio)
        self.counters: Counter[str] = Counter()
        self._warnings = Warnings(self.counters)
        self._stored_config = plain_config(config, self.config)
        self._ft_spec = ft_spec
        self._tokenizer = self._usable(tokenizer)
        self._filter = KeyFilter(self.config.keys)
        self._window = WindowedAverages()
        self._steps = StepRule()
        self._started = time.monotonic()
        self._commits = 0
        self._rollout_logger: RolloutLogger | None = None
        self._decodes = False
        self._held: deque[tuple[dict[str, float], int]] = deque()
        self._printer: CompletionPrinter | None = None
        self._sinks: list[ScalarSink] = []
        self._closed = False
        if is_rank_zero():
            made = (self._opened(make) for make in sink_makers(self.config, self._stored_config))
            self._sinks = [*sinks, *(sink for sink in made if sink is not None)]

    def commit(
        self, epoch: int, step: int, global_step: int, data: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> None:
        """Logs a step's statistics at `log_step(global_step)`; a list of dicts takes consecutive steps.

        Args:
            epoch: from 0.
            step: in the epoch, from 0.
            global_step: over the training, from 0.
            data: numbers by key. Keys that end in `__count` are left out.
        """
        if not is_rank_zero():
            return
        try:
            items = [data] if isinstance(data, Mapping) else list(data)
            first = self._steps.commit(int(global_step), max(len(items), 1))
            log.info("%s", self._progress(epoch, step, global_step))
            for index, item in enumerate(items):
                self._commit_one(item, first + index)
        except Exception as error:  # noqa: BLE001  logging never raises into training; counted and warned
            self._count_error("commit", error)

    def add(self, data: Mapping[str, Any]) -> None:
        """Adds numbers to the window of the next commit, which logs their averages."""
        if is_rank_zero():
            self.counters["scalars_nonfinite"] += self._window.add(self._numbers(data))

    def log_rollout_traces(
        self, trajectories: Any, *, split: str = "rollout", global_step: int, tokenizer: Any = None
    ) -> RolloutHandle:
        """Hands a step's rollouts over, to be logged at the step that `commit` of that global step uses.

        Args:
            trajectories: what `RolloutLogger.log_rollouts` takes; a list of dicts is one group a dict. AReaL's
                own keys and handles are understood.
            split: `rollout` or `eval-rollout`.
            global_step: the trainer's global step.
            tokenizer: the policy's, where it was not given before.

        Returns:
            A handle for what exists only later in the step; without id when nothing was handed over.
        """
        if self.config.trackio.mode == "disabled":
            return RolloutHandle(None)
        if not is_rank_zero():
            self._leave_to_rank_zero()
            return RolloutHandle(None)
        try:
            self._take_tokenizer(tokenizer)
            step = self.log_step(global_step)
            rollouts = canonical(trajectories)
            self._print_completions(rollouts, step, split)
            return self._release().log_rollouts(rollouts, step=step, split=split)
        except Exception as error:  # noqa: BLE001  logging never raises into training; counted and warned
            self._count_error("log_rollout_traces", error)
            return RolloutHandle(None)

    def log_step(self, global_step: int) -> int:
        """The step at which scalars and traces of a global step are logged.

        It is `max(global_step, last + 1)`, fixed by whichever of `log_rollout_traces` and `commit` comes
        first, and shared by the other.
        """
        return self._steps.log_step(int(global_step))

    def flush(self, timeout: float = 30.0) -> bool:
        """Waits until what was handed over is stored; True when nothing is waiting any more."""
        return self._rollout_logger is None or self._release().flush(timeout)

    def close(self) -> None:
        """Logs what a window still holds, stores what was handed over and closes every tracker."""
        if self._closed or not is_rank_zero():
            return
        self._closed = True
        remaining = self._filter.keep(self._window.flush())
        if remaining:
            self._write(remaining, self._steps.state_dict()["last_commit_step"])
        if self._printer is not None:
            self._printer.close()
        if self._held:
            self._guarded("trackio", self._release)
        if self._rollout_logger is not None:
            self._guarded("trackio", self._rollout_logger.finish)
        for sink in self._sinks:
            self._guarded(sink.name, sink.close)
        log.info("training completes after %.1f s", time.monotonic() - self._started)

    def state_dict(self) -> dict[str, Any]:
        """Gives what a checkpoint needs to go on with the steps."""
        return self._steps.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on after a checkpoint's last step."""
        self._steps.load_state_dict(state_dict)

    @property
    def _last_commit_step(self) -> int:
        """The name under which AReaL's code reads the last step."""
        return int(self._steps.state_dict()["last_commit_step"])

    def _commit_one(self, item: Mapping[str, Any], step: int) -> None:
        self.counters["scalars_nonfinite"] += self._window.add(self._numbers(item))
        due = self._commits % self.config.every_n_steps == 0
        self._commits += 1
        self.counters["commits"] += 1
        if due:
            self._write(self._filter.keep(self._window.flush()), step)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        if self.config.console:
            self._guarded("console", lambda: print_scalars(values, title=f"step {step}"))
        if self.config.trackio.mode != "disabled":
            self._guarded("trackio", partial(self._log_to_trackio, values, step))
        for sink in self._sinks:
            self._guarded(sink.name, partial(sink.log_scalars, values, step))

    def _numbers(self, item: Mapping[str, Any]) -> dict[str, float]:
        numbers = {}
        for key, value in item.items():
            if key.endswith(COUNT):
                continue
            try:
                numbers[str(key)] = float(value)
            except (TypeError, ValueError):
                self.counters["scalars_not_numbers"] += 1
        return numbers

    def _log_to_trackio(self, values: Mapping[str, float], step: int) -> None:
        """Logs scalars, or holds them while a tokenizer is still to come: the run's worker needs it."""
        trackio = self.config.trackio
        waits = self._tokenizer is None and trackio.max_rollout_traces_per_step > 0 and not self._closed
        self._held.append((dict(values), step))
        if len(self._held) > MAX_HELD_COMMITS:
            self._held.popleft()
            self.counters["commits_dropped"] += 1
        if self._rollout_logger is not None or not waits or len(self._held) > HELD_COMMITS:
            self._release()

    def _release(self) -> RolloutLogger:
        """The run's logger, made when it is first needed, with all held scalars handed to it."""
        if self._rollout_logger is None:
            self._rollout_logger = self._open_rollout_logger()
        while self._held:
            values, step = self._held.popleft()
            self._rollout_logger.log_scalars(values, step=step)
        return self._rollout_logger

    def _open_rollout_logger(self) -> RolloutLogger:
        self._decodes = self._tokenizer is not None
        config = self.config
        options = config.trackio.logger_options(config.experiment_name, config.trial_name)
        return RolloutLogger(**options, tokenizer=self._tokenizer, config=self._stored_config)

    def _take_tokenizer(self, tokenizer: Any) -> None:
        if tokenizer is None or self._tokenizer is not None:
            return
        self._tokenizer = self._usable(tokenizer)
        if self._rollout_logger is not None and not self._decodes:
            self._warnings.count(
                "tokenizer_too_late",
                f"it came after {self.counters['commits']} commits: no rollout of this run becomes a trace. "
                "Give it to StatsLogger(tokenizer=...).",
            )

    def _usable(self, tokenizer: Any) -> Any:
        """The tokenizer, or None where rollouts cannot be decoded with it: scalars and ledgers are logged all the same."""
        if tokenizer is None:
            return None
        try:
            check_tokenizer(tokenizer)
        except ConfigError as error:
            self._count_error("tokenizer", error)
            return None
        return tokenizer

    def _leave_to_rank_zero(self) -> None:
        self.counters["rollouts_left_to_rank_zero"] += 1
        if self.counters["rollouts_left_to_rank_zero"] == 1:
            log.info(
                "rollouts are taken from rank 0 alone, and not from this rank. Where ranks have rollouts of their "
                "own, give rank 0 all of them, or hold a RolloutLogger on each."
            )

    def _print_completions(self, trajectories: Any, step: int, split: str) -> None:
        if self.config.log_completions <= 0 or self._tokenizer is None:
            return
        if self._printer is None:
            trackio = self.config.trackio
            self._printer = CompletionPrinter(
                self._tokenizer,
                self.config.log_completions,
                decoding=DecodeSettings(None, trackio.chat_template, trackio.chat_template_kwargs),
            )
        self._printer.show(trajectories, step=step, split=split)
        self.counters["completions_skipped"] = self._printer.skipped

    def _opened(self, make: Callable[[], ScalarSink]) -> ScalarSink | None:
        try:
            return make()
        except ModuleNotFoundError as error:
            what = f"{error.name} is not installed. Run: pip install {error.name}"
            self._warnings.count("trackers_missing", what)
        except Exception as error:  # noqa: BLE001  a tracker that cannot start must not stop training
            self._count_error("open", error)
        return None

    def _guarded(self, name: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  one tracker must not take the others with it; counted
            self._count_error(name, error)

    def _count_error(self, name: str, error: Exception) -> None:
        self._warnings.count(f"errors_{name}", repr(error))

    def _progress(self, epoch: int, step: int, global_step: int) -> str:
        parts = []
        for word, number, name in (
            ("Epoch", epoch, "total_train_epochs"),
            ("Step", step, "steps_per_epoch"),
            ("Train step", global_step, "total_train_steps"),
        ):
            total = getattr(self._ft_spec, name, None)
            parts.append(f"{word} {number + 1}" + (f"/{total}" if total is not None else ""))
        return " ".join(parts) + " done."


def is_rank_zero() -> bool:
    """True without torch.distributed, and on rank 0 with it; torch is not imported for this."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return bool(distributed.get_rank() == 0)


REMEMBERED = 64
"""Global steps whose log step is remembered."""


class StepRule:
    """`log_step = max(global_step, last + 1)`, reserved by whoever asks first for a global step.

    A global step that is committed a second time, as after a restart from an earlier checkpoint within one
    process, gets a new log step, so that nothing is written over.
    """

    def __init__(self) -> None:
        self._last = -1
        self._steps: dict[int, int] = {}
        self._committed: set[int] = set()

    def log_step(self, global_step: int) -> int:
        """The step that scalars and traces of a global step are logged at."""
        if global_step not in self._steps:
            self._last = self._steps[global_step] = max(global_step, self._last + 1)
            while len(self._steps) > REMEMBERED:
                oldest = next(iter(self._steps))
                del self._steps[oldest]
                self._committed.discard(oldest)
        return self._steps[global_step]

    def commit(self, global_step: int, n: int = 1) -> int:
        """Takes the log step of a global step for scalars.

        Args:
            global_step: the trainer's.
            n: consecutive steps to take, one a dict.

        Returns:
            The first of them.
        """
        if global_step in self._committed:
            del self._steps[global_step]
        step = self.log_step(global_step)
        self._committed.add(global_step)
        self._last = max(self._last, step + n - 1)
        return step

    def state_dict(self) -> dict[str, Any]:
        """Gives what a checkpoint needs; the key is AReaL's."""
        return {"last_commit_step": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after the last step of a checkpoint."""
        self._last = int(state["last_commit_step"])
        self._steps.clear()
        self._committed.clear()


_NOT_AVERAGED = re.compile(
    r"""(?:^|[/_])(?:
        min | max | minimum | maximum | median | p\d{1,3} | q\d{1,3}
      | step | steps | epoch | iteration | version | count | total | samples | n
    )$""",
    re.VERBOSE,
)


def is_averaged(key: str) -> bool:
    """Tells whether a mean of the key's values means anything.

    Step counters, counts, minima, maxima and quantiles are recognised by the end of their key (`/max`, `_count`,
    `/p95`, `global_step`); of these the latest value is kept.
    """
    return _NOT_AVERAGED.search(key) is None and not key.startswith("count/") and "/count/" not in key


class WindowedAverages:
    """Per-key sum and count of finite numbers since the last flush."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._latest: dict[str, float] = {}

    def add(self, values: Mapping[str, float]) -> int:
        """Adds one set of values.

        Returns:
            How many were NaN or infinite, and left out.
        """
        lost = 0
        for key, value in values.items():
            if not math.isfinite(value):
                lost += 1
            elif is_averaged(key):
                self._sums[key] = self._sums.get(key, 0.0) + value
                self._counts[key] = self._counts.get(key, 0) + 1
            else:
                self._latest[key] = value
        return lost

    def flush(self) -> dict[str, float]:
        """The averages, and the latest of what is not averaged; starts a new window."""
        averages = {key: total / self._counts[key] for key, total in self._sums.items()}
        result = averages | self._latest
        self._sums, self._counts, self._latest = {}, {}, {}
        return result
