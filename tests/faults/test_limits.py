"""What is slow, large or many: nothing is lost, and what it took is in the table. Nothing is asserted on time.

`make faults` sets ROLLOUT_TRACES_FULL_SIZE; without it the sizes are a tenth.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import rollout_traces as rt
from rollout_traces.spool.folder import SpoolWriter
from tests.faults.table import FaultRow
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.worker.readback import ledger_uids

PATIENCE = 1200
SHARE = 1 if os.environ.get("ROLLOUT_TRACES_FULL_SIZE") else 10
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def make_logger(tokenizer=None, **options):
    return rt.RolloutLogger("p", "run", tokenizer, max_rollout_traces_per_step=2, **options)


def longest(call: Callable[[int], object], steps: range, apart: float = 0.0) -> float:
    """Milliseconds of the longest of some calls."""
    found = 0.0
    for step in steps:
        started = time.perf_counter()
        call(step)
        found = max(found, 1e3 * (time.perf_counter() - started))
        time.sleep(apart)
    return found


def outcome(fault: str, tried: str, logger, folder: Path, longest_call: float, note: str = "") -> FaultRow:
    """The row of a fault, from what is in the store."""
    handed_over, stored = logger.counters["rollouts_handed_over"], ledger_uids(folder)
    lost, doubled = handed_over - len(stored), sum(stored.values()) - len(stored)
    return FaultRow(fault, tried, handed_over, len(stored), lost, doubled, longest_call, note)


def tiny() -> dict[str, np.ndarray]:
    """A batch of one rollout of 64 tokens."""
    ids = np.arange(64)[None]
    return {"input_ids": ids, "attention_mask": ids >= 0, "loss_mask": ids >= 16, "rewards": np.ones(1)}


def children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


@contextlib.contextmanager
def busy(n: int) -> Iterator[None]:
    """Processes that spin."""
    spinning = [multiprocessing.get_context("fork").Process(target=_spin, daemon=True) for _ in range(n)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        pass


def arrays(n_groups: int = 4, group_size: int = 8):
    return batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=n_groups, group_size=group_size))


class TestASlowDisk:
    def test_of_two_seconds_a_write_holds_a_call_up_to_the_bound_and_loses_nothing(
        self, trackio_dir, monkeypatch, row
    ):
        append = SpoolWriter.append

        def slow(writer, buffers):
            time.sleep(2)
            return append(writer, buffers)

        logger, batch = make_logger(tiny_tokenizer()), arrays()
        monkeypatch.setattr(SpoolWriter, "append", slow)
        took = longest(lambda step: logger.log_rollouts(batch, step=step), range(15), 0.05)
        pending = logger.counters["records_pending"]
        assert pending > 0
        assert logger.finish(PATIENCE), logger.counters
        found = outcome(
            "disk slow, 2 s a write", "15 calls", logger, trackio_dir, took, f"{pending} pending then"
        )
        row(found)
        assert (found.lost, found.doubled) == (0, 0)


class TestABusyMachine:
    def test_stores_the_end_of_a_run_as_soon_as_it_can(self, trackio_dir, row):
        batch = arrays(1, 2)
        with busy(2 * (os.cpu_count() or 1)):
            logger = make_logger(tiny_tokenizer())
            took = longest(lambda step: logger.log_rollouts(batch, step=step), range(1))
            started = time.monotonic()
            assert logger.finish(PATIENCE)
            seconds = time.monotonic() - started
        note = f"finish after {seconds:.1f} s, the worker's start included"
        found = outcome("every core busy twice", "1 call", logger, trackio_dir, took, note)
        row(found)
        assert (found.lost, found.doubled) == (0, 0)


class TestAWorkerWithoutMemory:
    def test_loses_nothing(self, trackio_dir, row):
        logger = make_logger(tiny_tokenizer())
        logger.log_rollouts(arrays(), step=0)
        assert logger.flush(PATIENCE)
        pid = logger._pipeline._worker.pid
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (used + (4 << 20), used + (4 << 20)))
        batch = arrays(32, 8)
        took = longest(lambda step: logger.log_rollouts(batch, step=step), range(1, 11))
        assert logger.finish(PATIENCE), logger.counters
        n = logger.counters["workers_started"] - 1
        found = outcome(
            "worker out of memory", "10 calls", logger, trackio_dir, took, f"started again {n} times"
        )
        row(found)
        assert n > 0 and (found.lost, found.doubled) == (0, 0)


class TestMany:
    def test_tiny_steps(self, trackio_dir, row):
        n, batch = 20_000 // SHARE, tiny()
        logger = make_logger(announces_closes=True)

        def step(number: int) -> None:
            logger.log_rollouts(batch, step=number)
            logger.close_step(number)

        before = children_seconds()
        took = longest(step, range(n))
        assert logger.finish(PATIENCE), logger.counters
        each = 1e3 * (children_seconds() - before) / n
        note = f"{each:.1f} ms of the worker's processor a step"
        found = outcome("tiny steps", f"{n:,} steps", logger, trackio_dir, took, note)
        row(found)
        assert (found.lost, found.doubled) == (0, 0)

    def test_rollouts_in_one_step(self, trackio_dir, row):
        B, T = 20_000 // SHARE, 8192
        rng = np.random.default_rng(0)
        mask = np.ones((B, T), bool)
        batch = {
            "input_ids": rng.integers(0, 30_000, (B, T), dtype=np.int32),
            "attention_mask": mask,
            "loss_mask": mask,
            "rewards": rng.random(B),
            "group_ids": np.arange(B) // 8,
        }
        logger = make_logger()
        before = children_seconds()
        took = longest(lambda step: logger.log_rollouts(batch, step=step), range(1))
        assert logger.finish(PATIENCE), logger.counters
        note = (
            f"{logger.counters['rollouts_without_tokens']:,} without tokens; "
            f"{children_seconds() - before:.0f} s of the worker's processor"
        )
        found = outcome("rollouts of 8,192 tokens in one step", f"{B:,}", logger, trackio_dir, took, note)
        row(found)
        assert (found.lost, found.doubled) == (0, 0)

    def test_scalars(self, trackio_dir, row):
        n_calls, values = 10_000 // SHARE, {f"train/number_{index}": index / 8 for index in range(100)}
        logger = make_logger()
        took = longest(lambda step: logger.log_scalars(values, step=step), range(n_calls))
        assert logger.finish(PATIENCE), logger.counters
        with sqlite3.connect(trackio_dir / "p.db") as database:
            steps = Counter(
                step
                for (step,) in database.execute(
                    "select step from metrics where json_extract(metrics, '$.\"train/number_99\"') is not null"
                )
            )
        per = len(values)
        lost, doubled = n_calls - len(steps), sum(steps.values()) - len(steps)
        row(
            FaultRow(
                "scalars",
                f"{n_calls:,} calls",
                n_calls * per,
                len(steps) * per,
                lost * per,
                doubled * per,
                took,
            )
        )
        assert (lost, doubled) == (0, 0)
