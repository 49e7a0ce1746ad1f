"""What a place for scalars is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class ScalarSink(Protocol):
    """A place where a step's scalars go. Trackio is one, reached through `RolloutLogger`."""

    name: str

    def log_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Writes finite floats at a step. Steps never go back."""
        ...

    def close(self) -> None:
        """Writes what is still buffered, and closes the run."""
        ...


class MissingTracker(ImportError):
    """A tracker was configured whose package is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is not installed. Run: pip install {package}")
