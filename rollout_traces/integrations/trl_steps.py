"""TRL's own scalars and tables at the step that its rollouts carry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any

_logging: ContextVar[int | None] = ContextVar("rollout_traces_trl_logging", default=None)
"""Global step of the trainer whose `log` is running."""


def at_global_step(trainer: Any, log: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a trainer's `log`, whose completions table would take a step of Trackio's own counting."""

    @wraps(log)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        token = _logging.set(int(trainer.state.global_step))
        try:
            return log(*args, **kwargs)
        finally:
            _logging.reset(token)

    return wrapped


def align_steps(trainer: Any) -> None:
    """Makes what the trainer and its Trackio callback log without a step carry the global step."""
    for callback in trainer.callback_handler.callbacks:
        if type(callback).__name__ == "TrackioCallback" and not isinstance(callback._trackio, _StepAligned):
            callback._trackio = _StepAligned(callback._trackio)
    for module in {sys.modules.get(kind.__module__) for kind in type(trainer).__mro__}:
        trackio = getattr(module, "trackio", None)
        if trackio is not None and not isinstance(trackio, _StepAligned):
            module.trackio = _StepAligned(trackio)  # type: ignore[union-attr]


class _StepAligned:
    """Trackio as TRL calls it; what TRL logs without a step is logged at its global step.

    Trackio numbers such calls itself; rollouts carry the trainer's own step.
    """

    def __init__(self, trackio: Any) -> None:
        self._module = trackio

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """`trackio.log` at the global step among the metrics, else at that of the trainer that is logging."""
        if step is None:
            step = int(metrics["train/global_step"]) if "train/global_step" in metrics else _logging.get()
        self._module.log(dict(metrics), step=step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
