"""Import of a large verl dump: processor time and memory, beside reading and parsing the same files alone.

    python -m benchmarks.sources --rows 100000

Rows of 2 KB of text, all kept in the ledger, one in ten as a trace; and the time to recognise a file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

ROWS_PER_STEP = 512


def write_dump(folder: Path, n_rows: int) -> int:
    """Writes verl's files; gives the bytes."""
    folder.mkdir(parents=True)
    words = [f"w{n:03d}" for n in range(400)]
    size = 0
    for step in range(-(-n_rows // ROWS_PER_STEP)):
        with (folder / f"{step + 1}.jsonl").open("w") as file:
            for n in range(min(ROWS_PER_STEP, n_rows - step * ROWS_PER_STEP)):
                text = " ".join(words[(n * 7 + step + k) % 400] for k in range(350))
                row = {
                    "input": f"user\nQuestion {n // 8} of {step}\nassistant\n",
                    "output": text,
                    "gts": "4",
                    "score": float(n % 3 == 0),
                    "step": step + 1,
                    "uid": f"{step}-{n // 8}",
                }
                size += file.write(json.dumps(row) + "\n")
    return size


def parse_alone(folder: Path) -> float:
    """Seconds of processor time to read and parse the files, and nothing else."""
    import orjson

    began = time.process_time()
    for path in folder.iterdir():
        with path.open("rb") as file:
            for line in file:
                orjson.loads(line)
    return time.process_time() - began


def used() -> tuple[float, float]:
    """Processor seconds of this process and of its children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--worker", default="thread")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["TRACKIO_DIR"] = str(Path(place) / "trackio")
        from rollout_traces.sources.importing import import_rollouts
        from rollout_traces.sources.scan import recognise

        folder = Path(place) / "run" / "rollout_data"
        size = write_dump(folder, asked.rows)
        print(f"dump: {asked.rows:,} rows, {size / 1e6:.0f} MB, {size / asked.rows:.0f} bytes a row")
        began = time.perf_counter()
        recognise(next(folder.iterdir()))
        print(
            f"recognising a file: {(time.perf_counter() - began) * 1e3:.1f} ms with the formats' modules loaded"
        )
        baseline = parse_alone(folder)
        print(f"reading the lines and parsing their JSON alone: {baseline * 1e3:.0f} ms of processor time")
        before, began = used(), time.perf_counter()
        report = import_rollouts(
            folder, "bench", max_traces_per_step=ROWS_PER_STEP // 10, selection="random", worker=asked.worker
        )
        wall, after = time.perf_counter() - began, used()
        own, worker = after[0] - before[0], after[1] - before[1]
        peak = max(
            resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        print(
            f"import: {report.rows:,} rows in {report.runs[0].steps} steps, stored: {report.runs[0].stored}"
        )
        print(
            f"  {wall:.0f} s, {own:.1f} s of processor time here ({size / own / 1e6:.1f} MB a second), {worker:.1f} s in the "
            f"worker, {(own + worker) / report.rows * 1e3:.2f} ms a row"
        )
        print(f"  largest process: {peak / 1024:.0f} MB")
        from rollout_traces import open_store

        [run] = open_store(project="bench").runs()
        print(f"  in the project: {run.n_rollouts:,} rollouts in the ledgers, {run.n_traces:,} traces")


if __name__ == "__main__":
    main()
