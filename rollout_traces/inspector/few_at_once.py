"""Questions of many readers, a few at a time: twenty threads that share two cores keep each other from working."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")
MOST = 3
"""Questions that are answered at the same time."""
QUICK_SECONDS = 1.0
"""After this a question no longer counts: others need not wait until a slow one is done."""


class FewAtOnce:
    """Answers in threads: at most `most` quick questions at the same time, in order of arrival.

    Args:
        most: how many.
        quick_seconds: seconds after which one that is not answered yet makes room for the next.
    """

    def __init__(self, most: int = MOST, quick_seconds: float = QUICK_SECONDS) -> None:
        self._free = asyncio.Semaphore(most)
        self._quick_seconds = quick_seconds

    async def run(self, answer: Callable[[], T]) -> T:
        """The answer of a function that is called in a thread.

        Args:
            answer: the function; what it raises is raised.
        """
        await self._free.acquire()
        place = _Place(self._free)
        makes_room = asyncio.get_running_loop().call_later(self._quick_seconds, place.leave)
        try:
            return await anyio.to_thread.run_sync(answer)
        finally:
            makes_room.cancel()
            place.leave()


class _Place:
    """One question's place among the few, left once."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free: asyncio.Semaphore | None = free

    def leave(self) -> None:
        free, self._free = self._free, None
        if free is not None:
            free.release()
