"""Many readers at once: what mixed questions take, Health included, from a cold start, and the server's memory.

    python -m benchmarks.readers --rows 1000000 --readers 20 --requests 800

Readers ask the page's own questions over /api/v1. Nothing was read or indexed before the first of them. On a machine
that does other work too the milliseconds on the clock are those of both: the server's processor time is beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GOAL_MS = 2_000
"""The 95th percentile of a question's milliseconds on the clock, once the first minute is over."""
GOAL_MB = 900
"""Memory of the server."""
FIRST = 60.0
"""Seconds of the cold start, which are told apart."""
LARGE = ("pages/health", "pages/run", "pages/incidents")
"""Questions that look at every row."""
WHERE = (
    "reward < {x}",
    "n_sampled > {n} and reward >= {x}",
    "step = {step}",
    "group.mean > {x} order by -reward",
    "staleness_max >= 0 and step < {step}",
)


@dataclass
class Answered:
    """What came back.

    Attributes:
        at: seconds from the start at which each question was asked.
        seconds: how long each took.
        names: what was asked.
        refused: status and what was said, with how often.
    """

    at: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def main() -> None:
    """Prints percentiles on the clock, refusals, the server's processor time and its memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--folder", type=Path, help="a Trackio folder with the project; made anew by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = asked.folder or Path(made)
        os.environ["TRACKIO_DIR"] = str(folder)
        measure(folder, asked.rows, asked.readers, asked.requests)


def measure(folder: Path, n_rows: int, n_readers: int, n_requests: int) -> None:
    """Writes a project, serves it and asks.

    Args:
        folder: Trackio's folder.
        n_rows: rollouts of the project.
        n_readers: readers at the same time.
        n_requests: questions of all readers together.
    """
    import psutil

    from benchmarks.table_of_rollouts import PROJECT, RUN, STEP_ROWS, write_steps
    from tests.inspector.conftest import Served

    n_steps = -(-n_rows // STEP_ROWS)
    if not (folder / f"{PROJECT}.db").exists():
        for first in range(0, n_steps, 100):
            write_steps(range(first, min(first + 100, n_steps)))
    server = Served(folder)
    process = psutil.Process(server.process.pid)
    try:
        questions = drawn(n_requests, n_steps, PROJECT, RUN)
        found = together(f"{server.address}/api/v1", questions, n_readers)
        spent = process.cpu_times()
        children = sum(sum(c.cpu_times()[:2]) for c in process.children(recursive=True))
        peak = (
            int(
                next(
                    line.split()[1]
                    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
                    if "VmHWM" in line
                )
            )
            / 1024
        )
    finally:
        server.stop()
    print(f"{n_steps * STEP_ROWS:,} rollouts, {n_readers} readers, {len(found.seconds):,} questions, cold")
    early = [s for s, at in zip(found.seconds, found.at, strict=True) if at < FIRST]
    late = [s for s, at in zip(found.seconds, found.at, strict=True) if at >= FIRST]
    print(f"first {FIRST:.0f} s: {described(early)}")
    print(f"after it:   {described(late)}")
    for name in sorted(set(found.names)):
        mine = [
            s
            for s, n, at in zip(found.seconds, found.names, found.at, strict=True)
            if n == name and at >= FIRST
        ]
        print(f"    {name:28} {described(mine)}")
    print(f"refused: {sum(found.refused.values())} {dict(found.refused) or ''}")
    print(
        f"processor time of the server: {spent.user + spent.system + children:.0f} s; memory at most {peak:.0f} MB"
    )
    print(f"machine: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"goal: none refused, 95 % within {GOAL_MS} ms after the first minute, memory below {GOAL_MB} MB")


def drawn(n: int, n_steps: int, project: str, run: str, seed: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """Questions of a page each, with their arguments: filters asked once, and pages that look at every row."""
    rng = random.Random(seed)
    place = {"project": project, "run": run}
    found: list[tuple[str, dict[str, Any]]] = []
    for _ in range(n):
        where = rng.choice(WHERE).format(
            x=round(rng.random(), 3), n=rng.randint(10, 900), step=rng.randrange(n_steps)
        )
        step = rng.randrange(n_steps)
        kind = rng.random()
        if kind < 0.55:
            found.append(("rollouts", {"project": project, "where": where, "rows": "all", "limit": 50}))
        elif kind < 0.70:
            found.append(("pages/group", {**place, "step": step, "group": 0}))
        elif kind < 0.80:
            found.append(
                ("pages/health/examples", {**place, "step": step, "what": "flags", "name": "truncated"})
            )
        else:
            found.append((rng.choice(LARGE), dict(place)))
    return found


def together(address: str, questions: list[tuple[str, dict[str, Any]]], n_readers: int) -> Answered:
    """Several readers at once, each with its share of the questions, one after another over one connection."""
    import httpx

    from tests.inspector.conftest import TOKEN

    found, lock, started = Answered(), threading.Lock(), time.perf_counter()

    def read(mine: list[tuple[str, dict[str, Any]]]) -> None:
        with httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=300) as client:
            for name, given in mine:
                begun = time.perf_counter()
                answer = client.get(f"{address}/{name}", params=given)
                with lock:
                    found.at.append(begun - started)
                    found.seconds.append(time.perf_counter() - begun)
                    found.names.append(name)
                    if answer.status_code != 200:
                        found.refused[f"{name} {answer.status_code} {said(answer.text)}"] += 1

    threads = [threading.Thread(target=read, args=(questions[at::n_readers],)) for at in range(n_readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def said(text: str) -> str:
    """The message of a refusal."""
    try:
        return str(json.loads(text)["error"]["message"])[:100]
    except (ValueError, LookupError, TypeError):
        return text[:100]


def described(seconds: list[float]) -> str:
    """Number, median, 95th percentile and worst in milliseconds."""
    if not seconds:
        return "none"
    inorder = sorted(1e3 * s for s in seconds)
    at95 = inorder[min(len(inorder) - 1, int(0.95 * len(inorder)))]
    return f"{len(inorder)} questions, median {inorder[len(inorder) // 2]:.0f}, 95 % {at95:.0f}, worst {inorder[-1]:.0f} ms"


if __name__ == "__main__":
    main()
