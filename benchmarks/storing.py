"""What storing a dump's rollouts takes beside Trackio alone: `python -m benchmarks.storing --rows 16000 --pairs 5`.

Each figure is the processor time of all threads and children of a process of its own, from when its modules are loaded
until the run is finished; an import and Trackio alternate, and the ratio of each pair is printed. The kernel's part is
told apart: Trackio writes a file a trace, and on a busy machine the same files take the kernel one second or four, so that
a pair's ratio says little where its two parts of it differ. Trackio alone logs the
very traces that an import stored, messages, metadata and spans, ready made in memory. There is no faster public way to
store many traces than `trackio.log` of a list: a list a step is the baseline. One trace a call, as a loop would write it,
is measured beside it. Of an import, reading and parsing the dump are taken off: they are measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from benchmarks.sources import write_dump

PROJECT, RUN = "bench", "run"
GOAL = 1.5
Spent = tuple[float, float]
"""Processor seconds of the program, and of the kernel for it."""
Trace = tuple[int, str, list[Any], dict[str, Any], list[Any]]
"""Step, key, messages, metadata and spans."""


def used() -> Spent:
    """What this process, and its children that have ended, took."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime for each in both), sum(each.ru_stime for each in both)


def since(before: Spent) -> Spent:
    """What was used since."""
    now = used()
    return now[0] - before[0], now[1] - before[1]


def import_dump(folder: Path) -> Spent:
    """What it takes to import the dump, every rollout as a trace."""
    import trackio  # noqa: F401  loaded for Trackio alone too

    from rollout_traces.sources.importing import import_rollouts

    before = used()
    report = import_rollouts(folder / "dump", PROJECT, name=RUN)
    assert report.rows and report.runs[0].stored
    return since(before)


def read_dump(folder: Path) -> Spent:
    """What it takes to read and parse the dump into rollouts."""
    from rollout_traces.sources.base import FileReading
    from rollout_traces.sources.problems import Problems
    from rollout_traces.sources.scan import scan

    before, problems = used(), Problems()
    for run in scan([folder / "dump"], problems):
        for file in run.files:
            for _ in file.format.rows(FileReading(file, problems)):
                pass
    return since(before)


def log_lists(folder: Path) -> Spent:
    """What Trackio alone takes for the same traces, a list a step."""
    return log_alone(folder, one_by_one=False)


def log_one_by_one(folder: Path) -> Spent:
    """What Trackio alone takes for the same traces, one a call."""
    return log_alone(folder, one_by_one=True)


def log_alone(folder: Path, *, one_by_one: bool) -> Spent:
    """Logs the traces that an import stored, and checks that all of them are stored again."""
    import trackio

    traces: list[Trace] = orjson.loads((folder / "traces.json").read_bytes())
    before = used()
    trackio.init(project=PROJECT, name=RUN, embed=False, auto_log_gpu=False, auto_log_cpu=False)
    for (step, key), group in groupby(traces, key=lambda trace: (trace[0], trace[1])):
        made = [trackio.Trace(messages=m, metadata=d, spans=s) for _, _, m, d, s in group]
        for logged in made if one_by_one else [made]:
            trackio.log({key: logged}, step=step)
    trackio.finish()
    spent = since(before)
    assert len(stored_traces()) == len(traces)
    return spent


def stored_traces() -> list[Trace]:
    """What Trackio's folder holds."""
    [database] = Path(os.environ["TRACKIO_DIR"]).glob("*.db")
    columns = "step, key, messages, metadata, spans"
    with sqlite3.connect(database) as store:
        rows = store.execute(f"SELECT {columns} FROM traces ORDER BY step, key, trace_index").fetchall()
    return [(step, key, *map(orjson.loads, packed)) for step, key, *packed in rows]


def prepare(folder: Path) -> Spent:
    """Imports once and keeps what was stored, for Trackio alone to log again."""
    import_dump(folder)
    (folder / "traces.json").write_bytes(orjson.dumps(stored_traces()))
    return 0.0, 0.0


PARTS = {part.__name__: part for part in (prepare, import_dump, read_dump, log_lists, log_one_by_one)}


def in_process(part: str, folder: Path) -> Spent:
    """Runs a part in an interpreter and a Trackio home of its own."""
    with tempfile.TemporaryDirectory(prefix="rollout-traces-benchmark-") as home:
        own = {**os.environ, "TRACKIO_DIR": home, "TRACKIO_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "benchmarks.storing", "--part", part, "--folder", str(folder)]
        done = subprocess.run(command, env=own, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])
        user, system = json.loads(done.stdout.splitlines()[-1])
        return user, system


def main() -> None:
    """Prints the seconds of each pair and the median of their ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        print(json.dumps(PARTS[asked.part](asked.folder)))
        return
    with tempfile.TemporaryDirectory(prefix="rollout-traces-benchmark-") as place:
        folder = Path(place)
        size = write_dump(folder / "dump", asked.rows)
        in_process("prepare", folder)
        print(f"{asked.rows:,} rollouts, {size / 1e6:.1f} MB; load {os.getloadavg()[0]:.1f}", flush=True)
        ratios: list[Spent] = []
        for number in range(asked.pairs):
            order = ["import_dump", "log_lists"] if number % 2 else ["log_lists", "import_dump"]
            took = {part: in_process(part, folder) for part in [*order, "read_dump", "log_one_by_one"]}
            own = [a - b for a, b in zip(took["import_dump"], took["read_dump"], strict=True)]
            ratios.append((own[0] / took["log_lists"][0], sum(own) / sum(took["log_lists"])))
            said = {part: f"{user:.2f} + {system:.2f}" for part, (user, system) in took.items()}
            print(
                f"seconds of the program + the kernel: import {said['import_dump']}, of which reading and parsing "
                f"{said['read_dump']}; Trackio alone: a list a step {said['log_lists']}, one a call {said['log_one_by_one']}; "
                f"storing / a list a step {ratios[-1][1]:.2f}, of the program alone {ratios[-1][0]:.2f}",
                flush=True,
            )
    program, both = (statistics.median(each) for each in zip(*ratios, strict=True))
    print(
        f"storing takes {both:.2f} of Trackio alone, the program's part {program:.2f}, medians (goal: {GOAL})"
    )


if __name__ == "__main__":
    main()
