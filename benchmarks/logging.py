"""What logging costs a training step, beside a plain baseline in the same run: `python -m benchmarks.logging`.

The baseline copies every tensor, decodes each span of 32 rows and calls `trackio.log` inside the step, on the
calling thread. Ours hands the whole population over. Steps are half a second apart, so that caches are cold.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil

GROUPS, GROUP_SIZE, MEAN_TOKENS = 25, 8, 4030
CAP = 32
APART = 0.5
VERSION = 1207
"""The weights version of the hand-over's tokens: larger than a byte holds, as in a run of some length."""
SMALL = ("input_ids", "attention_mask", "loss_mask", "logprobs", "versions")


def main() -> None:
    """Prints every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="steps of the hand-over benchmark")
    parser.add_argument("--burst", type=int, default=300, help="steps of 256 traces each, back to back")
    parser.add_argument("--small", type=int, default=10_000, help="records of the small-records benchmark")
    parser.add_argument(
        "--wide", default="4096x8192", help="rollouts x tokens of the batch that is too large"
    )
    options = parser.parse_args()
    # an installed package is compiled once, not by each worker
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="rollout-traces-benchmark-") as folder:
        os.environ |= {"TRACKIO_DIR": folder, "TRACKIO_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
        hand_over(options.steps)
        overload(options.wide, options.steps)
        prompts_alone(*map(int, options.wide.split("x")), options.steps)
        stalls()
        small_records(options.small)
        burst(options.burst, Path(folder))
        ledger_size()


def hand_over(n_steps: int) -> None:
    """Milliseconds on the calling thread."""
    tokenizer, steps = tokenizer_and_steps(4)
    n_tokens = sum(int(part["attention_mask"].sum()) for part in steps[0])
    print(f"hand-over: {GROUPS * GROUP_SIZE} rollouts, {n_tokens} tokens, CPU tensors, {n_steps} steps")
    baseline = Baseline(tokenizer)
    logger = make_logger(tokenizer, "hand-over")
    logger.log_rollouts(steps[0], step=0)
    logger.flush(120)
    ours: list[Cost] = []
    plain: list[Cost] = []
    for step in range(1, n_steps + 1):
        parts = steps[step % len(steps)]
        time.sleep(APART)
        ours.append(timed(lambda parts=parts, step=step: logger.log_rollouts(parts, step=step)))
        time.sleep(APART)
        plain.append(timed(lambda parts=parts, step=step: baseline.log(parts, step)))
    print(f"  ours      {described(ours)}   the whole population")
    print(f"  baseline  {described(plain)}   {CAP} rows of it")
    ratio = median([cost.wall for cost in plain]) / median([cost.wall for cost in ours])
    print(f"  ratio     {ratio:.1f} times less")
    print(f"  all stored: {logger.finish(120)}")
    baseline.finish()


def overload(shape: str, n_steps: int) -> None:
    """Milliseconds on the calling thread where there is no room, or nobody to make any."""
    B, T = map(int, shape.split("x"))
    _, steps = tokenizer_and_steps(1)
    full = {"max_spool_bytes": 1 << 20}
    for batch, what in ((wide_batch(B, T), f"{B} rollouts of up to {T} tokens"), (steps[0], "as above")):
        print(f"overload: {what}, CPU tensors, {n_steps} steps a line")
        usual = overloaded(batch, "all tokens taken", n_steps, {"max_bytes_per_step": 4 << 30})
        print(f"  all tokens taken  {described(usual)}")
        for label, options in (("default budget", {}), ("full spool", full), ("frozen worker", {})):
            costs = overloaded(batch, label, n_steps, options)
            ratio = median([cost.processor for cost in costs]) / median([cost.processor for cost in usual])
            print(f"  {label:<16}  {described(costs)}   {ratio:.2f} of it")


def prompts_alone(B: int, T: int, n_steps: int) -> None:
    """The worst batch for what is hashed of tokens that are left out: all different, and nothing sampled."""
    import torch

    generator = torch.Generator().manual_seed(0)
    batch = {
        "input_ids": torch.randint(0, 30_000, (B, T), generator=generator),
        "attention_mask": torch.ones(B, T, dtype=torch.bool),
        "loss_mask": torch.zeros(B, T, dtype=torch.bool),
    }
    print(f"overload: {B} different prompts of {T} tokens, nothing sampled, {n_steps} steps a line")
    usual = overloaded(batch, "all tokens taken", n_steps, {"max_bytes_per_step": 4 << 30})
    print(f"  all tokens taken  {described(usual)}")
    for label, options in (("default budget", {}), ("full spool", {"max_spool_bytes": 1 << 20})):
        costs = overloaded(batch, label, n_steps, options)
        ratio = median([cost.processor for cost in costs]) / median([cost.processor for cost in usual])
        print(f"  {label:<16}  {described(costs)}   {ratio:.2f} of it")


def overloaded(batch: Any, label: str, n_steps: int, options: dict[str, Any]) -> list[Cost]:
    """What hand-overs cost, after a first one; what waits of them is thrown away with its worker."""
    logger = make_logger(None, f"overload-{time.monotonic_ns()}", **options)
    logger.log_rollouts(batch, step=0)
    logger.flush(300)
    if label == "frozen worker":
        signal_workers(signal.SIGSTOP)
    costs = []
    for step in range(1, n_steps + 1):
        time.sleep(APART)
        costs.append(timed(lambda step=step: logger.log_rollouts(batch, step=step)))
    logger.finish(0.1)
    signal_workers(signal.SIGKILL)
    return costs


def signal_workers(what: signal.Signals) -> None:
    """Sends a signal to the workers of this process's loggers."""
    for child in psutil.Process().children():
        child.send_signal(what)


def wide_batch(B: int, T: int) -> dict[str, Any]:
    """Rollouts of half to all of T tokens, a quarter of it the prompt, in groups of eight; random ids."""
    import torch

    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(T // 2, T + 1, (B, 1), generator=generator)
    real = torch.arange(T)[None] < lengths
    sampled = real & (torch.arange(T)[None] >= T // 4)
    return {
        "input_ids": torch.randint(0, 30_000, (B, T), generator=generator),
        "attention_mask": real,
        "loss_mask": sampled,
        "logprobs": -torch.rand(B, T, generator=generator),
        "versions": torch.where(sampled, 7, -1),
        "rewards": torch.rand(B, generator=generator),
        "group_ids": torch.arange(B) // 8,
    }


def stalls() -> None:
    """The longest that a busy Python thread had to wait while the worker worked."""
    tokenizer, steps = tokenizer_and_steps(2)
    print(f"longest stall of a busy main thread while {CAP} traces a step are made, 6 steps")
    quiet = longest_stall(lambda: time.sleep(4))
    print(f"  nothing else     {quiet:6.1f} ms")
    for worker in ("process", "thread"):
        logger = make_logger(tokenizer, f"stall-{worker}", worker=worker)
        logger.log_rollouts(steps[0], step=0)
        logger.flush(120)

        def work(logger: Any = logger) -> None:
            for step in range(1, 7):
                logger.log_rollouts(steps[step % len(steps)], step=step)
                time.sleep(0.3)
            logger.flush(120)

        print(f"  worker={worker:<9}  {longest_stall(work):6.1f} ms")
        logger.finish(120)


def small_records(n_records: int) -> None:
    """Records a second that are stored, beside `trackio.log` of the same numbers.

    A record is one entry of the spool: a call of `log_scalars`, of `log_rollouts`, of `join` or of `close_step`.
    Stored means seen in Trackio's database. The worker goes through the records in one process.
    """
    import trackio

    values = {f"train/number_{index}": 0.5 for index in range(8)}
    print(
        "small records, a second until the end of finish(): a record is one call that is logged. "
        "In brackets with the start of the worker's process"
    )
    run = trackio.init(project="baseline-small", name="run", embed=False)
    started = time.monotonic()
    for step in range(n_records):
        run.log(values, step=step)
    run.finish()
    rate = n_records / (time.monotonic() - started)
    print(f"  trackio.log of {len(values)} numbers (the baseline)            {rate:6.0f}")
    batch = {key: value[:1, :64] for key, value in wide_batch(8, 64).items() if key in SMALL}

    def scalars(logger: Any, step: int) -> None:
        logger.log_scalars(values, step=step)

    def rollout(logger: Any, step: int) -> None:
        logger.log_rollouts(batch, step=step)

    def part(logger: Any, step: int) -> None:
        logger.log_rollouts(batch, step=step // 16)

    def closed(logger: Any, step: int) -> None:
        logger.log_rollouts(batch, step=step)
        logger.close_step(step)

    def joined(logger: Any, step: int) -> None:
        logger.log_rollouts(batch, step=step, await_join=["advantages"]).join(advantages=[0.5])
        logger.close_step(step)

    rated("log_scalars of 8 numbers", scalars, n_records, 1)
    rated("steps of one rollout", rollout, n_records // 2, 1)
    rated("steps of 16 calls of one rollout", part, n_records // 2, 1)
    rated("steps of one rollout and a close", closed, n_records // 2, 2)
    rated("steps of one rollout, a join and a close", joined, n_records // 2, 3)


def rated(what: str, call: Callable[[Any, int], None], n_calls: int, n_records: int) -> None:
    """Prints how many records a second are stored, and what each costs the calling thread and the worker."""
    logger = make_logger(None, f"small-{what[:20].replace(' ', '-')}", announces_closes=n_records > 1)
    beginning, used = time.monotonic(), children_seconds()
    call(logger, 0)
    logger.flush(60)
    started = time.monotonic()
    for step in range(1, n_calls):
        call(logger, step)
    called = time.monotonic()
    done = logger.finish(600)
    ended = time.monotonic()
    n = (n_calls - 1) * n_records
    rate, with_start = n / (ended - started), (n + n_records) / (ended - beginning)
    a_call = 1e6 * (called - started) / (n_calls - 1)
    used = 1e3 * (children_seconds() - used) / (n_calls * n_records)
    print(
        f"  {what:<42} {rate:6.0f} ({with_start:4.0f})   {a_call:5.0f} us a call"
        f"   {used:5.2f} ms of the worker's processor each   all stored: {done}"
    )


def children_seconds() -> float:
    """Processor seconds of the child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def burst(n_steps: int, folder: Path) -> None:
    """Steps back to back, then `finish`."""
    from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    arrays = batch_arrays(tokenizer, BatchPlan(n_groups=32, group_size=8))
    print(f"burst: {n_steps} steps of 256 rollouts, all traced, back to back, then finish()")
    logger = make_logger(tokenizer, "burst", selection="all")
    memory = PeakMemory()
    started = time.monotonic()
    for step in range(n_steps):
        logger.log_rollouts(arrays, step=step)
    handed_over = time.monotonic() - started
    done = logger.finish(600)
    seconds = time.monotonic() - started
    stored = count_traces(folder, "burst")
    peak_trainer, peak_worker = memory.stop()
    print(f"  handed over in {handed_over:.1f} s, finish() said {done} after {seconds:.0f} s")
    print(f"  stored {stored} of {n_steps * 256} traces, {stored / seconds:.0f} a second")
    print(f"  peak memory: trainer {peak_trainer:.0f} MB, worker {peak_worker:.0f} MB")


def ledger_size() -> None:
    """Bytes of a packed ledger."""
    from rollout_traces.capture.host_copy import capture
    from rollout_traces.ledger.build import build_ledger
    from rollout_traces.ledger.columns import pack
    from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer

    batch = rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=64, group_size=8))
    ledger = build_ledger(capture([batch], step=1, split="rollout"))
    print(f"ledger: {len(pack(ledger)) / 1e3:.1f} KB for 512 rows of {len(ledger.columns)} columns")


class Baseline:
    """What one would write first."""

    def __init__(self, tokenizer: Any) -> None:
        import contextvars

        import trackio

        self._tokenizer = tokenizer
        self._context = contextvars.Context()
        self._run = self._context.run(lambda: trackio.init(project="baseline", name="run", embed=False))

    def log(self, parts: list[dict[str, Any]], step: int) -> None:
        """Copies, decodes and logs."""
        import trackio

        copies = [{key: value.detach().cpu().clone() for key, value in part.items()} for part in parts]
        traces = []
        for part in copies:
            for row in range(len(part["input_ids"])):
                if len(traces) < CAP:
                    messages = self._messages(part, row)
                    metadata = {"reward": float(part["rewards"][row]), "step": step}
                    traces.append(trackio.Trace(messages=messages, metadata=metadata))
        self._run.log({"rollout/trajectories": traces}, step=step)

    def _messages(self, part: dict[str, Any], row: int) -> list[dict[str, str]]:
        real = part["attention_mask"][row].bool()
        ids, sampled = part["input_ids"][row][real].tolist(), part["loss_mask"][row][real].tolist()
        edges = [0, *(i for i in range(1, len(ids)) if sampled[i] != sampled[i - 1]), len(ids)]
        return [
            {"role": "assistant" if sampled[a] else "user", "content": self._tokenizer.decode(ids[a:b])}
            for a, b in itertools.pairwise(edges)
            if b > a
        ]

    def finish(self) -> None:
        """Ends its run."""
        self._run.finish()


class PeakMemory:
    """Peak resident memory of this process and of its worker processes, watched from a thread."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._peaks = [0, 0]
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> tuple[float, float]:
        """Megabytes of this process, and of its largest child."""
        self._stopped.set()
        self._thread.join()
        return self._peaks[0] / 2**20, self._peaks[1] / 2**20

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stopped.wait(0.2):
            self._peaks[0] = max(self._peaks[0], me.memory_info().rss)
            for child in me.children():
                try:
                    self._peaks[1] = max(self._peaks[1], child.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue


def tokenizer_and_steps(n_steps: int) -> tuple[Any, list[list[dict[str, Any]]]]:
    """Steps in AReaL's shape: a list of groups, right-padded, int64 and float32."""
    import torch

    from tests.generator import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    rows = long_rows(tokenizer, 64)
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(n_steps):
        parts = []
        for _ in range(GROUPS):
            picked = [rows[int(rng.integers(len(rows)))] for _ in range(GROUP_SIZE)]
            made = [(row.input_ids, row.sampled) for row in picked]
            T = max(len(ids) for ids, _ in made)
            part = {
                key: torch.zeros(GROUP_SIZE, T, dtype=torch.int64)
                for key in ("input_ids", "loss_mask", "versions", "turn_ids")
            }
            part["logprobs"] = torch.zeros(GROUP_SIZE, T)
            part["attention_mask"] = torch.zeros(GROUP_SIZE, T, dtype=torch.bool)
            for b, (ids, sampled) in enumerate(made):
                n = len(ids)
                part["input_ids"][b, :n] = torch.from_numpy(ids)
                part["loss_mask"][b, :n] = torch.from_numpy(sampled.astype(np.int64))
                part["versions"][b, :n] = torch.from_numpy(np.where(sampled, VERSION, -1))
                part["turn_ids"][b, :n] = torch.from_numpy(np.where(sampled, 0, -1))
                part["logprobs"][b, :n] = torch.from_numpy(-rng.exponential(0.35, n).astype(np.float32))
                part["attention_mask"][b, :n] = True
            part["rewards"] = torch.from_numpy(rng.random(GROUP_SIZE).astype(np.float32))
            parts.append(part)
        steps.append(parts)
    return tokenizer, steps


def long_rows(tokenizer: Any, n_rows: int, mean_tokens: int = MEAN_TOKENS) -> list[Any]:
    """Conversations of a question, a long answer, a tool's result and another long answer."""
    from tests.generator import Conversation, conversation, encode

    rng = np.random.default_rng(0)
    rows = []
    for seed in range(n_rows):
        messages = [dict(message) for message in conversation(seed).messages]
        length = max(int(rng.normal(1, 0.22) * mean_tokens * 0.78), 200)
        for message in messages:
            if message["role"] == "assistant":
                text = message["content"] or "I think it through once more. "
                n = max(len(tokenizer.encode(text)), 1)
                message["content"] = " ".join([text] * (length // n + 1))
        rows.append(encode(tokenizer, Conversation(tuple(messages))))
    return rows


def make_logger(tokenizer: Any, name: str, **options: Any) -> Any:
    """A logger with a run of its own."""
    import trackio.context_vars

    import rollout_traces as rt

    trackio.context_vars.current_run.set(None)
    settings = {"max_rollout_traces_per_step": CAP, "max_spool_bytes": 16 << 30, **options}
    return rt.RolloutLogger("benchmark", name, tokenizer, **settings)


def longest_stall(work: Callable[[], None]) -> float:
    """Milliseconds of the longest gap in a busy loop while `work` runs in another thread."""
    worker = threading.Thread(target=work)
    worker.start()
    longest = 0.0
    last = time.perf_counter()
    while worker.is_alive():
        sum(range(200))
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
    worker.join()
    return 1e3 * longest


def count_traces(folder: Path, run: str) -> int:
    """Different uids of a run's traces."""
    import sqlite3

    with sqlite3.connect(folder / "benchmark.db") as db:
        sql = "select metadata from traces where run_name = ? and key = 'rollout/trajectories'"
        return len({orjson.loads(metadata)["uid"] for (metadata,) in db.execute(sql, (run,))})


@dataclass(frozen=True)
class Cost:
    """Milliseconds on the calling thread.

    Attributes:
        wall: as the step sees them.
        processor: that the thread really worked, whatever else this machine does.
    """

    wall: float
    processor: float


def timed(work: Callable[[], Any]) -> Cost:
    """What a call costs its thread."""
    wall, processor = time.perf_counter(), time.thread_time()
    work()
    return Cost(1e3 * (time.perf_counter() - wall), 1e3 * (time.thread_time() - processor))


def described(costs: list[Cost]) -> str:
    """Median and largest wall time, and the median of processor time."""
    wall = [cost.wall for cost in costs]
    processor = median([cost.processor for cost in costs])
    return f"median {median(wall):6.1f} ms   max {max(wall):6.1f} ms   processor {processor:6.1f} ms"


def median(values: list[float]) -> float:
    """The median."""
    return statistics.median(values)


if __name__ == "__main__":
    main()
