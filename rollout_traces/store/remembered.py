"""Answers that were given before, for as long as what they are about has not changed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollout_traces.store.time_limit import current_limit

KEPT_ANSWERS = 64
Answer = TypeVar("Answer")


@dataclass
class _Computing:
    """An answer that is being computed.

    Attributes:
        n_waiting: threads that want it, the one that computes included.
    """

    n_waiting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One thread at a time; the others wait.

        Raises:
            StoreError: the time is over, see `time_limit`.
        """
        limit = current_limit()
        if not self._lock.acquire(timeout=-1 if limit is None else limit.seconds_left):
            assert limit is not None
            raise limit.error()
        try:
            yield
        finally:
            self._lock.release()


class RememberedAnswers:
    """Answers by question; those asked for longest ago are let go first.

    Args:
        most: answers that are kept.
    """

    def __init__(self, most: int = KEPT_ANSWERS) -> None:
        self._most = most
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._computing: dict[Hashable, _Computing] = {}
        self._lock = threading.Lock()

    def answer(self, question: Hashable, compute: Callable[[], Answer]) -> Answer:
        """The answer to a question.

        Of several threads that ask the same at once one computes it and the others wait for it; where it fails, the
        next one tries.

        Args:
            question: what was asked, and the state of what it was asked of.
            compute: gives the answer where there is none; it may ask other questions.

        Raises:
            StoreError: the time is over before another thread has the answer, see `time_limit`.
        """
        with self._lock:
            if question in self._answers:
                self._answers.move_to_end(question)
                return self._answers[question]
            computing = self._computing.setdefault(question, _Computing())
            computing.n_waiting += 1
        try:
            with computing.alone():
                with self._lock:
                    if question in self._answers:
                        return self._answers[question]
                found = compute()
                with self._lock:
                    self._answers[question] = found
                    while len(self._answers) > self._most:
                        self._answers.popitem(last=False)
                return found
        finally:
            with self._lock:
                computing.n_waiting -= 1
                if not computing.n_waiting:
                    self._computing.pop(question, None)

    def forget(self) -> None:
        """Drops all answers."""
        with self._lock:
            self._answers.clear()
