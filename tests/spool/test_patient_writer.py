"""Records on their way to a disk that is quick, slow, full or gone."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from rollout_traces.errors import Warnings
from rollout_traces.spool import patient_writer
from rollout_traces.spool.folder import DiskFull, SpoolFull
from rollout_traces.spool.patient_writer import PatientWriter, Put
from rollout_traces.spool.record import Record, encode
from tests.until import until


class Disk:
    """A spool whose writes wait for the disk, or are refused."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.refuses: Exception | None = None
        self.closed = 0
        self.counted = 0

    def append(self, buffers) -> str:
        assert self.goes_on.wait(60)
        if self.refuses is not None:
            raise self.refuses
        self.written.append(b"".join(map(bytes, buffers)))
        return f"r-{len(self.written)}"

    def room(self) -> int:
        return 1 << 40

    def count_waiting(self) -> int:
        self.counted += 1
        return 0

    def keep_ahead(self) -> None: ...

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def counters():
    return Counter()


@pytest.fixture
def writer(disk, counters, monkeypatch):
    monkeypatch.setattr(patient_writer, "TRY_AGAIN", 0.01)
    monkeypatch.setattr(patient_writer, "LAST_WAIT", 0.3)
    made = PatientWriter(disk, Warnings(counters), 0.2)
    yield made
    disk.refuses = None
    disk.goes_on.set()
    made.close()


class TestAQuickDisk:
    def test_a_record_is_written_when_the_call_returns(self, writer, disk, counters):
        assert [writer.put([b"a", b"b"]), writer.put([b"c"])] == [Put("r-1"), Put("r-2")]
        assert disk.written == [b"ab", b"c"] and writer.last_name == "r-2"
        assert writer.n_pending == 0 and writer.room() == 1 << 40 and not counters

    def test_the_end_closes_the_spool_once_and_nothing_more_is_taken(self, writer, disk, counters):
        writer.put([b"a"])
        writer.close()
        until(lambda: disk.closed == 1)
        assert writer.put([b"b"]) == Put(None) and writer.put([b"b"], n_rows=3) == Put(None)
        assert counters == {"records_dropped": 1, "rollouts_dropped": 3} and disk.written == [b"a"]

    def test_the_end_of_one_that_wrote_nothing_closes_the_spool(self, writer, disk):
        writer.close()
        assert disk.closed == 1


class TestASlowDisk:
    def test_a_record_is_waited_for_up_to_the_bound_and_is_pending_then(self, writer, disk, counters):
        disk.goes_on.clear()
        started = time.monotonic()
        assert writer.put([b"abc"]) == Put(None, is_pending=True)
        assert 0.15 < time.monotonic() - started < 30
        assert writer.n_pending == 1 and counters == {"records_kept_in_memory": 1}
        assert writer.room() == patient_writer.MAX_PENDING_BYTES - 3

    def test_nobody_waits_while_one_is_pending_and_all_are_written_in_order(self, writer, disk, monkeypatch):
        disk.goes_on.clear()
        writer.put([b"a"])
        monkeypatch.setattr(writer, "_seconds", 60)
        started = time.monotonic()
        assert writer.put([b"b"]).is_pending and writer.put([b"c"]).is_pending
        assert time.monotonic() - started < 30
        assert writer.wait(0.05) is False
        disk.goes_on.set()
        assert writer.wait(10) is True and writer.n_pending == 0
        assert disk.written == [b"a", b"b", b"c"] and writer.last_name == "r-3"
        assert writer.put([b"d"]) == Put("r-4")

    def test_what_has_no_room_in_memory_is_dropped_and_counted(self, writer, disk, counters, monkeypatch):
        monkeypatch.setattr(patient_writer, "MAX_PENDING_BYTES", 4)
        disk.goes_on.clear()
        assert writer.put([b"abc"]).is_pending
        assert writer.put([b"d"]).is_pending
        assert writer.put([b"e"], n_rows=2) == Put(None) and writer.n_pending == 2
        assert counters["rollouts_dropped"] == 2 and writer.room() == 0
        disk.goes_on.set()
        assert writer.wait(10) and disk.written == [b"abc", b"d"]

    def test_what_is_pending_at_the_end_is_counted_as_lost_but_for_questions(self, writer, disk, counters):
        disk.refuses = DiskFull("no space")
        for record in (Record("scalars", {}), Record("flush", {}), Record("finish", {})):
            assert writer.put(encode(record)).is_pending
        writer.put([b"rows"], n_rows=5)
        writer.close()
        assert (counters["records_dropped"], counters["rollouts_dropped"]) == (1, 5)
        assert writer.n_pending == 0 and disk.written == []
        until(lambda: disk.closed == 1)


class TestADiskThatRefuses:
    @pytest.mark.parametrize("why", [OSError(28, "no space left"), DiskFull("no space")])
    def test_for_want_of_space_a_record_is_pending_at_once_and_tried_again(
        self, writer, disk, counters, why, monkeypatch
    ):
        monkeypatch.setattr(writer, "_seconds", 60)
        disk.refuses = why
        started = time.monotonic()
        assert writer.put([b"a"]).is_pending and time.monotonic() - started < 30
        assert counters == {"records_kept_in_memory": 1}
        disk.refuses = None
        assert writer.wait(10) and disk.written == [b"a"] and disk.counted >= 1

    @pytest.mark.parametrize("why", [SpoolFull("1 GB wait"), ValueError("no record")])
    def test_for_another_reason_it_is_dropped(self, writer, disk, counters, why):
        disk.refuses = why
        assert writer.put([b"a"], n_rows=2) == Put(None)
        assert counters == {"rollouts_dropped": 2} and writer.n_pending == 0
        disk.refuses = None
        assert writer.put([b"b"]) == Put("r-1")

    def test_a_full_spool_is_waited_for_by_what_is_pending_already(self, writer, disk, counters):
        disk.refuses = DiskFull("no space")
        writer.put([b"a"])
        disk.refuses = SpoolFull("1 GB wait")
        time.sleep(0.1)
        assert writer.n_pending == 1 and not counters["records_dropped"]
        disk.refuses = None
        assert writer.wait(10) and disk.written == [b"a"]
