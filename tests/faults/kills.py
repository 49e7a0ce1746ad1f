"""kill -9 at random moments: `python -m tests.faults.kills --rounds 200`.

Each round a trainer hands over steps, some of them in two calls, and says what it handed over; the trainer,
its worker or both are killed; what is left is processed; then the store must hold every row handed over once,
no more.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_traces.spool.run_folder import run_folders
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.worker.readback import ledger_uids, scalar_steps, trace_steps, trace_uids

VICTIMS = ("trainer", "worker", "both")
STEPS = 6
CAP = 3
PLAN = BatchPlan(n_groups=2, group_size=2)
PATIENCE = 90.0
MANY = 10
"""Rounds of one victim of which at least one must meet a running process."""


@dataclass(frozen=True)
class Outcome:
    """What became of one round.

    Attributes:
        victim: who was to be killed.
        trainers: that were running and were killed, 0 or 1.
        workers: that were running and were killed, 0 or 1.
        handed_over: rows that the trainer was told were handed over.
        lost: of them, not in the store.
        doubled: rows, traces or scalars that are in the store twice.
        over_cap: traces beyond the cap of a step.
        seconds: from the first hand-over to the kill.
    """

    victim: str
    trainers: int
    workers: int
    handed_over: int
    lost: int
    doubled: int
    over_cap: int
    seconds: float

    @property
    def good(self) -> bool:
        """Nothing lost, nothing doubled, no cap exceeded."""
        return not (self.lost or self.doubled or self.over_cap)


def run_round(seed: int, victim: str, tokenizer: Any, arrays: dict[str, Any]) -> Outcome:
    """One trainer, one kill, one recovery."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="rollout-traces-kill-"))
    said = folder / "said"
    trainer = fork(folder, lambda: train(said, tokenizer, arrays, seed))
    wait_for(lambda: said.exists() and "rows" in said.read_text(), 60)
    first = time.monotonic()
    time.sleep(rng.uniform(0, 5))
    seconds = time.monotonic() - first
    workers = running_workers(said) if victim in ("worker", "both") else []
    trainers = [trainer] if victim in ("trainer", "both") and not ended(trainer) else []
    for pid in trainers + workers:
        kill(pid)
    if victim == "worker":
        wait_for(lambda: ended(trainer), PATIENCE)
    kill(trainer)
    reap(trainer)
    root = folder / "rollout-traces" / "spool"
    deadline = time.monotonic() + PATIENCE
    while run_folders(root) and time.monotonic() < deadline:
        wait_for(lambda: not any(left.is_in_use() for left in run_folders(root)), PATIENCE)
        for left in run_folders(root):
            reap(fork(folder, lambda path=left.path: recover(path)))
    outcome = judge(folder, said, victim, seconds, len(trainers), len(workers))
    if outcome.good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"kept {folder}", file=sys.stderr)
    return outcome


def train(said: Path, tokenizer: Any, arrays: dict[str, Any], seed: int) -> None:
    """The trainer: hands over, and says so only after the call has returned."""
    import rollout_traces as rt

    rng = random.Random(seed + 1)
    fd = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    logger = rt.RolloutLogger("p", "run", tokenizer, max_rollout_traces_per_step=CAP)
    ways = [arrays], [one_of_each_group(arrays, sample) for sample in range(PLAN.group_size)]
    for step in range(STEPS):
        for call in rng.choice(ways):
            handle = logger.log_rollouts(call, step=step)
            os.write(fd, f"rows {handle.batch_id} {len(call['rewards'])} {step}\n".encode())
            time.sleep(rng.uniform(0, 0.1))
        logger.log_scalars({"train/loss": step / 8}, step=step)
        os.write(fd, f"scalars {step}\n".encode())
        time.sleep(rng.uniform(0, 0.8))
        os.write(fd, f"worker {getattr(logger._pipeline._worker, 'pid', None)}\n".encode())
        if step == 3 and rng.random() < 0.5:
            logger.flush(20)
    logger.finish(PATIENCE)


def one_of_each_group(arrays: dict[str, Any], sample: int) -> dict[str, Any]:
    """The rows of one sample of every group: a step in several calls, every group torn over them."""

    def rows(track: Any) -> Any:
        if isinstance(track, dict):
            return {name: rows(value) for name, value in track.items()}
        return track if isinstance(track, int) else track[sample :: PLAN.group_size]

    return {key: rows(track) for key, track in arrays.items()}


def recover(path: Path) -> None:
    """What `rollout-traces recover` does for one folder; a worker that was still starting may take it first."""
    from rollout_traces.worker.main import main

    main([str(path)])


def judge(
    folder: Path, said: Path, victim: str, seconds: float, trainers: int = 0, workers: int = 0
) -> Outcome:
    """Compares what was said to be handed over with what is stored."""
    lines = [line.split() for line in said.read_text().splitlines()]
    said_rows = {
        f"{line[1]}-{row}": int(line[3]) for line in lines if line[0] == "rows" for row in range(int(line[2]))
    }
    steps = {int(line[1]) for line in lines if line[0] == "scalars"}
    in_ledger, traces, scalars = ledger_uids(folder), trace_uids(folder), scalar_steps(folder, "train/loss")
    lost = len(set(said_rows) - set(in_ledger)) + len(steps - set(scalars))
    doubled = sum(n - 1 for counts in (in_ledger, traces, scalars) for n in counts.values())
    per_step = trace_steps(folder)
    missing = sum(max(min(CAP, n) - per_step[step], 0) for step, n in Counter(said_rows.values()).items())
    over_cap = sum(max(n - CAP, 0) for n in per_step.values())
    rows = len(said_rows)
    return Outcome(victim, trainers, workers, rows, lost + missing, doubled, over_cap, seconds)


def fork(folder: Path, work: Callable[[], None]) -> int:
    """Runs work in a child whose Trackio writes to a folder; gives its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.environ["TRACKIO_DIR"] = str(folder)
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    import trackio.sqlite_storage
    import trackio.utils

    for module in (trackio.utils, trackio.sqlite_storage):
        module.TRACKIO_DIR = folder
    try:
        work()
    except BaseException as error:  # noqa: BLE001  a child must not go on as its parent
        os.write(output, repr(error).encode())
        os._exit(1)
    os._exit(0)


def running_workers(said: Path) -> list[int]:
    """The worker that the trainer named last, if it is running."""
    named = [line.split()[1] for line in said.read_text().splitlines() if line.startswith("worker ")]
    return [int(pid) for pid in named[-1:] if pid != "None" and is_a_worker(int(pid))]


def is_a_worker(pid: int) -> bool:
    """True when a process runs and is a worker: its id may have gone to another since."""
    try:
        return b"rollout_traces" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def kill(pid: int) -> None:
    """kill -9, of what may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def ended(pid: int) -> bool:
    """True when a child of ours has ended; it is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(pid: int) -> None:
    """Waits for a child."""
    os.waitpid(pid, 0)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def main() -> int:
    """Runs the rounds and prints what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victim", choices=VICTIMS)
    options = parser.parse_args()

    tokenizer = tiny_tokenizer()
    arrays = batch_arrays(tokenizer, PLAN)
    outcomes = []
    for round_ in range(options.rounds):
        victim = options.victim or VICTIMS[round_ % len(VICTIMS)]
        outcome = run_round(options.seed + round_, victim, tokenizer, arrays)
        outcomes.append(outcome)
        print(round_, outcome, "" if outcome.good else "BAD", flush=True)
    for victim in VICTIMS:
        mine = [outcome for outcome in outcomes if outcome.victim == victim]
        print(
            f"{victim}: {len(mine)} rounds, {sum(o.trainers for o in mine)} trainers and "
            f"{sum(o.workers for o in mine)} workers killed, {sum(o.over_cap for o in mine)} traces beyond the cap; "
            f"{sum(o.handed_over for o in mine)} {sum(o.lost for o in mine)} {sum(o.doubled for o in mine)}"
        )
    return 0 if not never_hit(outcomes) and all(outcome.good for outcome in outcomes) else 1


def never_hit(outcomes: list[Outcome]) -> set[str]:
    """Victims of many rounds of whom no process was running when it was to be killed: they show nothing."""
    rounds = Counter(outcome.victim for outcome in outcomes)
    hit = {o.victim for o in outcomes if (o.trainers if o.victim == "trainer" else o.workers)}
    return {victim for victim, n in rounds.items() if n >= MANY} - hit


if __name__ == "__main__":
    sys.exit(main())
