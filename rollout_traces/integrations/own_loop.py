"""For loops of one's own: a decorator for the function that samples, and a callback for transformers' `Trainer`.

from rollout_traces.integrations.own_loop import logs_rollouts

@logs_rollouts(logger)
def sample(step, prompts): ...      # returns what `RolloutLogger.log_rollouts` takes
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from transformers import TrainerCallback

from rollout_traces.errors import BatchError
from rollout_traces.integrations.base import arguments_of, contained
from rollout_traces.logger.rollout_handle import RolloutHandle
from rollout_traces.logger.rollout_logger import RolloutLogger

T = TypeVar("T")


def logs_rollouts(
    logger: RolloutLogger,
    *,
    split: str = "rollout",
    step: Callable[[Mapping[str, Any]], int] | None = None,
    batches: Callable[[Any], Any] | None = None,
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Logs what a function returns; its result is handed on untouched, and nothing raises into it.

    Args:
        logger: where to log.
        split: `rollout` or `eval-rollout`.
        step: the step, from the call's arguments by name; by default the argument `step`.
        batches: turns the result into what `RolloutLogger.log_rollouts` takes, such as an adapter's
            `batches_from`; by default the result itself.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        def log(result: Any, values: Mapping[str, Any]) -> None:
            if step is None and "step" not in values:
                raise BatchError(
                    f"{function.__qualname__}: no argument 'step'. Seen {', '.join(values) or 'none'}. Give "
                    "logs_rollouts(step=lambda arguments: ...)."
                )
            at = int(values["step"] if step is None else step(values))
            logger.log_rollouts(result if batches is None else batches(result), step=at, split=split)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> T:
            result = function(*args, **kwargs)
            contained("logs_rollouts")(log)(result, arguments_of(function, args, kwargs).values)
            return result

        return wrapped

    return decorate


class RolloutCallback(TrainerCallback):
    """For a subclass of transformers' `Trainer` that samples by itself: steps, closes and scalars are the trainer's.

    trainer.add_callback(callback := RolloutCallback(logger))
    ...
    callback.log_rollouts(batch)        # where the trainer samples, in training or in evaluation

    Args:
        logger: where to log; it is finished when training ends.
    """

    def __init__(self, logger: RolloutLogger) -> None:
        self.logger = logger
        self._global_step = 0

    def log_rollouts(self, rollouts: Any, *, split: str = "rollout") -> RolloutHandle:
        """Logs rollouts at the step whose scalars `Trainer` is about to log; see `RolloutLogger.log_rollouts`."""
        step = self._global_step + (split == "rollout")
        return self.logger.log_rollouts(rollouts, step=step, split=split)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Takes the step at which training starts or resumes."""
        self._global_step = int(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Closes the step that `Trainer` has just counted."""
        self._global_step = int(state.global_step)
        self.logger.close_step(self._global_step, "rollout")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Closes the evaluation."""
        self.logger.close_step(int(state.global_step), "eval-rollout")

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Logs `Trainer`'s scalars at its step."""
        numbers = {key: value for key, value in (logs or {}).items() if isinstance(value, (int, float))}
        self.logger.log_scalars(numbers, step=int(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stores what is left."""
        self.logger.finish()
