"""For loops of one's own: a decorator for the function that samples.

from rollout_traces.integrations.own_loop import logs_rollouts

@logs_rollouts(logger)
def sample(step, prompts): ...      # returns what `RolloutLogger.log_rollouts` takes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rollout_traces.errors import BatchError
from rollout_traces.integrations.base import Arguments, watched
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
        def log(given: Arguments, result: Any) -> None:
            values = given.values
            if step is None and "step" not in values:
                raise BatchError(
                    f"{function.__qualname__}: no argument 'step'. Seen {', '.join(values) or 'none'}. Give "
                    "logs_rollouts(step=lambda arguments: ...)."
                )
            at = int(values["step"] if step is None else step(values))
            logger.log_rollouts(result if batches is None else batches(result), step=at, split=split)

        return watched("logs_rollouts", function, after=log)

    return decorate
