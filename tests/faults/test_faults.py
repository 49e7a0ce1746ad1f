"""Faults for real: full disks, locked databases, lost servers, damaged records. Training never notices."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import rollout_traces as rt
from rollout_traces.spool.folder import SpoolReader
from rollout_traces.trace.conversion import read_transcript
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.spool.damage import flip_byte
from tests.test_write_path import stored
from tests.worker.readback import ledger_uids, scalar_steps, trace_uids

ROWS = 3
CAP = 2


def make_batch():
    return batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=ROWS))


def make_logger(**options):
    settings = {"name": "run", "tokenizer": tiny_tokenizer(), "max_rollout_traces_per_step": CAP}
    return rt.RolloutLogger("p", **{**settings, "worker": "thread", **options})


def log_steps(logger, steps):
    for step in steps:
        logger.log_rollouts(make_batch(), step=step)
        logger.log_scalars({"train/loss": step / 8}, step=step)


def assert_stored_once(folder, n_steps):
    rows, traces, scalars = ledger_uids(folder), trace_uids(folder), scalar_steps(folder, "train/loss")
    assert (len(rows), set(rows.values())) == (n_steps * ROWS, {1})
    assert (len(traces), set(traces.values())) == (n_steps * CAP, {1})
    assert (len(scalars), set(scalars.values())) == (n_steps, {1})


def fill(folder: Path) -> Path:
    """Takes what is left of a disk."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


class TestDiskFull:
    def test_when_handing_over_nothing_is_lost_once_there_is_room(self, small_disk, caplog):
        logger = make_logger()
        log_steps(logger, [0])
        assert logger.flush(180)
        ballast = fill(small_disk)
        log_steps(logger, range(1, 6))
        assert logger.counters["records_kept_in_memory"] > 0
        assert "a crash now would lose them" in caplog.text
        ballast.unlink()
        assert logger.finish(120)
        assert logger.counters["rollouts_dropped"] == 0
        assert_stored_once(small_disk, 6)

    def test_when_storing_nothing_is_lost_or_doubled_once_there_is_room(self, small_disk):
        logger = make_logger()
        start, logger._pipeline.start = logger._pipeline.start, lambda: None
        log_steps(logger, range(4))
        ballast = fill(small_disk)
        logger._pipeline.start = start
        start()
        time.sleep(4)
        ballast.unlink()
        assert logger.finish(120)
        assert_stored_once(small_disk, 4)


class TestDatabaseLocked:
    @pytest.mark.slow
    def test_for_longer_than_trackio_waits(self, trackio_dir):
        logger = make_logger()
        log_steps(logger, [0])
        assert logger.flush(180)
        locked = sqlite3.connect(trackio_dir / "p.db", isolation_level=None, check_same_thread=False)
        locked.execute("begin exclusive")
        threading.Timer(25, locked.rollback).start()
        log_steps(logger, range(1, 4))
        assert logger.finish(180)
        locked.close()
        assert_stored_once(trackio_dir, 4)


class TestDamagedRecord:
    def test_is_set_aside_counted_and_takes_no_sibling(self, trackio_dir, caplog):
        logger = make_logger()
        start, logger._pipeline.start = logger._pipeline.start, lambda: None
        log_steps(logger, range(3))
        [folder] = (trackio_dir / "rollout-traces").rglob("from-*")
        rollouts = [name for name, record in SpoolReader(folder).records() if record.kind == "rollouts"]
        flip_byte(folder, rollouts[1], 1000)
        logger._pipeline.start = start
        assert not logger.finish(180), "not everything is stored"
        assert logger.counters["records_damaged"] == 1 and logger.counters["rollouts_lost"] == ROWS
        assert "its checksum does not fit" in caplog.text
        assert len(ledger_uids(trackio_dir)) == 2 * ROWS
        assert (folder / f"{rollouts[1]}.damaged").exists()


@pytest.mark.slow
class TestServer:
    def test_stores_everything_once(self, trackio_dir, server):
        server.start()
        logger = make_logger(server_url=server.url)
        log_steps(logger, range(3))
        assert logger.finish(120), logger.counters
        assert_stored_once(server.folder, 3)
        arrays = make_batch()
        for _, record in stored(server.folder, "rollout/trajectories"):
            row = int(record.metadata["uid"].split("-")[1])
            ids = arrays["input_ids"][row][arrays["attention_mask"][row]]
            assert read_transcript(record).tokens.input_ids.tolist() == ids.tolist()

    def test_that_is_down_at_the_start_gets_everything_once_it_is_up(self, trackio_dir, server):
        logger = make_logger(server_url=server.url)
        log_steps(logger, range(2))
        assert not logger.flush(3)
        server.start()
        assert logger.finish(180), logger.counters
        assert_stored_once(server.folder, 2)

    def test_that_goes_down_in_the_middle_loses_and_doubles_nothing(self, trackio_dir, server):
        server.start()
        logger = make_logger(server_url=server.url)
        log_steps(logger, [0])
        assert logger.flush(180)
        server.stop()
        log_steps(logger, [1, 2])
        assert not logger.flush(5)
        server.start()
        log_steps(logger, [3])
        assert logger.finish(180), logger.counters
        assert_stored_once(server.folder, 4)

    def test_that_is_down_at_the_end_gets_the_rest_from_a_recovery(self, trackio_dir, server, monkeypatch):
        from rollout_traces.worker.main import NamedTargets
        from rollout_traces.worker.recovery import find_left, recover

        server.start()
        logger = make_logger(server_url=server.url)
        log_steps(logger, [0])
        assert logger.flush(180)
        server.stop()
        log_steps(logger, [1, 2])
        assert not logger.finish(5)
        server.start()
        monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "right")
        [left] = [left for left in find_left("p") if left.n_records]
        assert recover(left) == left.n_records, "nobody named the server"
        assert recover(left, NamedTargets((str(left.manifest.remote),))) == 0
        assert_stored_once(server.folder, 3)

    def test_that_refuses_the_token_leaves_everything_spooled(self, trackio_dir, server):
        server.start()
        logger = make_logger(server_url=server.url.replace("right", "wrong"))
        log_steps(logger, range(2))
        assert not logger.flush(8)
        assert logger.counters["spooled"] >= 4
        assert not logger.finish(1)
        assert ledger_uids(server.folder) == Counter()


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("httpx").setLevel(logging.WARNING)
