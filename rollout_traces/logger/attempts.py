"""Attempts: a run that starts again, or goes back to an earlier step, logs its steps anew under another id."""

from __future__ import annotations

import datetime
import os
import threading

LATE_STEPS = 1
"""Steps behind the newest one whose rollouts are late; further behind, the trainer has gone back."""


class Attempts:
    """The attempts of one run, as the loggers of one process see them.

    An attempt begins when a process starts to log to the run, when the trainer's step goes back by more than
    `LATE_STEPS` to a step that was closed, and when `begin` is called. A restart of the worker, recovery, another
    rank or a second logger of the same process begin none.

    Args:
        started: when the first attempt began, as `now` gives it; the same on all ranks.
    """

    def __init__(self, started: str) -> None:
        self.started = started
        self.n_begun = 1
        self._newest: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._closed: dict[str, set[int]] = {}
        self._is_kept = False
        self._lock = threading.Lock()

    @property
    def current(self) -> str:
        """The id of the current attempt. Ids sort by time; every rank makes the same ones."""
        return f"{self.started}-{self.n_begun:03d}"

    def begin(self) -> None:
        """Begins a new attempt."""
        with self._lock:
            self._begin()

    def keep(self, attempt: str) -> None:
        """Goes on with an attempt that is known: rollouts of any step belong to it, whatever their order.

        Args:
            attempt: its id.
        """
        with self._lock:
            self.started, _, n_begun = attempt.rpartition("-")
            self.n_begun = int(n_begun)
            self._is_kept = True

    def go_on(self, n_begun: int) -> None:
        """Goes on with another attempt of the run that `keep` named, by its number, counted from 1."""
        with self._lock:
            self.n_begun = n_begun

    def note_rollouts(self, step: int, split: str, *, announced: bool = False) -> str:
        """Notes that rollouts of a step are logged.

        Args:
            step: the trainer's global step.
            split: `rollout` or `eval-rollout`.
            announced: the trainer announces closes: only a step that it closed, or one from before the attempt's
                first, may be repeated.

        Returns:
            The id of the attempt that they belong to.
        """
        with self._lock:
            newest = self._newest.get(split)
            if (
                newest is not None
                and not self._is_kept
                and step < newest - LATE_STEPS
                and (not announced or self._is_closed(step, split))
            ):
                self._begin()
            self._newest[split] = max(step, self._newest.get(split, step))
            self._first.setdefault(split, step)
            return self.current

    def note_close(self, step: int, split: str) -> str:
        """Notes that the trainer closed a step.

        Returns:
            The id of the attempt that the step belongs to.
        """
        with self._lock:
            self._closed.setdefault(split, set()).add(step)
            return self.current

    def _is_closed(self, step: int, split: str) -> bool:
        return step in self._closed.get(split, ()) or step < self._first[split]

    def _begin(self) -> None:
        self.n_begun += 1
        self._newest.clear()
        self._first.clear()
        self._closed.clear()


def now() -> str:
    """The current time as the beginning of an attempt's id."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")


_OF_RUN: dict[tuple[int, str], Attempts] = {}
_REGISTRY = threading.Lock()


def attempts_of(run_id: str, started: str | None = None) -> Attempts:
    """The attempts of a run in this process: a second logger of the run shares them.

    Args:
        run_id: Trackio's id of the run.
        started: when the attempt began, where another rank has said so; now when None.
    """
    with _REGISTRY:
        return _OF_RUN.setdefault((os.getpid(), run_id), Attempts(started or now()))
