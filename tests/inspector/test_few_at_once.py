"""A few questions are answered at a time, and a slow one keeps nobody waiting."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import anyio
import pytest

from rollout_traces.inspector.few_at_once import MOST_SLOW, FewAtOnce
from rollout_traces.store.asking import RememberedAnswers

NEVER = 3600.0
T = TypeVar("T")


class AtOnce:
    """Counts how many are inside at the same time."""

    def __init__(self) -> None:
        self.most = 0
        self._inside = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1


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
        at_once = AtOnce()

        def answer() -> None:
            with at_once:
                time.sleep(0.01)

        few._quick_seconds = NEVER
        await asyncio.gather(*(few.run(answer) for _ in range(6)))
        return at_once.most

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


def test_a_small_question_does_not_wait_behind_large_ones():
    later = threading.Event()

    async def ask() -> list[str]:
        few = FewAtOnce(1, 0.5, large=["health"])
        await few.run(lambda: None, "rollouts")
        large = [few.run(lambda: later.wait(60) and "large", "health") for _ in range(8)]
        waiting = [asyncio.ensure_future(one) for one in large]
        await asyncio.sleep(0)
        small = [await few.run(lambda: "small", "rollouts") for _ in range(3)]
        later.set()
        return small + await asyncio.gather(*waiting)

    assert _ran(ask) == ["small"] * 3 + ["large"] * 8


def test_large_questions_are_answered_one_at_a_time():
    at_once = AtOnce()

    def answer() -> None:
        with at_once:
            time.sleep(0.01)

    async def ask() -> None:
        few = FewAtOnce(3, 0.001)
        await few.run(lambda: threading.Event().wait(0.05), "health")
        await asyncio.gather(*(few.run(answer, "health") for _ in range(6)))

    _ran(ask)
    assert at_once.most == 1


def test_a_name_that_became_quick_is_small_again():
    async def ask() -> bool:
        few = FewAtOnce(1, 0.02)
        await few.run(lambda: threading.Event().wait(0.05), "health")
        was = few._is_large("health")
        for _ in range(3):
            await few.run(lambda: None, "health")
        return was and not few._is_large("health")

    assert _ran(ask)


def test_only_so_many_slow_ones_make_room():
    later, begun = threading.Event(), []

    async def ask() -> int:
        few = FewAtOnce(1, 0.005)

        def slow() -> None:
            begun.append(1)
            later.wait(60)

        waiting = [asyncio.ensure_future(few.run(slow)) for _ in range(12)]
        await asyncio.sleep(0.5)
        n = len(begun)
        later.set()
        await asyncio.gather(*waiting)
        return n

    assert _ran(ask) == MOST_SLOW + 1


def test_of_a_name_that_is_new_one_is_tried_beside_the_small_ones_and_the_next_is_large():
    later = threading.Event()

    async def ask() -> list[str]:
        few = FewAtOnce(3, NEVER)
        new = [asyncio.ensure_future(few.run(lambda: later.wait(60) and "new", "health")) for _ in range(5)]
        await asyncio.sleep(0.05)
        others = [await few.run(lambda: "small") for _ in range(3)]
        later.set()
        return others + await asyncio.gather(*new)

    assert _ran(ask) == ["small"] * 3 + ["new"] * 5


def test_one_that_waits_for_what_another_computes_leaves_its_place_meanwhile():
    answers = RememberedAnswers()
    begun, go_on = threading.Event(), threading.Event()
    at_once = AtOnce()

    def compute() -> str:
        begun.set()
        assert go_on.wait(60)
        return "large"

    def small() -> str:
        with at_once:
            time.sleep(0.01)
        return "small"

    async def ask() -> list[str]:
        few = FewAtOnce(2, NEVER)
        large = [asyncio.ensure_future(few.run(lambda: answers.answer("large", compute))) for _ in range(6)]
        await asyncio.to_thread(begun.wait, 60)
        found = await asyncio.gather(*(few.run(small) for _ in range(8)))
        go_on.set()
        return [*found, *await asyncio.gather(*large)]

    assert _ran(ask) == ["small"] * 8 + ["large"] * 6
    assert at_once.most == 1, "the one that computes keeps its place"


def test_a_question_that_is_withdrawn_before_it_has_a_thread_leaves_no_place_taken():
    later = threading.Event()

    async def ask() -> str:
        few = FewAtOnce(1, NEVER)
        few._threads = anyio.CapacityLimiter(1)
        first = asyncio.ensure_future(few.run(lambda: later.wait(60)))
        await asyncio.sleep(0.05)
        gone = asyncio.ensure_future(few.run(lambda: "gone"))
        await asyncio.sleep(0.05)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        later.set()
        await first
        return await few.run(lambda: "next")

    assert _ran(ask) == "next"


def test_a_name_that_is_declared_large_is_so_from_the_first_question_on():
    at_once = AtOnce()

    def answer() -> None:
        with at_once:
            time.sleep(0.02)

    async def ask() -> None:
        few = FewAtOnce(3, NEVER, large=("health", "run"))
        await asyncio.gather(few.run(answer, "health"), few.run(answer, "run"))

    _ran(ask)
    assert at_once.most == 1


LET_GO = """
import numpy as np
import pyarrow as pa
from rollout_traces.inspector.few_at_once import give_back, give_back_large_blocks

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

give_back_large_blocks()
assert pa.default_memory_pool().backend_name == "system"
large = np.ones(3 << 20)
del large
before = resident()
columns, rows = [], []
for at in range(64):
    columns += [np.ones(1 << 18), pa.nulls(1 << 18, pa.int64())]
    rows.append(bytes(100_000))
held = resident() - before
del columns
give_back()
print(held, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_columns_that_are_let_go_leave_no_memory_taken() -> None:
    done = subprocess.run([sys.executable, "-c", LET_GO], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    held, left = map(int, done.stdout.split())
    assert held > 64 * (1 << 21) and left < held / 8, (held, left)
