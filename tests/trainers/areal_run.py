"""`rollout-traces run areal_script.py --config areal_grpo.yaml`, end to end, and the same without it.

Run by `make test-trainers` in an environment of AReaL's own. Prints one line a check.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

from areal_compare import compare, rows_of  # noqa: E402

from tests.generator import tiny_tokenizer  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
ANSWERS = ("It is 42.", "no idea", "forty two maybe")
"""What the stand-in engine says; the empty thinking block before it is the prompt's."""
CAP = 32
"""As in areal_grpo.yaml."""
COMMAND = [sys.executable, "-c", "from rollout_traces.cli import main; main()", "run"]


def start(*launcher: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with its YAML file, started by a launcher."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "SWANLAB_MODE": "disabled",
        "TOKENIZERS_PARALLELISM": "false",
        "TRACKIO_DIR": str(FOLDER / "trackio"),
    }
    config = ["--config", str(HERE / "areal_grpo.yaml")]
    overrides = [f"tokenizer_path={FOLDER / 'tokenizer'}", f"cluster.fileroot={FOLDER / 'areal'}"]
    return subprocess.run(
        [*launcher, str(HERE / "areal_script.py"), *config, *overrides],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def check_refused() -> None:
    """Without `rollout-traces run`, AReaL's structured config refuses the key: the test can fail."""
    plain = start(sys.executable)
    assert plain.returncode != 0
    assert "Key 'max_rollout_traces_per_step' not in 'TrackioConfig'" in plain.stderr, plain.stderr[-2000:]
    print(
        f"areal-run: without `rollout-traces run`: exit code {plain.returncode}, ConfigKeyError for the key"
    )


def check_run() -> None:
    """With it the script trains, and the database holds what it sampled."""
    began = time.time()
    done = start(*COMMAND)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "trained 3 steps with TrackioConfig" in done.stdout
    said = [line for line in done.stderr.splitlines() if "rollout-traces" in line]
    assert len(said) == 1, said
    assert said[0].startswith(
        "rollout-traces: areal: 66 rollouts of 3 training steps handed over; the hooks"
    ), said
    batches = torch.load(FOLDER / "areal" / "batches.pt")
    rows = compare(FOLDER / "trackio", "areal-run", batches)
    evaluated = rows_of(FOLDER / "trackio", "areal-run", "eval-rollout/trajectories")
    assert [step for step, _ in evaluated] == [0] * 6 + [1] * 6 + [2] * 6
    assert rows == 48 and rows // len(batches) <= CAP
    said = {
        r.messages[-1]["content"] for _, r in rows_of(FOLDER / "trackio", "areal-run", "rollout/trajectories")
    }
    assert said <= set(ANSWERS), said
    with sqlite3.connect(FOLDER / "trackio" / "areal-run.db") as db:
        runs = db.execute(
            "select distinct run_name from metrics union select run_name from traces"
        ).fetchall()
    assert runs == [("trial0",)], runs
    print(
        f"areal-run: `rollout-traces run` from a YAML file: {len(batches)} steps in {time.time() - began:.1f} s, "
        f"{rows} of {rows} rows equal, {len(evaluated)} evaluation traces, one run"
    )


def main() -> None:
    """Both checks."""
    tiny_tokenizer("qwen3").save_pretrained(FOLDER / "tokenizer")
    check_refused()
    check_run()


if __name__ == "__main__":
    main()
