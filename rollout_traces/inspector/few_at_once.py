"""Questions of many readers, a few at a time: twenty threads that share two cores keep each other from working.

Small questions never wait behind large ones. What takes long is learnt by name: questions of a name that took long
the last times are answered one at a time beside the small ones; so are those of a name of which nothing is known but
that one is being answered. One that waits for what another computes leaves its place to the next meanwhile. Memory
that a large answer took goes back to the system: allocators would keep it for the next one, which may be never.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

import anyio

from rollout_traces.model.units import MB
from rollout_traces.store.time_limit import stepping_aside

T = TypeVar("T")
MOST = 3
"""Small questions that are answered at the same time."""
QUICK_SECONDS = 1.0
"""A question that takes longer is a large one; one that was taken for small makes room for the next then."""
MOST_SLOW = 1
"""Questions taken for small that may go on after they made room: each holds memory."""
LAST = 5
"""Durations of a name by which its next question is taken for small or large."""
MOST_THREADS = 200
"""Questions that are answered or wait in a thread; further ones wait outside."""


class FewAtOnce:
    """Answers in threads: at most `most` small questions at the same time, in order of arrival, and one large one.

    Args:
        most: how many.
        quick_seconds: seconds after which one that is not answered yet makes room for the next.
        large: names whose questions are taken for large ones until it is known how long they take.
    """

    def __init__(
        self, most: int = MOST, quick_seconds: float = QUICK_SECONDS, large: Sequence[str] = ()
    ) -> None:
        self._most = most
        self._quick_seconds = quick_seconds
        self._lock = threading.Lock()
        self._waiting: list[_Question] = []
        self._working: list[_Question] = []
        self._begun: Counter[str] = Counter()
        self._took: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=LAST))
        for name in large:
            self._took[name].append(quick_seconds)
        self._threads: anyio.CapacityLimiter | None = None

    async def run(self, answer: Callable[[], T], name: str = "") -> T:
        """The answer of a function that is called in a thread.

        Args:
            answer: the function; what it raises is raised.
            name: what is asked, by which it is known how long that takes; a question without one is small.
        """
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(MOST_THREADS)
        question = _Question(name)
        with self._lock:
            self._waiting.append(question)
            self._admit()
        try:
            return await anyio.to_thread.run_sync(self._answered, answer, question, limiter=self._threads)
        finally:
            if not question.has_thread:  # whoever asked has gone before there was one
                self._end(question)

    def _answered(self, answer: Callable[[], T], question: _Question) -> T:
        question.has_thread = True
        self._wait_for_place(question)
        try:
            with stepping_aside(lambda: self._aside(question)):
                return answer()
        finally:
            self._end(question)
            if question.seconds >= self._quick_seconds:
                give_back()

    @contextmanager
    def _aside(self, question: _Question) -> Iterator[None]:
        """Leaves the question's place to others until the block is over."""
        with self._lock:
            self._leave(question)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.insert(0, question)
                self._admit()
            self._wait_for_place(question)

    def _wait_for_place(self, question: _Question) -> None:
        while not question.may_work.wait(self._quick_seconds):
            with self._lock:  # what works on may have become slow meanwhile
                self._admit()

    def _end(self, question: _Question) -> None:
        with self._lock:
            if question in self._waiting:
                self._waiting.remove(question)
                return
            self._leave(question)
            self._begun[question.name] -= 1
            self._took[question.name].append(question.seconds)

    def _leave(self, question: _Question) -> None:
        self._working.remove(question)
        question.stop()
        self._admit()

    def _admit(self) -> None:
        """Lets those begin, or go on, for which there is room."""
        for question in list(self._waiting):
            is_new = question.is_large is None
            is_large = self._is_large(question.name) if is_new else bool(question.is_large)
            if self._has_room(is_large):
                self._begun[question.name] += is_new
                question.is_large = is_large
                self._waiting.remove(question)
                self._working.append(question)
                question.start()

    def _is_large(self, name: str) -> bool:
        took = self._took.get(name)
        if not took:
            return bool(name) and self._begun[name] > 0
        return bool(name) and median(took) >= self._quick_seconds

    def _has_room(self, is_large: bool) -> bool:
        if is_large:
            return not any(each.is_large for each in self._working)
        small = [each for each in self._working if not each.is_large]
        n_slow = sum(each.worked() >= self._quick_seconds for each in small)
        return len(small) - min(n_slow, MOST_SLOW) < self._most


@dataclass(eq=False)
class _Question:
    """One question that waits for a place, or has one.

    Attributes:
        name: what is asked.
        is_large: it takes the place of a large question; None until it has had a place.
        seconds: for how long it had one, until it left it last.
        began: when it got the one that it has.
        may_work: it has one.
        has_thread: a thread waits or works for it.
    """

    name: str
    is_large: bool | None = None
    seconds: float = 0.0
    began: float = 0.0
    may_work: threading.Event = field(default_factory=threading.Event)
    has_thread: bool = False

    def start(self) -> None:
        """Gives it a place."""
        self.began = time.monotonic()
        self.may_work.set()

    def stop(self) -> None:
        """Takes its place."""
        self.seconds = self.worked()
        self.may_work.clear()

    def worked(self) -> float:
        """For how long it has had a place."""
        return self.seconds + time.monotonic() - self.began


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
