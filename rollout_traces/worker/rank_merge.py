"""Hand-overs of several ranks, merged by step: one selection with one cap.

Each rank's spool is read in its own order; its next hand-over waits here until every living rank has one. The
lowest step goes first. A rank that hands over nothing is waited for a while, one that died is not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

PATIENCE = 20.0
"""Seconds that a hand-over waits for other ranks."""
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Held(Generic[T]):
    """A rank's next hand-over.

    Attributes:
        step: its step.
        split: its split.
        item: whatever the caller needs to go on.
        since: when it came, monotonic seconds.
    """

    step: int
    split: str
    item: T
    since: float = field(default_factory=time.monotonic)


class RankMerger(Generic[T]):
    """Holds one hand-over a spool."""

    def __init__(self) -> None:
        self._held: dict[str, Held[T]] = {}

    def __contains__(self, spool: str) -> bool:
        return spool in self._held

    def hold(self, spool: str, held: Held[T]) -> None:
        """Keeps a spool's next hand-over."""
        self._held[spool] = held

    def clear(self) -> None:
        """Forgets all that is held; it is still in the spools."""
        self._held.clear()

    def take_ready(self, living: Mapping[str, bool]) -> list[T]:
        """The hand-overs that belong together and need not wait any longer; none when all have to.

        Args:
            living: spool -> True when its rank wants no waiting, for every rank that may still hand over.
        """
        if not self._held:
            return []
        missing = [spool for spool in living if spool not in self._held]
        oldest = min(held.since for held in self._held.values())
        hurried = any(living.get(spool, False) for spool in self._held)
        if missing and not hurried and time.monotonic() - oldest < PATIENCE:
            return []
        first = min((held.step, held.split) for held in self._held.values())
        together = [s for s, held in sorted(self._held.items()) if (held.step, held.split) == first]
        return [self._held.pop(spool).item for spool in together]
