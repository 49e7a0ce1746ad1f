"""How long people wait for the worker, on an idle machine and where every core is busy: `python -m benchmarks.waiting`.

Three waits, without CAP_SYS_NICE (given up where the process has it) and on two cores, idle and beside four processes
that spin, in turn:

- `finish` of a run of two rows, in a process of its own that hands them over and ends at once;
- the first step of a live run, from its hand-over until a page shows it that was opened where no project was yet,
  while nobody flushes or finishes;
- the end of a short TRL training, from its last step until `train()` returns. It runs in the environment that
  `make test-trainers` makes; where there is none, that is said.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CAP_SYS_NICE = 1 << 23
CORES, SPINNING = 2, 4
PATIENCE = 600
Beside = Callable[[], AbstractContextManager[None]]
"""Makes what runs beside a wait."""
FINISH = """
import json, sys, time
import rollout_traces as rt
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer

tokenizer = tiny_tokenizer()
batch = batch_arrays(tokenizer, BatchPlan(n_groups=1, group_size=2))
logger = rt.RolloutLogger(sys.argv[1], "run", tokenizer, max_rollout_traces_per_step=8)
logger.log_rollouts(batch, step=0)
logger.close_step(0)
handed_over = time.time()
if sys.argv[2] == "goes on":
    print(json.dumps(handed_over), flush=True)
    sys.stdin.read()
assert logger.finish(600), logger.counters
print(json.dumps(time.time() - handed_over))
"""
"""A run of two rows. `goes on`: it says when they were handed over, and trains on until its standard input ends."""
TRL = """
import json, sys, time
from tests.trainers.trl_grpo import GRPOConfig, GRPOTrainer, train

class Timed(GRPOTrainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.stepped = time.time()
        return loss

trainer = train(sys.argv[1], tools=[], steps=4, classes=(Timed, GRPOConfig))
print(json.dumps(time.time() - trainer.stepped))
"""


def main() -> None:
    """Prints the seconds of each try and what the median busy one waits longer than the median idle one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--trl", type=Path, default=ROOT / ".venv-trl" / "bin" / "python")
    asked = parser.parse_args()
    give_up_priority()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, {SPINNING} processes that spin, no CAP_SYS_NICE, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="rollout-traces-benchmark-") as folder:
        os.environ |= {"TRACKIO_DIR": folder, "TRACKIO_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
        pairs("finish on two rows", asked.pairs, 5, finish)
        with chromium() as browser:
            pairs("first step in the page", asked.pairs, None, partial(first_step, browser))
        if asked.trl.exists():
            pairs("end of a TRL training", asked.pairs, 10, partial(trl, asked.trl))
        else:
            print(
                f"the end of a TRL training: not measured, {asked.trl} is missing; `make test-trainers` makes it"
            )


def give_up_priority() -> None:
    """Starts this command anew without CAP_SYS_NICE, where it has it."""
    status = Path("/proc/self/status").read_text().splitlines()
    held = int(next(line.split()[1] for line in status if line.startswith("CapEff")), 16)
    if held & CAP_SYS_NICE:
        dropped = ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"]
        os.execvp("setpriv", [*dropped, sys.executable, "-m", "benchmarks.waiting", *sys.argv[1:]])


def pairs(what: str, n: int, goal: float | None, wait: Callable[[str, Beside], float]) -> None:
    """Waits in turn on an idle machine and on a busy one, and prints the seconds.

    Args:
        what: what is waited for.
        n: pairs.
        goal: seconds that a busy machine may add; None where the wait itself is bounded, by 10 s.
        wait: waits once, for a run of a name of its own, beside what else runs meanwhile.
    """
    idle, busy = [], []
    for number in range(n):
        idle.append(wait(f"idle-{number}", nullcontext))
        busy.append(wait(f"busy-{number}", spinning))
    longer = statistics.median(b - i for i, b in zip(idle, busy, strict=True))
    bound = "at most 10 s, busy too" if goal is None else f"at most {goal} s longer"
    print(
        f"{what}, seconds: idle {listed(idle)}; busy {listed(busy)}; longer by {longer:.1f} (goal: {bound})",
        flush=True,
    )


def listed(seconds: list[float]) -> str:
    """Seconds, as they came."""
    return ", ".join(f"{each:.1f}" for each in seconds)


@contextmanager
def spinning() -> Iterator[None]:
    """Processes that keep the cores busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(SPINNING)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def finish(name: str, beside: Beside) -> float:
    """Seconds that `finish` takes right after a hand-over."""
    with beside():
        return float(answered([sys.executable, "-c", FINISH, name, "ends"]))


def trl(python: Path, name: str, beside: Beside) -> float:
    """Seconds from the last training step until `train()` returns."""
    with beside():
        return float(answered([str(python), "-c", TRL, name]))


def answered(command: list[str]) -> str:
    """The last line that a command prints."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])
    return done.stdout.strip().splitlines()[-1]


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


def first_step(browser: Any, name: str, beside: Beside) -> float:
    """Seconds from the hand-over of a first step until a page shows it that was opened where no project was yet."""
    from tests.inspector.conftest import Served, Visit

    folder = Path(os.environ["TRACKIO_DIR"]) / name
    folder.mkdir()
    server = Served(folder)
    try:
        visit = Visit(browser, server.address)
        visit.open()
        with beside(), live_run(folder) as handed_over:
            visit.get("live").filter(has_text="1 step").wait_for(timeout=1e3 * PATIENCE)
            seconds = time.time() - handed_over
        visit.close()
    finally:
        server.stop()
    return seconds


@contextmanager
def live_run(folder: Path) -> Iterator[float]:
    """A run that trains on after its first step; gives the time at which that was handed over."""
    command = [sys.executable, "-c", FINISH, "waiting", "goes on"]
    own = {**os.environ, "TRACKIO_DIR": str(folder)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=own, stdin=pipe, stdout=pipe, text=True) as run:
        assert run.stdout is not None
        try:
            yield next(float(line) for line in run.stdout if line[0].isdigit())
        finally:
            run.communicate()


if __name__ == "__main__":
    main()
