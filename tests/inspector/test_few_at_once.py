"""A few questions are answered at a time, and no small one waits behind large ones."""

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

from rollout_traces.inspector.few_at_once import FewAtOnce
from rollout_traces.store.asking import RememberedAnswers
from rollout_traces.store.time_limit import waiting_for_another

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
        few = FewAtOnce(2)
        return await asyncio.gather(*(few.run(lambda n=n: answer(n)) for n in range(8)))

    assert _ran(ask) == list(range(8))
    assert max(at_once) == 2
    assert [sorted(begun[at : at + 2]) for at in range(0, 8, 2)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_one_that_fails_raises_and_makes_room():
    def fails() -> None:
        raise ValueError("no")

    async def ask() -> str:
        few = FewAtOnce(1)
        with pytest.raises(ValueError, match="no"):
            await few.run(fails)
        return await few.run(lambda: "next")

    assert _ran(ask) == "next"


def test_a_small_question_does_not_wait_behind_large_ones():
    later = threading.Event()

    async def ask() -> list[str]:
        few = FewAtOnce(1, large=["health"])
        await few.run(lambda: None, "rollouts")
        large = [few.run(lambda: later.wait(60) and "large", "health") for _ in range(8)]
        waiting = [asyncio.ensure_future(one) for one in large]
        await asyncio.sleep(0)
        small = [await few.run(lambda: "small", "rollouts") for _ in range(3)]
        later.set()
        return small + await asyncio.gather(*waiting)

    assert _ran(ask) == ["small"] * 3 + ["large"] * 8


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
        few = FewAtOnce(2)
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
        few = FewAtOnce(1)
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


def test_a_question_that_is_withdrawn_while_it_has_stepped_aside_leaves_no_place_taken():
    aside, go_on = threading.Event(), threading.Event()

    def answer() -> str:
        with waiting_for_another():
            aside.set()
            go_on.wait(60)
        return "gone"

    async def ask() -> str:
        few = FewAtOnce(1)
        gone = asyncio.ensure_future(few.run(answer))
        await asyncio.to_thread(aside.wait, 60)
        gone.cancel()
        meanwhile = await few.run(lambda: "meanwhile")
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return f"{meanwhile} and {await few.run(lambda: 'next')}"

    assert _ran(ask) == "meanwhile and next"


def test_large_questions_are_answered_one_at_a_time():
    at_once = AtOnce()

    def answer() -> None:
        with at_once:
            time.sleep(0.02)

    async def ask() -> None:
        few = FewAtOnce(3, large=("health", "run"))
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
