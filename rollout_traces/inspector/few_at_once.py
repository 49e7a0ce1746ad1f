"""Questions of many readers, a few at a time: twenty threads that share two cores keep each other from working.

Small questions never wait behind large ones, which are answered one at a time beside them. One that waits for what
another computes leaves its place to the next meanwhile. Memory that a large answer took goes back to the system:
allocators would keep it for the next one, which may be never.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

import anyio
from anyio import from_thread, to_thread

from rollout_traces.model.units import MB
from rollout_traces.store.time_limit import stepping_aside

T = TypeVar("T")
MOST = 3
"""Small questions that are answered at the same time."""
MOST_THREADS = 200
"""Questions that are answered, or wait for what another computes, in a thread; further ones wait outside."""


class FewAtOnce:
    """Answers in threads, in order of arrival: at most `most` small questions at the same time, and one large one.

    Args:
        most: how many.
        large: names whose questions are large.
    """

    def __init__(self, most: int = MOST, large: Collection[str] = ()) -> None:
        self._most = most
        self._large = frozenset(large)

    @cached_property
    def _places(self) -> dict[bool, anyio.CapacityLimiter]:
        return {True: anyio.CapacityLimiter(1), False: anyio.CapacityLimiter(self._most)}

    @cached_property
    def _threads(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(MOST_THREADS)

    async def run(self, answer: Callable[[], T], name: str = "") -> T:
        """The answer of a function that is called in a thread.

        Args:
            answer: the function; what it raises is raised.
            name: what is asked.
        """
        asked = object()
        is_large = name in self._large
        place = self._places[is_large]
        has_thread = False

        def leave() -> None:
            from_thread.run_sync(place.release_on_behalf_of, asked)

        async def take() -> None:
            with anyio.CancelScope(shield=True):  # it goes on, though whoever asked has gone
                await place.acquire_on_behalf_of(asked)

        @contextmanager
        def aside() -> Iterator[None]:
            """Leaves the question's place to others until the block is over."""
            leave()
            try:
                yield
            finally:
                from_thread.run(take)

        def answered() -> T:
            nonlocal has_thread
            has_thread = True
            try:
                with stepping_aside(aside):
                    return answer()
            finally:
                leave()
                if is_large:
                    give_back()

        await place.acquire_on_behalf_of(asked)
        try:
            return await to_thread.run_sync(answered, limiter=self._threads)
        finally:
            if not has_thread:  # whoever asked has gone before there was one
                place.release_on_behalf_of(asked)


MMAP_BYTES = 32 * MB
"""A block of so many bytes is a mapping of its own, which ends with it; glibc takes no more. Of smaller ones, as columns are,
each would cost its pages anew: a quarter of a diagnosis's processor time."""
M_MMAP_THRESHOLD = -3
"""The parameter's number in glibc's `malloc.h`; setting it also ends its growth with the blocks that are freed."""
M_ARENA_MAX = -8
ARENAS = 2
"""Heaps that all threads share: each of its own would keep what its largest answer took."""


def give_back_large_blocks() -> None:
    """Has this process take large blocks from the system one by one, Arrow's too, where the C library can."""
    import pyarrow as pa

    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none, and gives large blocks back by itself
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(M_ARENA_MAX, ARENAS)
    pa.set_memory_pool(pa.system_memory_pool())
    gc.collect()
    give_back()


def give_back() -> None:
    """Gives back the small blocks that lie together unused."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
