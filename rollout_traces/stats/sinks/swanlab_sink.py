"""SwanLab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_traces.stats.sinks.base import MissingTracker


class SwanlabSink:
    """Logs to one SwanLab run.

    Args:
        mode: `cloud`, `local` or `offline`.
        config: stored with the run.
        api_key: for `cloud`; else the key of an earlier login.
        **options: further arguments of `swanlab.init` (`project`, `experiment_name`, `logdir`).

    Raises:
        MissingTracker: swanlab is not installed.
    """

    name = "swanlab"

    def __init__(
        self, mode: str, config: Mapping[str, Any] | None = None, api_key: str | None = None, **options: Any
    ) -> None:
        try:
            import swanlab
        except ImportError as error:
            raise MissingTracker("swanlab") from error
        if mode == "cloud" and api_key:
            swanlab.login(api_key)
        self._swanlab = swanlab
        swanlab.init(mode=mode, config=dict(config or {}), **options)

    def log_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Logs all keys as one row."""
        self._swanlab.log(dict(scalars), step=step)

    def close(self) -> None:
        """Finishes the run."""
        self._swanlab.finish()
