"""Answers that were given before, for as long as what they are about has not changed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from rollout_traces.store.time_limit import waiting_for_another

KEPT_ANSWERS = 64
Answer = TypeVar("Answer")


class RememberedAnswers:
    """Answers by question; those asked for longest ago are let go first.

    Args:
        most: answers that are kept.
    """

    def __init__(self, most: int = KEPT_ANSWERS) -> None:
        self._most = most
        self._answers: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, question: Hashable, compute: Callable[[], Answer]) -> Answer:
        """The answer to a question.

        Of several threads that ask the same at once one computes it and the others wait for it: they get what it
        gets, an exception too. The next one that asks tries again.

        Args:
            question: what was asked, and the state of what it was asked of.
            compute: gives the answer where there is none; it may ask other questions.
        """
        with self._lock:
            known = self._answers.get(question)
            if known is None:
                mine = self._answers[question] = Future[Any]()
            else:
                self._answers.move_to_end(question)
        if known is not None:
            if not known.done():
                with waiting_for_another():
                    wait([known])
            return known.result()
        try:
            found = compute()
        except BaseException as error:
            with self._lock:
                if self._answers.get(question) is mine:
                    del self._answers[question]
            mine.set_exception(error)
            raise
        mine.set_result(found)
        with self._lock:
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
        return found

    def forget(self) -> None:
        """Drops all answers."""
        with self._lock:
            self._answers.clear()
