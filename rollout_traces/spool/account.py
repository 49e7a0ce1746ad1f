"""The account of what a worker counted, and of what became of what was handed over to a run's spools.

Stored, waiting, lost in damaged records, or in a newer format: whoever speaks of it says this, so that none says that
all is stored where another knows of damage.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, replace

from rollout_traces.spool.run_folder import RunFolder


@dataclass(frozen=True)
class Account:
    """A run's rollouts, as far as the folder of its spools knows.

    Attributes:
        stored: seen in the store.
        waiting: in records that wait.
        lost: in records that are damaged and were set aside, as far as these say how many.
        newer: in records that only a newer version can read.
        n_waiting: records that wait.
        n_damaged: records that are damaged.
        n_newer: records of a newer format that were set aside.
        n_silent: damaged records that do not say how many rollouts they held.
    """

    stored: int = 0
    waiting: int = 0
    lost: int = 0
    newer: int = 0
    n_waiting: int = 0
    n_damaged: int = 0
    n_newer: int = 0
    n_silent: int = 0

    @property
    def is_hurt(self) -> bool:
        """True where something cannot be stored any more, or not by this version."""
        return bool(self.n_damaged or self.n_newer)

    def __str__(self) -> str:
        handed_over = self.stored + self.waiting + self.lost + self.newer
        parts = [f"{self.stored:,} of {handed_over:,} rollouts stored"]
        if self.n_waiting:
            parts.append(f"{self.waiting:,} wait in {_records(self.n_waiting)}")
        if self.n_damaged:
            least = "at least " if self.n_silent else ""
            parts.append(f"{least}{self.lost:,} lost in {_records(self.n_damaged, 'damaged ')}")
        if self.n_newer:
            newer = _records(self.n_newer)
            parts.append(f"{self.newer:,} in {newer} of a newer format (upgrade rollout-traces)")
        return "; ".join(parts)


def account_of(folder: RunFolder) -> Account:
    """Counts what a run's folder knows; every record that waits is looked at."""
    waiting = [(reader, name) for reader in folder.readers() for name in reader.names()]
    said = [reader.said_by(name) for reader, name in waiting]
    return replace(
        damage_of(folder),
        stored=int(folder.status().get("counters", {}).get("rollouts_stored", 0)),
        waiting=sum(one.n_rows for one in said if one is not None),
        n_waiting=len(waiting),
    )


def damage_of(folder: RunFolder) -> Account:
    """Counts the records that were set aside, and nothing else."""
    aside = [said for reader in folder.readers() for said in reader.set_aside_ones()]
    damaged = [one for one in aside if one is None or not one.is_newer]
    newer = [one for one in aside if one is not None and one.is_newer]
    return Account(
        lost=sum(one.n_rows for one in damaged if one is not None),
        newer=sum(one.n_rows for one in newer),
        n_damaged=len(damaged),
        n_newer=len(newer),
        n_silent=sum(one is None for one in damaged),
    )


def _records(n: int, kind: str = "") -> str:
    return f"{n:,} {kind}record{'s' * (n != 1)}"


PUBLISH_EVERY = 0.2
"""Seconds between two writes of the status."""


class Publisher:
    """Writes the status from time to time.

    Args:
        folder: the run's folder.
        counters: what is written.
    """

    def __init__(self, folder: RunFolder, counters: Counter[str]) -> None:
        self._folder = folder
        self._counters = counters
        self._last: dict[str, int] = {}
        self._at = 0.0

    def __call__(self) -> None:
        """Writes when something changed and the last time is long enough ago."""
        if time.monotonic() - self._at >= PUBLISH_EVERY and dict(self._counters) != self._last:
            self.now()

    def now(self) -> None:
        """Writes."""
        self._at = time.monotonic()
        self._last = dict(self._counters)
        self._folder.write_status({"counters": self._last, "pid": os.getpid(), "at": time.time()})
