"""Questions of many readers, a few at a time: twenty threads that share two cores keep each other from working.

Small questions never wait behind large ones. What takes long is learnt by name: questions of a name that took long
the last times are answered one at a time beside the small ones; so are those of a name of which nothing is known but
that one is being answered.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import anyio

T = TypeVar("T")
MOST = 3
"""Small questions that are answered at the same time."""
QUICK_SECONDS = 1.0
"""A question that takes longer is a large one; one that was taken for small makes room for the next then."""
MOST_SLOW = 4
"""Questions taken for small that may go on after they made room: each holds memory."""
LAST = 5
"""Durations of a name by which its next question is taken for small or large."""


class FewAtOnce:
    """Answers in threads: at most `most` small questions at the same time, in order of arrival, and one large one.

    Args:
        most: how many.
        quick_seconds: seconds after which one that is not answered yet makes room for the next.
    """

    def __init__(self, most: int = MOST, quick_seconds: float = QUICK_SECONDS) -> None:
        self._changed = asyncio.Condition()
        self._most = most
        self._quick_seconds = quick_seconds
        self._n_small = self._n_large = self._n_slow = 0
        self._running: Counter[str] = Counter()
        self._took: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=LAST))
        self._telling: set[asyncio.Task[None]] = set()

    async def run(self, answer: Callable[[], T], name: str = "") -> T:
        """The answer of a function that is called in a thread.

        Args:
            answer: the function; what it raises is raised.
            name: what is asked, by which it is known how long that takes; a question without one is small.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_room(name))
            place = _Place(name, self._is_large(name))
            self._enter(place)
        makes_room = asyncio.get_running_loop().call_later(self._quick_seconds, self._took_long, place)
        begun = time.monotonic()
        try:
            return await anyio.to_thread.run_sync(answer)
        finally:
            makes_room.cancel()
            self._took[name].append(time.monotonic() - begun)
            self._leave(place)

    def _is_large(self, name: str) -> bool:
        took = self._took.get(name)
        if not took:
            return bool(name) and self._running[name] > 0
        return bool(name) and median(took) >= self._quick_seconds

    def _has_room(self, name: str) -> bool:
        return not self._n_large if self._is_large(name) else self._n_small < self._most

    def _enter(self, place: _Place) -> None:
        self._running[place.name] += 1
        self._n_large += place.is_large
        self._n_small += not place.is_large

    def _leave(self, place: _Place) -> None:
        self._running[place.name] -= 1
        self._n_large -= place.is_large
        self._n_slow -= place.is_slow
        self._n_small -= not (place.is_large or place.is_slow)
        self._tell()

    def _took_long(self, place: _Place) -> None:
        """Knows a question for a large one; where it was taken for a small one, the next may begin beside it."""
        self._took[place.name].append(self._quick_seconds)
        if not place.is_large and self._n_slow < MOST_SLOW:
            place.is_slow = True
            self._n_slow += 1
            self._n_small -= 1
        self._tell()

    def _tell(self) -> None:
        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        telling = asyncio.ensure_future(tell())
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)


@dataclass(eq=False)
class _Place:
    """One question that is being answered.

    Attributes:
        name: what is asked.
        is_large: it takes the place of a large question.
        is_slow: it was taken for a small one, took long, and made room for the next.
    """

    name: str
    is_large: bool
    is_slow: bool = False
