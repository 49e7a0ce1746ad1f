"""Files of every reader with bytes changed, read under a bound of memory: rows, or a sentence, and nothing else.

The number of changed files a reader is `ROLLOUT_TRACES_FUZZ` / 100, 12 by default.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

N = int(os.environ.get("ROLLOUT_TRACES_FUZZ", "1200")) // 100
MEMORY = 700 << 20
"""Bytes of address space that reading may take beyond what the libraries do."""
RUNNER = """
import random, resource, sys
from pathlib import Path
import numpy, pyarrow.parquet, torch
from rollout_traces.errors import RolloutTracesError
from rollout_traces.steps.preflight import load_batch
from rollout_traces.sources.base import FileReading
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.scan import scan
from rollout_traces.store.columns import SideColumns, read_side_columns

kind, path, n, more = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more,) * 2)

def look():
    problems = Problems()
    if kind == "batch":
        load_batch(path)
    elif kind == "side":
        found = read_side_columns(path.parent, SideColumns())
        found.table("key", list(found.kinds))
    else:
        for run in scan([path], problems):
            for file in run.files:
                sum(1 for _ in file.format.rows(FileReading(file, problems)))

whole, rng = path.read_bytes(), random.Random(0)
look()
for at in range(n):
    data = bytearray(whole)
    for _ in range(rng.choice((1, 4, 32))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.3:
        data = data[: rng.randrange(len(data))]
    path.write_bytes(bytes(data))
    try:
        look()
    except RolloutTracesError as error:
        assert "\\n" not in str(error), error
print("read", n)
"""


def line() -> dict:
    return {"input": "q", "output": "a", "gts": "1", "score": 1.0, "step": 1}


def trl(folder: Path) -> Path:
    path = folder / "completions" / "completions_00003.parquet"
    path.parent.mkdir()
    rows = {
        "step": [3] * 64,
        "prompt": ["p"] * 64,
        "completion": [f"c{n}" for n in range(64)],
        "reward": [1.0] * 64,
    }
    pq.write_table(pa.table(rows | {"advantage": [0.0] * 64}), path)
    return path


def own(folder: Path) -> Path:
    rows = {
        "run": ["r"] * 64,
        "run_id": ["1"] * 64,
        "split": ["rollout"] * 64,
        "step": [1] * 64,
        "id": ["a"] * 64,
    }
    pq.write_table(
        pa.table(rows | {"reward": [1.0] * 64, "uid": [str(n) for n in range(64)]}), folder / "out.parquet"
    )
    return folder / "out.parquet"


def verl(folder: Path) -> Path:
    path = folder / "1.jsonl"
    path.write_text("".join(json.dumps(line()) + "\n" for _ in range(40)))
    return path


def inspect(folder: Path) -> Path:
    path = folder / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({"eval": {"task": "t", "model": "m"}}))
        for n in range(8):
            sample = {
                "id": n,
                "epoch": 1,
                "input": "q",
                "messages": [{"role": "user", "content": "q"}],
                "scores": {},
            }
            archive.writestr(f"samples/{n}_epoch_1.json", json.dumps(sample))
    return path


def arrays(folder: Path) -> Path:
    ones = np.ones((8, 16), np.int64)
    np.savez_compressed(folder / "batch.npz", input_ids=ones, attention_mask=ones, loss_mask=ones)
    return folder / "batch.npz"


def table(folder: Path) -> Path:
    ids = [[1, 2, 3]] * 16
    pq.write_table(pa.table({"input_ids": ids, "loss_mask": ids}), folder / "batch.parquet")
    return folder / "batch.parquet"


def side(folder: Path) -> Path:
    pq.write_table(pa.table({"id": ["a", "b"], "x": [1.0, 2.0]}), folder / "x.parquet")
    return folder / "x.parquet"


READERS = {
    "trl": (trl, "rows"),
    "own-export": (own, "rows"),
    "verl": (verl, "rows"),
    "inspect": (inspect, "rows"),
    "npz": (arrays, "batch"),
    "batch-parquet": (table, "batch"),
    "side-table": (side, "side"),
}


@pytest.mark.parametrize("name", READERS)
def test_changed_bytes_are_rows_or_a_sentence(name: str, tmp_path: Path) -> None:
    write, kind = READERS[name]
    command = [sys.executable, "-c", RUNNER, kind, str(write(tmp_path)), str(N), str(MEMORY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.strip().endswith(f"read {N}"), done.stderr[-2000:]


def test_json_of_many_small_values_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_text(
        json.dumps(line()) + "\n" + '{"a":[' + "{}," * (8 << 20) + "{}]}\n" + json.dumps(line()) + "\n"
    )
    command = [sys.executable, "-c", RUNNER, "rows", str(path), "0", str(MEMORY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.strip() == "read 0", done.stderr[-2000:]
