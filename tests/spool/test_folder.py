"""Records on disk: in order, complete or absent, and removed only when told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rollout_traces.spool.folder import (
    FREE,
    RECORD,
    WRITING,
    MemorySpool,
    SpoolFull,
    SpoolReader,
    SpoolWriter,
)
from rollout_traces.spool.record import PREFIX_BYTES, Record, RecordError, encode, said_by
from tests.spool.damage import flip_byte


def make_buffers(step: int = 0, n: int = 1000):
    return encode(Record("rollouts", {"step": step}, {"ids": np.full(n, step, np.uint32)}))


@pytest.fixture
def writer(tmp_path):
    writer = SpoolWriter(tmp_path / "spool", max_bytes=1 << 30)
    yield writer
    writer.close()


class TestOrder:
    def test_records_come_back_in_the_order_of_appending(self, writer):
        for step in range(20):
            writer.append(make_buffers(step))
        steps = [record.meta["step"] for _, record in SpoolReader(writer.folder).records()]
        assert steps == list(range(20))

    def test_a_removed_record_is_gone_and_the_others_stay(self, writer):
        names = [writer.append(make_buffers(step)) for step in range(3)]
        reader = SpoolReader(writer.folder)
        reader.remove(names[1])
        assert reader.names() == [names[0], names[2]]
        assert [reader.has(name) for name in names] == [True, False, True]

    def test_a_freed_file_is_written_again(self, writer):
        reader = SpoolReader(writer.folder)
        reader.remove(writer.append(make_buffers(1, n=600_000)))
        assert len(list((writer.folder / FREE).iterdir())) == 1
        name = writer.append(make_buffers(2, n=300_000))
        assert not list((writer.folder / FREE).iterdir())
        assert set(reader.read(name).arrays["ids"].tolist()) == {2}

    def test_few_files_are_kept_and_none_once_the_writer_is_gone(self, writer):
        reader = SpoolReader(writer.folder)
        for name in [writer.append(make_buffers(1, n=600_000)) for _ in range(5)]:
            reader.remove(name)
        assert len(list((writer.folder / FREE).iterdir())) == 2
        writer.close()
        assert not list((writer.folder / FREE).iterdir())

    def test_files_for_the_next_records_are_made_ahead(self, writer):
        writer.keep_ahead()
        assert not list((writer.folder / FREE).iterdir())
        writer.append(make_buffers(n=600_000))
        writer.keep_ahead()
        ahead = {path.stat().st_ino for path in (writer.folder / FREE).iterdir()}
        assert len(ahead) == 2
        name = writer.append(make_buffers(n=600_000))
        assert (writer.folder / f"{name}{RECORD}").stat().st_ino in ahead

    def test_a_prepared_file_is_used(self, writer):
        writer.prepare(4 << 20)
        name = writer.append(make_buffers(n=600_000))
        assert (writer.folder / f"{name}{RECORD}").stat().st_size == 4 << 20


class TestLimits:
    def test_the_limit_refuses_and_keeps_what_is_there(self, tmp_path):
        writer = SpoolWriter(tmp_path / "spool", max_bytes=10_000)
        size = sum(map(len, make_buffers()))
        assert writer.room() == 8750
        writer.append(make_buffers())
        assert writer.room() == 8750 - size
        writer.append(make_buffers())
        assert writer.room() == max(8750 - 2 * size, 0) < 5000
        with pytest.raises(SpoolFull, match="10000"):
            writer.append(make_buffers())
        assert len(SpoolReader(writer.folder).names()) == 2


class TestDamage:
    def test_a_damaged_record_is_told_apart_from_its_siblings(self, writer):
        names = [writer.append(make_buffers(step)) for step in range(3)]
        flip_byte(writer.folder, names[1], 2000)
        found = dict(SpoolReader(writer.folder).records())
        assert isinstance(found[names[1]], RecordError)
        assert [found[names[0]].meta["step"], found[names[2]].meta["step"]] == [0, 2]

    def test_a_damaged_record_set_aside_is_kept_and_not_read_again(self, writer):
        reader = SpoolReader(writer.folder)
        aside = reader.set_aside(writer.append(make_buffers()))
        assert aside.exists() and reader.names() == []

    @pytest.mark.parametrize("n_values", [1000, 600_000])
    def test_what_a_record_says_of_itself_is_read_while_it_waits_and_when_it_was_set_aside(
        self, writer, n_values
    ):
        reader = SpoolReader(writer.folder)
        name = writer.append(make_buffers(7, n=n_values))
        said = reader.said_by(name)
        assert said == said_by(b"".join(make_buffers(7, n=n_values))[:PREFIX_BYTES]) is not None
        reader.set_aside(name)
        assert reader.set_aside_ones() == [said]
        assert reader.names() == [] and not reader.has(name)

    def test_of_a_record_that_is_gone_nothing_is_said(self, writer):
        reader = SpoolReader(writer.folder)
        name = writer.append(make_buffers(n=600_000))
        reader.remove(name)
        assert reader.said_by(name) is None and reader.set_aside_ones() == []


class TestOwnership:
    def test_a_second_owner_is_refused(self, writer):
        with pytest.raises(OSError, match="another owner"):
            SpoolWriter(writer.folder, max_bytes=1)

    def test_closing_releases_the_folder_and_keeps_its_records(self, writer):
        reader = SpoolReader(writer.folder)
        writer.append(make_buffers())
        assert not reader.owner_is_gone
        writer.close()
        assert reader.owner_is_gone and len(reader.names()) == 1

    def test_a_forked_child_does_not_keep_its_parents_lock(self, writer):
        reader = SpoolReader(writer.folder)
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        try:
            writer.close()
            assert reader.owner_is_gone
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    @pytest.mark.parametrize(
        ("n_values", "n_seen"), [("300_000", 3), ("20_000 if step % 7 == 6 else step % 50", 40)]
    )
    def test_a_killed_writer_leaves_whole_records_and_at_most_one_torn(self, tmp_path, n_values, n_seen):
        script = (
            "import sys, numpy as np; from pathlib import Path\n"
            "from rollout_traces.spool.folder import SpoolWriter\n"
            "from rollout_traces.spool.record import Record, encode\n"
            "writer = SpoolWriter(Path(sys.argv[1]), 1 << 34)\n"
            "step = 0\n"
            "while True:\n"
            f"    values = np.full({n_values}, step)\n"
            "    writer.append(encode(Record('rollouts', {'step': step}, {'a': values})))\n"
            "    print(step, flush=True); step += 1\n"
        )
        for round_ in range(3):
            folder = tmp_path / str(round_)
            child = subprocess.Popen(
                [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True
            )
            seen = [child.stdout.readline() for _ in range(n_seen + round_)]
            child.kill()
            seen += child.stdout.read().splitlines()
            child.wait()
            child.stdout.close()
            reader = SpoolReader(folder)
            assert reader.owner_is_gone
            steps = [record.meta["step"] for _, record in reader.records()]
            acknowledged = int([line for line in seen if line.strip()][-1])
            assert steps == list(range(len(steps)))
            assert len(steps) - 1 >= acknowledged
            assert reader.count_torn() <= 1
            assert not list(folder.glob(f"*{WRITING}"))


class TestSpoolInMemory:
    def test_the_limit_refuses_and_what_is_removed_makes_room(self):
        size = sum(map(len, make_buffers()))
        spool = MemorySpool(2 * size)
        names = [spool.append(make_buffers(step)) for step in range(2)]
        assert names == sorted(set(names)) and spool.count_waiting() == 2 * size and spool.room() == 0
        with pytest.raises(SpoolFull, match=f"{size} bytes more"):
            spool.append(make_buffers())
        spool.remove(names[0])
        spool.remove(names[0])
        assert spool.count_waiting() == size and spool.room() == int(2 * size * 7 / 8) - size
        spool.append(make_buffers(2))
        assert [record.meta["step"] for record in spool.take_all()] == [1, 2]
        assert spool.names() == [] and spool.count_waiting() == 0

    def test_a_record_that_is_gone_is_not_read(self):
        spool = MemorySpool(1 << 20)
        name = spool.append(make_buffers(3))
        assert spool.read(name).meta == {"step": 3}
        spool.set_aside(name)
        with pytest.raises(FileNotFoundError, match=name):
            spool.read(name)

    def test_its_owner_is_there_until_it_closes(self):
        spool = MemorySpool(1 << 20)
        assert not spool.owner_is_gone
        spool.close()
        assert spool.owner_is_gone


def test_a_spool_in_memory_loses_what_is_removed_and_keeps_the_others():
    spool = MemorySpool(1 << 20)
    names = [spool.append(make_buffers(step)) for step in range(3)]
    spool.remove(names[1])
    assert spool.names() == [names[0], names[2]]
    assert [spool.has(name) for name in names] == [True, False, True]
