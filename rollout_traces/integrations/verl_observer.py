"""What the hooks of verl's trainers share: the dump, the validation, the fit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from rollout_traces.integrations import live_place
from rollout_traces.integrations.base import (
    Arguments,
    arguments_of,
    binds,
    contained,
    integration_named,
    warn_if_unsupported,
)
from rollout_traces.integrations.hook_logger import HookLogger
from rollout_traces.integrations.settings import HookSettings
from rollout_traces.logger.rollout_logger import RolloutLogger

NO_DUMP = "rollout-traces:no-dump"
"""A `rollout_data_dir` that names no folder: verl calls its dump, which then writes nothing."""
_validating: ContextVar[VerlObserver | None] = ContextVar("rollout_traces_verl_validating", default=None)


class VerlObserver:
    """Sees a trainer's batches go by.

    Args:
        name: the integration's name.
        trainer: one of verl's.
        logger: where to log; None: one is made when the first rollouts come.
        options: arguments of that `RolloutLogger`.
    """

    def __init__(
        self, name: str, trainer: Any, logger: RolloutLogger | None, options: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.trainer = trainer
        self.hook = HookLogger(name, logger, options, lambda: run_settings_of(trainer))

    @property
    def step(self) -> int:
        """The step that verl is at."""
        return int(self.trainer.global_steps)

    def on_rollouts(self, given: Arguments) -> None:
        """Hands a training batch over.

        Args:
            given: the arguments of `_log_rollout_data`.
        """
        raise NotImplementedError

    def ask_for_dumps(self) -> None:
        """Makes verl call `_log_rollout_data` also where no dump was asked for."""
        from omegaconf import open_dict

        config = self.trainer.config.trainer
        if not config.get("rollout_data_dir", None):
            with open_dict(config):
                config.rollout_data_dir = NO_DUMP

    def announce(self) -> None:
        """Lets the agent loops of this node be seen in flight, before verl samples first."""
        live_place.announce(self.hook.ready_for_live())

    def around_dump(self, dump: Callable[..., Any]) -> Callable[..., Any]:
        """Hands training rollouts over, closes the step, and lets verl dump where a folder was asked for."""

        @functools.wraps(dump)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            contained(self.name)(self._hand_over)(arguments_of(dump, args, kwargs))
            given = (*args, *kwargs.values())
            if any(isinstance(value, str) and value == NO_DUMP for value in given):
                return None
            return dump(*args, **kwargs)

        return wrapped

    def around_validation(self, validate: Callable[..., Any]) -> Callable[..., Any]:
        """Marks the trainer that validates, and closes the evaluation."""

        @functools.wraps(validate)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            token = _validating.set(self)
            try:
                return validate(*args, **kwargs)
            finally:
                _validating.reset(token)
                contained(self.name)(self.hook.close_step)(self.step, "eval-rollout")

        return wrapped

    def around_fit(self, fit: Callable[..., Any]) -> Callable[..., Any]:
        """Stores what is left when training ends, however it ends."""

        @functools.wraps(fit)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.hook.start_training()
            contained(self.name)(self.announce)()
            try:
                return fit(*args, **kwargs)
            finally:
                self.hook.close()

        return wrapped

    def _hand_over(self, given: Arguments) -> None:
        self.on_rollouts(given)
        self.hook.close_step(self.step, "rollout")


def validating(name: str) -> VerlObserver | None:
    """The observer of an integration whose trainer is validating now."""
    observer = _validating.get()
    return observer if observer is not None and observer.name == name else None


def observe(
    observer: type[VerlObserver],
    name: str,
    trainer: Any,
    logger: RolloutLogger | None,
    options: Mapping[str, Any],
) -> VerlObserver | None:
    """Makes a trainer's observer and wraps its `fit` and `_validate`.

    Returns:
        The observer; None where the trainer had one already, lacks what a hook needs, or nothing was asked for.
    """
    integration = integration_named(name)
    warn_if_unsupported(integration)
    settings = HookSettings.from_environment().over(options)
    if getattr(trainer, "_rollout_traces", None) is not None:
        trainer._rollout_traces.hook.give(logger, settings)
        return None
    if not binds(integration, trainer):
        return None
    made = observer(name, trainer, logger, settings)
    if not made.hook.is_on:
        return None
    trainer._rollout_traces = made
    trainer._validate = made.around_validation(trainer._validate)
    trainer.fit = made.around_fit(trainer.fit)
    return made


def run_settings_of(trainer: Any) -> dict[str, Any]:
    """Arguments of a `RolloutLogger` that verl's own config names: project, run, tokenizer, template."""
    from omegaconf import OmegaConf

    whole = trainer.config
    config = whole.trainer
    kwargs = OmegaConf.select(whole, "data.apply_chat_template_kwargs")
    return {
        "project": config.get("project_name", None) or "verl",
        "name": config.get("experiment_name", None),
        "tokenizer": trainer.tokenizer,
        "chat_template": OmegaConf.select(whole, "actor_rollout_ref.model.custom_chat_template"),
        "chat_template_kwargs": OmegaConf.to_container(kwargs, resolve=True)
        if OmegaConf.is_config(kwargs)
        else kwargs,
    }
