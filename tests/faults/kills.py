"""kill -9 at random moments: `python -m tests.faults.kills --rounds 200`.

Each round a trainer hands over steps and says what it handed over; the trainer, its worker or both are
killed; what is left is processed; then the store must hold every row handed over once, no more.
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
from tests.worker.readback import ledger_uids, scalar_steps, trace_uids

VICTIMS = ("trainer", "sidecar", "both")
STEPS = 6
CAP = 3
PLAN = BatchPlan(n_groups=2, group_size=2)
PATIENCE = 90.0


@dataclass(frozen=True)
class Outcome:
    """What became of one round.

    Attributes:
        victim: who was killed.
        handed_over: rows that the trainer was told were handed over.
        lost: of them, not in the store.
        doubled: rows, traces or scalars that are in the store twice.
        over_cap: traces beyond the cap of a step.
        seconds: from the first hand-over to the kill.
    """

    victim: str
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
    time.sleep(rng.uniform(0, 8))
    seconds = time.monotonic() - first
    if victim in ("trainer", "both"):
        kill(trainer)
    if victim in ("sidecar", "both"):
        for pid in workers_of(said):
            kill(pid)
    if victim == "sidecar":
        wait_for(lambda: ended(trainer), PATIENCE)
    kill(trainer)
    reap(trainer)
    root = folder / "rollout-traces" / "spool"
    deadline = time.monotonic() + PATIENCE
    while run_folders(root) and time.monotonic() < deadline:
        wait_for(lambda: not any(left.is_in_use() for left in run_folders(root)), PATIENCE)
        for left in run_folders(root):
            reap(fork(folder, lambda path=left.path: recover(path)))
    outcome = judge(folder, said, victim, seconds)
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
    for step in range(STEPS):
        handle = logger.log_rollouts(arrays, step=step)
        os.write(fd, f"rows {handle.batch_id} {len(arrays['rewards'])}\n".encode())
        logger.log_scalars({"train/loss": step / 8}, step=step)
        os.write(fd, f"scalars {step}\n".encode())
        time.sleep(rng.uniform(0, 0.8))
        os.write(fd, f"worker {getattr(logger._pipeline._worker, 'pid', None)}\n".encode())
        if step == 3 and rng.random() < 0.5:
            logger.flush(20)
    logger.finish(PATIENCE)


def recover(path: Path) -> None:
    """What `rollout-traces recover` does for one folder; a worker that was still starting may take it first."""
    from rollout_traces.worker.main import main

    main([str(path)])


def judge(folder: Path, said: Path, victim: str, seconds: float) -> Outcome:
    """Compares what was said to be handed over with what is stored."""
    lines = [line.split() for line in said.read_text().splitlines()]
    rows = {f"{line[1]}-{row}" for line in lines if line[0] == "rows" for row in range(int(line[2]))}
    steps = {int(line[1]) for line in lines if line[0] == "scalars"}
    in_ledger, traces, scalars = ledger_uids(folder), trace_uids(folder), scalar_steps(folder, "train/loss")
    lost = len(rows - set(in_ledger)) + len(steps - set(scalars))
    doubled = sum(n - 1 for counts in (in_ledger, traces, scalars) for n in counts.values())
    per_batch = Counter(uid.split("-")[0] for uid in traces)
    batches = {uid.split("-")[0] for uid in rows}
    missing = sum(max(CAP - per_batch[batch], 0) for batch in batches)
    over_cap = sum(max(n - CAP, 0) for n in per_batch.values())
    return Outcome(victim, len(rows), lost + missing, doubled, over_cap, seconds)


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


def workers_of(said: Path) -> list[int]:
    """Process ids that the trainer said its worker had, the last one."""
    pids = [line.split()[1] for line in said.read_text().splitlines() if line.startswith("sidecar")]
    return [int(pid) for pid in pids[-1:] if pid != "None"]


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
            f"{victim}: {len(mine)} kills, {sum(o.handed_over for o in mine)} rows handed over, "
            f"{sum(o.lost for o in mine)} lost, {sum(o.doubled for o in mine)} doubled, "
            f"{sum(o.over_cap for o in mine)} beyond the cap"
        )
    return 0 if all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
