"""No fault holds the calling thread up; figures are printed in one table, and nothing is asserted on time.

The default host, a worker process, processes. Every hand-over of every fault is accepted, and stored once it is over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import rollout_traces as rt
from tests.faults.pace import CALLS, Pace, again_and_again, timed
from tests.faults.table import FaultRow
from tests.faults.test_faults import fill
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.worker.readback import ledger_uids

PLAN = BatchPlan(n_groups=4, group_size=8)
ROWS = 32
PATIENCE = 300
WARM = 5


@pytest.fixture(scope="module")
def arrays():
    return batch_arrays(tiny_tokenizer(), PLAN)


@pytest.fixture
def make_logger(trackio_dir):
    made = []

    def make(**options):
        logger = rt.RolloutLogger("p", "run", tiny_tokenizer(), max_rollout_traces_per_step=2, **options)
        made.append(logger)
        return logger

    yield make
    for logger in made:
        logger.finish(1)
        pid = getattr(logger._pipeline._worker, "pid", None)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def measure(logger, arrays, fault: AbstractContextManager[None]) -> Pace:
    """Warm calls, quiet calls, calls with the fault."""
    timed(logger, arrays, range(WARM))
    quiet = timed(logger, arrays, range(WARM, WARM + CALLS))
    with fault:
        during = timed(logger, arrays, range(WARM + CALLS, WARM + 2 * CALLS))
    return Pace(quiet, during)


def assert_all_stored(logger, folder: Path, n_lost: int = 0) -> None:
    assert logger.finish(PATIENCE), logger.counters
    assert logger.counters["batches_refused"] == logger.counters["rollouts_dropped"] == 0
    stored = ledger_uids(folder)
    assert (len(stored), set(stored.values())) == ((WARM + 2 * CALLS) * ROWS - n_lost, {1})


def outcome(fault: str, logger, folder: Path | None, pace: Pace) -> FaultRow:
    """The row of a fault, from what is in the store."""
    stored = ledger_uids(folder) if folder is not None else Counter()
    handed_over = logger.counters["rollouts_handed_over"]
    doubled = sum(stored.values()) - len(stored)
    return FaultRow(
        fault,
        f"{len(pace.fault)} calls",
        handed_over,
        len(stored),
        handed_over - len(stored),
        doubled,
        pace.longest,
        str(pace),
    )


@contextmanager
def full(folder: Path) -> Iterator[None]:
    ballast = fill(folder)
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def locked(database: Path) -> Iterator[None]:
    lock = sqlite3.connect(database, isolation_level=None)
    try:
        lock.execute("pragma busy_timeout = 60000")
        lock.execute("begin exclusive")
        yield
        lock.rollback()
    finally:
        lock.close()


@contextmanager
def silent(server) -> Iterator[None]:
    """In the server's place something that takes every connection and says nothing."""
    server.stop()
    with socket.create_server(("127.0.0.1", server.port), backlog=1000):
        yield
    server.start()


@contextmanager
def down(server) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestTheCallingThreadIsNotHeldUp:
    @pytest.mark.parametrize("small_disk", [512 << 20], indirect=True)
    def test_by_a_full_disk(self, small_disk, make_logger, arrays, row):
        logger = make_logger()
        pace = measure(logger, arrays, full(small_disk))
        assert logger.counters["records_kept_in_memory"] > 0
        assert_all_stored(logger, small_disk)
        row(outcome("disk full", logger, small_disk, pace))

    def test_by_a_locked_database(self, trackio_dir, make_logger, arrays, row):
        logger = make_logger()
        logger.log_rollouts(arrays, step=-1)
        assert logger.flush(PATIENCE)
        pace = measure(logger, arrays, locked(trackio_dir / "p.db"))
        assert_all_stored(logger, trackio_dir, n_lost=-ROWS)
        row(outcome("database locked", logger, trackio_dir, pace))

    def test_by_a_sidecar_that_is_killed_again_and_again(self, trackio_dir, make_logger, arrays, row):
        logger = make_logger()
        killed = []

        def kill() -> None:
            pid = logger._pipeline._worker.pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        pace = measure(logger, arrays, again_and_again(kill, 0.4))
        assert killed
        assert_all_stored(logger, trackio_dir)
        row(outcome(f"worker killed {len(killed)} times", logger, trackio_dir, pace))

    def test_by_records_that_are_damaged(self, trackio_dir, make_logger, arrays, row):
        logger = make_logger()
        damaged = []

        def damage() -> None:
            waiting = sorted((trackio_dir / "rollout-traces").rglob("*.record"))[-1:]
            for path in waiting:
                with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
                    file.seek(2000)
                    byte = file.read(1)
                    file.seek(2000)
                    file.write(bytes([byte[0] ^ 1]))
                    damaged.append(path)

        pace = measure(logger, arrays, again_and_again(damage, 0.1))
        assert not logger.finish(PATIENCE), "what is damaged is not stored"
        n_set_aside = logger.counters["records_damaged"]
        assert logger.counters["rollouts_lost"] == n_set_aside * ROWS
        row(outcome(f"damaged records, {n_set_aside}", logger, trackio_dir, pace))
        assert 0 < n_set_aside <= len(damaged)
        stored = ledger_uids(trackio_dir)
        assert (len(stored), set(stored.values())) == ((WARM + 2 * CALLS - n_set_aside) * ROWS, {1})


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestTheCallingThreadIsNotHeldUpByAServer:
    def test_that_is_down_at_the_start(self, server, make_logger, arrays, row):
        logger = make_logger(server_url=server.url)
        timed(logger, arrays, range(WARM))
        during = timed(logger, arrays, range(WARM, WARM + CALLS))
        server.start()
        assert logger.flush(PATIENCE), logger.counters
        quiet = timed(logger, arrays, range(WARM + CALLS, WARM + 2 * CALLS))
        assert_all_stored(logger, server.folder)
        row(outcome("server down at the start", logger, server.folder, Pace(quiet, during)))

    def test_that_goes_down_in_the_middle(self, server, make_logger, arrays, row):
        logger = make_logger(server_url=server.start().url)
        pace = measure(logger, arrays, down(server))
        assert_all_stored(logger, server.folder)
        row(outcome("server down in the middle", logger, server.folder, pace))

    def test_that_takes_connections_and_never_answers(self, server, make_logger, arrays, row):
        logger = make_logger(server_url=server.start().url)
        pace = measure(logger, arrays, silent(server))
        assert_all_stored(logger, server.folder)
        row(outcome("server that never answers", logger, server.folder, pace))

    def test_that_is_down_at_the_end(self, server, make_logger, arrays, row):
        logger = make_logger(server_url=server.start().url)
        timed(logger, arrays, range(WARM))
        quiet = timed(logger, arrays, range(WARM, WARM + CALLS))
        server.stop()
        during = timed(logger, arrays, range(WARM + CALLS, WARM + 2 * CALLS))
        assert not logger.finish(1)
        assert logger.counters["batches_refused"] == logger.counters["rollouts_dropped"] == 0
        found = outcome("server down at the end", logger, server.folder, Pace(quiet, during))
        row(replace(found, lost=0, note=f"the rest waits in the spool; {found.note}"))

    def test_that_refuses_the_token(self, server, make_logger, arrays, row):
        server.start()
        logger = make_logger(server_url=server.url)
        timed(logger, arrays, range(WARM))
        quiet = timed(logger, arrays, range(WARM, WARM + CALLS))
        assert logger.finish(PATIENCE), logger.counters
        refused = make_logger(server_url=server.url.replace("right", "wrong"))
        timed(refused, arrays, range(WARM))
        pace = Pace(quiet, timed(refused, arrays, range(WARM, WARM + CALLS)))
        assert not refused.flush(2)
        assert refused.counters["batches_refused"] == refused.counters["rollouts_dropped"] == 0
        assert refused.counters["spooled"] >= CALLS
        found = outcome("wrong token", refused, None, pace)
        row(replace(found, lost=0, note=f"all waits in the spool; {found.note}"))
