"""What saying and showing rollouts in flight costs: `python -m benchmarks.live`.

4,096 rollouts in flight and ten updates a second in all: microseconds of a call, the share of a core of the process that
says them, and milliseconds of a refresh of the page. Baselines in the same run: the same updates as plain JSON lines,
each appended by the calling thread, and a loop that says nothing; an answer without content, over the same way.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from benchmarks.spent import spent
from rollout_traces.errors import Warnings
from rollout_traces.logger.live import LiveRollout, LiveWriter
from rollout_traces.model.live_lines import LIVE_FOLDER, LivePlace

IN_FLIGHT = 4096
A_SECOND = 10
WORDS = (
    "I look at the page, which says that the kettle is out of stock, and go back to the list of results. " * 2
)
PROJECT = "bench"
TASKS = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration", "TaskDuration")
Say = Callable[[int, int], Any]
"""Says that a rollout has sampled so many tokens."""


def main() -> None:
    """Prints the figures, each beside its baseline."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of updates, for each way to say them")
    parser.add_argument("--no-browser", action="store_true", help="leave the page in a browser out")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollout-traces-benchmark-") as folder:
        os.environ |= {"TRACKIO_DIR": folder, "TRACKIO_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
        home = Path(folder)
        make_project()
        writer, rollouts = in_flight(home)
        plain = (home / "plain.jsonl").open("ab", buffering=0)
        ways: dict[str, Say] = {
            "stage": lambda at, n: rollouts[at].stage("sampling", turns=2, tokens=n, words=WORDS),
            "plain JSON line": lambda at, n: plain.write(
                orjson.dumps({"id": at, "stage": "sampling", "turns": 2, "tokens": n, "words": WORDS}) + b"\n"
            ),
            "nothing": lambda at, n: None,
        }
        print(f"load {os.getloadavg()[0]:.1f}")
        for name, say in ways.items():
            print(f"a call, {name}: {call(say):.1f} us of the calling thread (goal of stage: at most 50)")
        time.sleep(1)
        for name, say in ways.items():
            share = of_a_core(say, asked.seconds)
            print(f"{A_SECOND} updates a second, {name}: {share:.2%} of a core (goal of stage: below 1 %)")
        refresh(home)
        if not asked.no_browser:
            in_a_browser(home, ways["stage"])
        writer.close()
        size = sum(path.stat().st_size for path in (home / LIVE_FOLDER).rglob("*.jsonl"))
        print(f"on disk: {size / 1e6:.2f} MB (bound: 10 MB)")


def make_project() -> None:
    """A project whose run has begun."""
    import rollout_traces as rt

    logger = rt.RolloutLogger(project=PROJECT, name="run")
    logger.log_scalars({"x": 1.0}, step=1)
    logger.finish()


def in_flight(home: Path) -> tuple[LiveWriter, list[LiveRollout]]:
    """A writer with `IN_FLIGHT` rollouts, all written."""
    place = LivePlace(home / LIVE_FOLDER / PROJECT / "run", home / LIVE_FOLDER, PROJECT, "run", "run")
    writer = LiveWriter(place, "node", Warnings(Counter()))
    rollouts = []
    for at in range(IN_FLIGHT):
        rollouts.append(writer.begin({"prompt": f"{at}: {WORDS}", "step": 1, "split": "rollout"}))
        rollouts[-1].stage("sampling", turns=1, tokens=1, words=WORDS)
    time.sleep(3)
    return writer, rollouts


def call(say: Say, n: int = 5000) -> float:
    """Microseconds of the calling thread for one call, the median of ten series."""
    series = []
    for _ in range(10):
        began = time.thread_time()
        for at in range(n // 10):
            say(at % IN_FLIGHT, at)
        series.append((time.thread_time() - began) / (n // 10) * 1e6)
        time.sleep(0.3)
    return statistics.median(series)


def of_a_core(say: Say, seconds: float) -> float:
    """Processor time of this process, all threads, while it says `A_SECOND` updates, as a share of a core."""
    began, spent_before = time.monotonic(), time.process_time()
    for n in itertools.count():
        say(n * 7 % IN_FLIGHT, n)
        left = began + (n + 1) / A_SECOND - time.monotonic()
        if left > 0:
            time.sleep(left)
        if time.monotonic() - began >= seconds:
            break
    return (time.process_time() - spent_before) / (time.monotonic() - began)


def refresh(home: Path) -> None:
    """Prints milliseconds of an answer of the page over HTTP, the first one and later ones, beside an empty one."""
    from starlette.testclient import TestClient

    from rollout_traces.inspector.guard import ServerOptions
    from rollout_traces.inspector.server import build_server
    from rollout_traces.inspector.workspace import Workspace

    token = "t" * 24
    server = build_server(Workspace(folder=home), ServerOptions(token=token, mount_trackio=False))
    client = TestClient(
        server, base_url="http://127.0.0.1:7861", headers={"Authorization": f"Bearer {token}"}
    )
    asked = {"project": PROJECT, "run": "run"}
    first = spent(lambda: client.get("/api/v1/live", params=asked), lambda: None, 1)
    found = client.get("/api/v1/live", params=asked)
    assert found.json()["n_running"] == IN_FLIGHT, found.text[:500]
    later = spent(lambda: client.get("/api/v1/live", params=asked), lambda: time.sleep(0.3), 20)
    empty = spent(
        lambda: client.get("/api/v1/live", params={**asked, "run": "none"}), lambda: time.sleep(0.3), 20
    )
    print(f"the first answer: {first} ms; {len(found.content) / 1e3:.0f} kB")
    print(f"a refresh: {later} ms (goal: below 50); an answer without content: {empty} ms")


def in_a_browser(home: Path, say: Say) -> None:
    """Prints what the page takes of the browser's main thread while it asks once a second, beside another page of the run."""
    from playwright.sync_api import sync_playwright

    from tests.inspector.conftest import Served, Visit

    server = Served(home, "--project", PROJECT)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        visit = Visit(browser, server.address)
        for page in ("live", "run"):
            visit.open(tab=page, project=PROJECT, run="run")
            time.sleep(5)
            session = visit.context.new_cdp_session(visit.page)  # type: ignore[attr-defined]
            session.send("Performance.enable")
            visit.page.evaluate("performance.clearResourceTimings()")
            before = _seconds(session)
            of_a_core(say, 20)
            after = _seconds(session)
            took = {name: f"{(after[name] - before[name]) * 1000 / 20:.1f}" for name in TASKS}
            answers = visit.page.evaluate(
                "performance.getEntriesByType('resource').map(each => each.duration)"
            )
            print(
                f"the page {page} in a browser, ms of the main thread a second: {took}; "
                f"{statistics.median(answers):.0f} ms from question to answer (median of {len(answers)})"
            )
        visit.close()
    server.stop()


def _seconds(session: Any) -> dict[str, float]:
    found = session.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in found if each["name"] in TASKS}


if __name__ == "__main__":
    main()
