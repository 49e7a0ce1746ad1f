"""How long the calling thread is held up by one hand-over, with a fault and without."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

CALLS = int(os.environ.get("ROLLOUT_TRACES_PACE", "100"))
"""Hand-overs that are timed without the fault, and with it."""
APART = 0.01
"""Seconds between two hand-overs."""


@dataclass(frozen=True)
class Call:
    """What one hand-over cost its thread, milliseconds.

    Attributes:
        wall: as the training loop sees it.
        processor: that the thread itself worked, whatever else the machine does.
    """

    wall: float
    processor: float


@dataclass(frozen=True)
class Pace:
    """Hand-overs without a fault and with it.

    Attributes:
        quiet: without.
        fault: with.
    """

    quiet: list[Call]
    fault: list[Call]

    @property
    def longest(self) -> float:
        """Milliseconds of the longest call while the fault lasted."""
        return max(call.wall for call in self.fault)

    def __str__(self) -> str:
        quiet, fault = at_p99(self.quiet), at_p99(self.fault)
        return (
            f"p99 of a call without it {quiet.wall:.1f} ms, with it {fault.wall:.1f}; "
            f"processor {quiet.processor:5.2f}, {fault.processor:5.2f}"
        )


def at_p99(calls: list[Call]) -> Call:
    """The 99th percentile of either time."""
    wall, processor = (
        np.percentile([getattr(call, kind) for call in calls], 99) for kind in ("wall", "processor")
    )
    return Call(float(wall), float(processor))


def timed(logger: Any, arrays: dict[str, Any], steps: range) -> list[Call]:
    """Hands a batch over once a step."""
    calls = []
    for step in steps:
        wall, processor = time.perf_counter(), time.thread_time()
        logger.log_rollouts(arrays, step=step)
        calls.append(Call(1e3 * (time.perf_counter() - wall), 1e3 * (time.thread_time() - processor)))
        time.sleep(APART)
    return calls


@contextmanager
def again_and_again(work: Callable[[], None], every: float) -> Iterator[None]:
    """Does something from time to time on another thread."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(every):
            work()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
