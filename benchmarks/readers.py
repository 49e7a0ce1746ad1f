"""Many readers at once: what a query over /api/v1 takes, and whether the server's memory grows.

    python -m benchmarks.readers --readers 20 --requests 5000

The baseline of the same run is one reader alone, asking the same questions.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

GOAL_MS = 300
"""The 95th percentile of a query's milliseconds on the clock, with all readers."""
PART = 500
"""Requests after which time and memory are printed."""
QUESTIONS = (
    "reward < {x}",
    "n_sampled > {n} and reward >= {x}",
    "step = {step}",
    "group.mean > {x} order by -reward",
    "staleness_max >= 0 and step < {step}",
)


def main() -> None:
    """Prints percentiles on the clock, and the server's resident memory as the requests go by."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--requests", type=int, default=5_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRACKIO_DIR"] = folder
        measure(Path(folder), asked.rows, asked.readers, asked.requests)


def measure(folder: Path, n_rows: int, n_readers: int, n_requests: int) -> None:
    """Writes a project, serves it and asks.

    Memory is measured from where every reader has been answered fifty times: threads are started, columns read and
    remembered answers at their most.

    Args:
        folder: Trackio's folder.
        n_rows: rollouts of the project.
        n_readers: readers at the same time.
        n_requests: requests of all readers together.
    """
    import psutil

    from benchmarks.table_of_rollouts import PROJECT, STEP_ROWS, write_steps
    from tests.inspector.conftest import Served

    n_steps = -(-n_rows // STEP_ROWS)
    write_steps(range(n_steps))
    server = Served(folder)
    memory = psutil.Process(server.process.pid).memory_info
    try:
        address = f"{server.address}/api/v1/rollouts"
        questions = list(drawn(n_requests, n_steps))
        ask(address, PROJECT, questions[:20])
        alone = ask(address, PROJECT, questions[:200])
        print(f"{n_steps * STEP_ROWS:,} rollouts; one reader alone: {described(alone)}")
        together(address, PROJECT, list(drawn(50 * n_readers, n_steps, seed=1)), n_readers)
        resident = [memory().rss / 2**20]
        every: list[float] = []
        for first in range(0, n_requests, PART):
            seconds = together(address, PROJECT, questions[first : first + PART], n_readers)
            resident.append(memory().rss / 2**20)
            every += seconds
            print(
                f"{n_readers} readers, requests {first:,} to {first + len(seconds):,}: {described(seconds)}; memory"
                f" {resident[-1]:.0f} MiB, {resident[-1] - resident[0]:+.0f}"
            )
        print(f"all {n_requests:,}: {described(every)}")
        slope = statistics.linear_regression(range(len(resident)), resident).slope * 1_000 / PART
        print(f"memory: {min(resident):.0f} to {max(resident):.0f} MiB, {slope:+.1f} MiB per 1,000 requests")
        print(f"goal: 95 % within {GOAL_MS} ms, and memory that does not grow")
    finally:
        server.stop()


def drawn(n: int, n_steps: int, seed: int = 0) -> list[str]:
    """Filters, most of them asked once."""
    rng = random.Random(seed)
    return [
        rng.choice(QUESTIONS).format(
            x=round(rng.random(), 3), n=rng.randint(10, 900), step=rng.randrange(n_steps)
        )
        for _ in range(n)
    ]


def ask(address: str, project: str, questions: list[str]) -> list[float]:
    """Seconds on the clock of each question, one after another over one connection.

    Raises:
        httpx.HTTPStatusError: one was refused.
    """
    import httpx

    from tests.inspector.conftest import TOKEN

    seconds = []
    with httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
        for where in questions:
            started = time.perf_counter()
            given: dict[str, Any] = {"project": project, "where": where, "rows": "all", "limit": 50}
            client.get(address, params=given).raise_for_status()
            seconds.append(time.perf_counter() - started)
    return seconds


def together(address: str, project: str, questions: list[str], n_readers: int) -> list[float]:
    """The same by several readers at once, each with its share of the questions."""
    seconds: list[float] = []

    def read(mine: list[str]) -> None:
        seconds.extend(ask(address, project, mine))

    threads = [threading.Thread(target=read, args=(questions[at::n_readers],)) for at in range(n_readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seconds) == len(questions), "a reader was refused"
    return seconds


def described(seconds: list[float]) -> str:
    """Median, 95th percentile and worst in milliseconds."""
    inorder = sorted(1e3 * s for s in seconds)
    at95 = inorder[min(len(inorder) - 1, int(0.95 * len(inorder)))]
    return f"median {inorder[len(inorder) // 2]:.0f}, 95 % {at95:.0f}, worst {inorder[-1]:.0f} ms"


if __name__ == "__main__":
    main()
