"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_traces.stats.sinks.base import MissingTracker


class WandbSink:
    """Logs to one Weights & Biases run, a new one or the one that is open in this process.

    Args:
        mode: `online`, `offline` or `shared`.
        config: stored with a run that is created here.
        **options: further arguments of `wandb.init` (`project`, `name`, `entity`, `group`, `tags`, `dir`).

    Raises:
        MissingTracker: wandb is not installed.
    """

    name = "wandb"

    def __init__(self, mode: str, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingTracker("wandb") from error
        self._owned = wandb.run is None
        arguments: dict[str, Any] = {"mode": mode, "config": dict(config or {}), **options}
        self._run: Any = wandb.run if wandb.run is not None else wandb.init(**arguments)

    def log_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Logs all keys as one row."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Finishes a run that was created here."""
        if self._owned:
            self._run.finish()
