"""TensorBoard event files, through tensorboardX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollout_traces.stats.sinks.base import MissingTracker


class TensorBoardSink:
    """Writes event files to a folder.

    Args:
        path: the folder, made where it is missing.

    Raises:
        MissingTracker: tensorboardX is not installed.
    """

    name = "tensorboard"

    def __init__(self, path: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise MissingTracker("tensorboardX") from error
        self._writer = SummaryWriter(logdir=str(path))

    def log_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Writes one scalar a key."""
        for key, value in scalars.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()
