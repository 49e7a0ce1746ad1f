"""The logger that a hook hands over to."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout_traces.capture.hand_over import RolloutHandle
from rollout_traces.decode.decoder import DecodeSettings
from rollout_traces.errors import ConfigError, text_of
from rollout_traces.integrations import run_report
from rollout_traces.integrations.base import binds, contained, integration_named, warn_if_unsupported
from rollout_traces.logger.live import NOT_LIVE, LiveRollout
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.settings.logger_options import HookOptions, read_environment
from rollout_traces.steps.preflight import check

log = logging.getLogger("rollout_traces")
SILENT_STEPS = 20
"""Training steps without a rollout after which a hooked trainer is warned about."""


class HookLogger:
    """A given logger, or one that is made when the first rollouts come, when the trainer's run is open.

    A logger that cannot be made is not tried again: another rank would wait for it at every step.

    Args:
        integration: the integration's name.
        given: where to log; None: make one.
        options: arguments of the one that is made.
        from_trainer: what the trainer says of itself, asked when the logger is made; the options win.
    """

    def __init__(
        self,
        integration: str,
        given: RolloutLogger | None,
        options: Mapping[str, Any],
        from_trainer: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.logger = given
        self.options = dict(options)
        self._check_only = bool(self.options.pop("check_only", False))
        self._integration = integration
        self._owned = given is None
        self._from_trainer = from_trainer
        self._failure: str | None = None
        self._has_logged = False
        self._starts_again = False
        self._logged_in_step = False
        self._silent_steps = 0
        self._last_close: tuple[float, float] | None = None
        self._report = run_report.report_of(integration)
        if self.is_on:
            self._report.trainers += 1
        else:
            self._report.switched_off += 1
        contained(integration)(run_report.write)()

    @property
    def is_on(self) -> bool:
        """False where a logger would be made that keeps no rollouts, and none asked for the ledger alone."""
        wants_traces = (self.options.get("max_rollout_traces_per_step") or 0) > 0
        return not self._owned or wants_traces or self._check_only or self.options.get("ledger") is True

    def give(self, logger: RolloutLogger | None, options: Mapping[str, Any]) -> None:
        """Takes what a script's own `attach` says of a trainer that is hooked already, before anything was logged.

        Args:
            logger: where to log; None: make one.
            options: further arguments of the one that is made.
        """
        if self.logger is None:
            self.options.update({key: value for key, value in options.items() if key != "check_only"})
            self.logger = logger
            self._owned = logger is None

    def log_rollouts(
        self, batches: Sequence[RolloutBatch], *, step: int, split: str, await_join: Sequence[str] = ()
    ) -> RolloutHandle:
        """Hands a step's rollouts over.

        Raises:
            ConfigError: the logger cannot be made, now or before. It keeps the text alone: an exception
                would keep the frames that it passed, and the batches in them.
        """
        if self._check_only:
            self._check(batches, split)
        logger = self._ready()
        if logger is None:
            raise ConfigError(self._failure)
        self._has_logged = self._logged_in_step = True
        self._report.rollouts += sum(batch.n_rows for batch in batches)
        return logger.log_rollouts(batches, step=step, split=split, await_join=await_join)

    def live(self, prompt: str | None = None, **known: Any) -> LiveRollout:
        """Begins a rollout in flight; one that nothing is said of where nothing is logged.

        Args:
            prompt: its beginning is shown.
            **known: further arguments of `RolloutLogger.live`.
        """
        logger = self.ready_for_live()
        return NOT_LIVE if logger is None else logger.live(prompt, **known)

    def ready_for_live(self) -> RolloutLogger | None:
        """The logger, made if need be, before what is sampled first; None where nothing is logged."""
        return None if self._check_only else self._ready()

    def _ready(self) -> RolloutLogger | None:
        if self.logger is None and self._failure is None:
            self._make_logger()
        if self.logger is not None and self._starts_again:
            self.logger.begin_attempt()
            self._starts_again = False
        return self.logger

    def start_training(self) -> None:
        """Says that the trainer begins; where it trained before, what it logs now is another attempt."""
        self._starts_again = self._has_logged
        self._last_close = None

    def close_step(self, step: int, split: str) -> None:
        """Says that the trainer is done with a step, whether rollouts were logged for it or not."""
        if split == "rollout":
            self._count_step(step)
        if self.logger is not None:
            self.logger.close_step(step, split)

    def _count_step(self, step: int) -> None:
        if self._logged_in_step:
            self._report.steps += 1
            self._silent_steps = 0
        else:
            self._silent_steps += 1
        self._logged_in_step = False
        self._time_step()
        run_report.write()
        if self._silent_steps == SILENT_STEPS:
            log.warning(
                "rollout-traces with %s: no rollouts in the last %d training steps, up to step %d. %s "
                "`rollout-traces doctor` looks for the cause; training goes on.",
                self._integration,
                SILENT_STEPS,
                step,
                self._failure or "The trainer called nothing that is hooked.",
            )

    def _time_step(self) -> None:
        """Adds what passed since the close before, of which the hooks' share is in the report."""
        now, hooks = time.perf_counter(), self._report.hook_seconds
        if self._last_close is not None:
            before, hooks_before = self._last_close
            self._report.timed_steps += 1
            self._report.timed_seconds += now - before
            self._report.timed_hook_seconds += hooks - hooks_before
        self._last_close = now, hooks

    def _check(self, batches: Sequence[RolloutBatch], split: str) -> None:
        """Prints what the batch shows, and ends the script: with 1 where a flag of severity error was raised.

        Raises:
            SystemExit: always.
        """
        said = self._from_trainer()
        decoding = DecodeSettings(None, said.get("chat_template"), said.get("chat_template_kwargs") or {})
        report = check(list(batches), said.get("tokenizer"), split=split, decoding=decoding)
        print(
            f"rollout-traces: {self._integration}, the first rollouts of {split}:\n{report}", file=sys.stderr
        )
        self._report.problem = "they were checked only (--check-only)."
        raise SystemExit(1 if report.failed("error") else 0)

    def _make_logger(self) -> None:
        try:
            self.logger = RolloutLogger(**{**self._from_trainer(), **self.options})
        except Exception as error:  # noqa: BLE001  the caller raises its text, now and at every later step
            kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
            self._failure = f"{kind}{text_of(error)}"
            self._report.problem = self._failure

    def close(self) -> None:
        """Stores what is left: finishes a logger of its own, flushes a given one. Raises nothing."""
        contained(self._integration)(run_report.write)()
        if self.logger is not None:
            contained(self._integration)(self.logger.finish if self._owned else self.logger.flush)()
            if self._owned:
                self.logger = None


def attach_once(
    name: str,
    trainer: Any,
    logger: RolloutLogger | None,
    options: Mapping[str, Any],
    make: Callable[[str, Any, RolloutLogger | None, Mapping[str, Any]], Any],
) -> Any:
    """Attaches an observer to a trainer; one that is there is given what a script says.

    Args:
        name: the integration's name.
        trainer: a built trainer, which keeps its observer.
        logger: where to log; None: one is made when the first rollouts come.
        options: arguments of that `RolloutLogger`; environment variables win over them.
        make: makes an observer of all these: its `hook` is a `HookLogger`, its `watch` wraps the trainer's methods.

    Returns:
        The observer, which watches where rollouts are asked for; None where the trainer lacks what a hook needs.
    """
    integration = integration_named(name)
    warn_if_unsupported(integration)
    given = {key: value for key, value in options.items() if value is not None}
    wanted = {**given, **read_environment(HookOptions)}
    known = getattr(trainer, "_rollout_traces", None)
    if known is not None:
        known.hook.give(logger, wanted)
        return known
    if not binds(integration, trainer):
        return None
    made = make(name, trainer, logger, wanted)
    if made.hook.is_on:
        trainer._rollout_traces = made
        made.watch()
    return made
