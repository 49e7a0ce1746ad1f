"""What a call takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def spent(ask: Callable[[], Any], before: Callable[[], Any], repeats: int = 5) -> dict[str, float]:
    """Median milliseconds on the wall and of this process's CPU; the latter bears a busy machine better.

    Args:
        ask: what is measured.
        before: called before each repetition, unmeasured.
        repeats: how often.
    """
    walls, cpus = [], []
    for _ in range(repeats):
        before()
        wall, cpu = time.perf_counter(), time.process_time()
        ask()
        walls.append((time.perf_counter() - wall) * 1000)
        cpus.append((time.process_time() - cpu) * 1000)
    return {"wall": round(statistics.median(walls), 2), "cpu": round(statistics.median(cpus), 2)}
