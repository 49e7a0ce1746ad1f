"""A few questions are answered at a time, and a slow one keeps nobody waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from rollout_traces.inspector.few_at_once import FewAtOnce

NEVER = 3600.0
T = TypeVar("T")


def _ran(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """In a thread: a browser of other tests may have left an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(ask())).result()


def test_no_more_are_answered_at_once_and_they_come_in_order():
    at_once, together, begun = [], 0, []
    lock = threading.Lock()
    both = threading.Barrier(2, timeout=60)

    def answer(number: int) -> int:
        nonlocal together
        with lock:
            together += 1
            at_once.append(together)
            begun.append(number)
        both.wait()
        with lock:
            together -= 1
        both.wait()
        return number

    async def ask() -> list[int]:
        few = FewAtOnce(2, NEVER)
        return await asyncio.gather(*(few.run(lambda n=n: answer(n)) for n in range(8)))

    assert _ran(ask) == list(range(8))
    assert max(at_once) == 2
    assert [sorted(begun[at : at + 2]) for at in range(0, 8, 2)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_one_that_takes_long_makes_room_for_the_next():
    later = threading.Event()

    async def ask() -> tuple[bool, str]:
        few = FewAtOnce(1, 0.01)
        return await asyncio.gather(few.run(lambda: later.wait(60)), few.run(lambda: later.set() or "quick"))

    assert _ran(ask) == [True, "quick"]


def test_a_slow_one_gives_its_place_back_once():
    """Else every slow question would let one more in."""

    async def ask() -> int:
        few = FewAtOnce(1, 0.001)
        await few.run(lambda: threading.Event().wait(0.1))
        together, most = 0, 0
        lock = threading.Lock()

        def answer() -> None:
            nonlocal together, most
            with lock:
                together += 1
                most = max(most, together)
            threading.Event().wait(0.01)
            with lock:
                together -= 1

        few._quick_seconds = NEVER
        await asyncio.gather(*(few.run(answer) for _ in range(6)))
        return most

    assert _ran(ask) == 1


def test_one_that_fails_raises_and_makes_room():
    def fails() -> None:
        raise ValueError("no")

    async def ask() -> str:
        few = FewAtOnce(1, NEVER)
        with pytest.raises(ValueError, match="no"):
            await few.run(fails)
        return await few.run(lambda: "next")

    assert _ran(ask) == "next"
