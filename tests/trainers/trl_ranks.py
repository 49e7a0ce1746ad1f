"""A real TRL GRPO training under two processes: every process's share reaches the one run.

Run by `make test-trainers` in TRL's environment. Starts itself under torchrun, with gloo on the CPU; prints one
line a check.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import orjson

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]
RANKS = 2
STEPS = 3
VARIANTS = {
    "trl-ranks": {"rows": 8, "group_size": 4, "cap": 64},
    "trl-ranks-one-group": {"rows": 4, "group_size": 8, "cap": 3, "selection": "portfolio"},
}
"""Groups that lie in one process, all kept; one group that lies across both, three kept.

The first is started by `rollout-traces run -m torch.distributed.run`, which hooks every process.
"""


def work(folder: Path, project: str) -> None:
    """One process: trains, and leaves what TRL itself had."""
    from trl_grpo import train

    start = time.time()
    trainer = train(project, tools=[], steps=STEPS, ddp_backend="gloo", **VARIANTS[project])
    seen = {
        "hooked": getattr(type(trainer).__init__, "_rollout_traces", False),
        "steps": trainer.seen,
        "seconds": time.time() - start,
        "world": trainer.accelerator.num_processes,
    }
    rank = trainer.accelerator.process_index
    (folder / f"{project}-{rank}.json").write_bytes(orjson.dumps(seen))


def check(project: str, folder: Path) -> None:
    """Rows, groups, rewards, advantages and steps equal those of both processes together."""
    from trl_grpo import metric_steps, stored

    from rollout_traces.trace.conversion import read_ledger, read_transcript
    from tests.trainers.areal_compare import rows_of

    ranks = [orjson.loads((folder / f"{project}-{rank}.json").read_bytes()) for rank in range(RANKS)]
    assert [rank["world"] for rank in ranks] == [RANKS] * RANKS
    assert [rank["hooked"] for rank in ranks] == [project == "trl-ranks"] * RANKS
    wanted = Counter(
        (
            step["global_step"] + 1,
            group,
            tuple(ids),
            round(step["rewards"]["correct"][row] + 0.5 * step["rewards"]["short"][row], 4),
            round(step["advantages"][row], 2),
        )
        for rank in ranks
        for step in rank["steps"]
        for row, (group, ids) in enumerate(zip(step["groups"], step["ids"], strict=True))
    )
    traces = stored(project)
    seen = Counter(
        (
            step,
            record.metadata["group"],
            tuple(read_transcript(record).tokens.input_ids.tolist()),
            round(record.metadata["reward"], 4),
            round(record.metadata["advantage"], 2),
        )
        for step, records in traces.items()
        for record in records
    )
    options = VARIANTS[project]
    rows, kept = RANKS * options["rows"], min(options["cap"], RANKS * options["rows"])
    assert not seen - wanted, seen - wanted
    assert {step: len(records) for step, records in traces.items()} == dict.fromkeys(
        range(1, STEPS + 1), kept
    )
    ledgers = {step: read_ledger(r) for step, r in rows_of(folder / "trackio", project, "rollout/steps")}
    lines = Counter(
        (step, int(group), round(float(reward), 4))
        for step, ledger in ledgers.items()
        for group, reward in zip(ledger.get("group"), ledger.get("reward"), strict=True)
    )
    assert lines == Counter(line for key, n in wanted.items() for line in [(key[0], key[1], key[3])] * n)
    assert metric_steps(project) == sorted(traces)
    print(
        f"{project}: {RANKS} processes, {STEPS} steps in {max(rank['seconds'] for rank in ranks):.1f} s; "
        f"{sum(lines.values())} of {STEPS * rows} rows in the ledgers with TRL's groups and rewards; "
        f"{sum(seen.values())} traces ({kept} a step), all equal in tokens, groups, rewards, advantages and steps"
    )


def main() -> None:
    """Starts the processes, then looks at what is stored."""
    folder = Path(tempfile.mkdtemp())
    os.environ.update(ROLLOUT_TRACES_TEST_FOLDER=str(folder), OMP_NUM_THREADS="1")
    torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={RANKS}", "--standalone"]
    script = [str(Path(__file__).resolve()), "work", str(folder)]
    hooked = [
        sys.executable,
        "-c",
        "from rollout_traces.cli import main; main()",
        "run",
        "--max-traces",
        "64",
    ]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "ROLLOUT_TRACES_SELECTION": "all"}
    subprocess.run([*hooked, *torchrun, *script, "trl-ranks"], check=True, env=environment)
    subprocess.run([sys.executable, *torchrun, *script, "trl-ranks-one-group"], check=True)
    for project in VARIANTS:
        check(project, folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(Path(sys.argv[2]), sys.argv[3])
    else:
        main()
