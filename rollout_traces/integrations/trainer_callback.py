"""A callback for a subclass of transformers' `Trainer` that samples by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from rollout_traces.capture.hand_over import RolloutHandle
from rollout_traces.logger.rollout_logger import RolloutLogger


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
