"""Small records share files: complete or absent, in order, removed one by one, and damaged one by one."""

from __future__ import annotations

import errno
import resource
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.spool import folder as folder_module
from rollout_traces.spool import segments
from rollout_traces.spool.folder import DAMAGED, RECORD, DiskFull, SpoolReader, SpoolWriter
from rollout_traces.spool.record import Record, RecordError, encode
from rollout_traces.spool.segments import SEGMENT, SMALL
from tests.spool.damage import flip_byte, place_of


def small(step: int = 0, text: str = "") -> list:
    return encode(Record("scalars", {"step": step, "text": text}))


def large(step: int = 0) -> list:
    return encode(Record("rollouts", {"step": step}, {"ids": np.full(SMALL // 4, step, np.uint32)}))


def files(folder: Path, ending: str) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(ending))


def steps_of(folder: Path) -> list[int]:
    return [record.meta["step"] for _, record in SpoolReader(folder).records()]


@pytest.fixture
def writer(tmp_path):
    writer = SpoolWriter(tmp_path / "spool", max_bytes=1 << 30)
    yield writer
    writer.close()


@pytest.fixture
def short_segments(monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 400)


@contextmanager
def no_file_longer_than(n_bytes: int):
    """A limit at which writing stops in the middle, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestAppending:
    def test_many_small_records_are_one_file(self, writer):
        for step in range(100):
            writer.append(small(step))
        assert len(files(writer.folder, SEGMENT)) == 1 and not files(writer.folder, RECORD)
        assert steps_of(writer.folder) == list(range(100))

    def test_a_large_record_is_a_file_and_keeps_its_place_in_the_order(self, writer):
        for step, make in enumerate([small, large, small, large, small]):
            writer.append(make(step))
        assert len(files(writer.folder, RECORD)) == 2
        assert steps_of(writer.folder) == [0, 1, 2, 3, 4]

    def test_a_full_segment_is_followed_by_another(self, writer, short_segments):
        for step in range(20):
            writer.append(small(step))
        assert len(files(writer.folder, SEGMENT)) > 4
        assert steps_of(writer.folder) == list(range(20))

    def test_a_writer_after_another_one_begins_a_segment(self, tmp_path):
        for step in range(3):
            writer = SpoolWriter(tmp_path, max_bytes=1 << 20)
            writer.append(small(step))
            writer.close()
        assert len(files(tmp_path, SEGMENT)) == 3
        assert steps_of(tmp_path) == [0, 1, 2]

    def test_a_writer_whose_clock_is_behind_comes_after_the_one_before(self, tmp_path, monkeypatch):
        at = time.time_ns()
        names = []
        for hours in (0, 1, 2):
            monkeypatch.setattr(folder_module.time, "time_ns", lambda now=at - hours * 3_600_000_000_000: now)
            writer = SpoolWriter(tmp_path, max_bytes=1 << 20)
            names += [writer.append(make(hours)) for make in (small, large, small)]
            writer.close()
        assert names == sorted(names) == SpoolReader(tmp_path).names()
        assert len(files(tmp_path, SEGMENT)) == 3

    def test_only_this_user_may_read_it(self, writer):
        writer.append(small())
        assert [path.stat().st_mode & 0o777 for path in files(writer.folder, SEGMENT)] == [0o600]

    def test_a_segment_that_somebody_deleted_is_not_written_to(self, writer):
        writer.append(small(0))
        files(writer.folder, SEGMENT)[0].unlink()
        writer.append(small(1))
        assert steps_of(writer.folder) == [1]

    def test_small_records_of_earlier_versions_are_read(self, writer):
        writer.append(small(1))
        (writer.folder / f"{1:020d}{RECORD}").write_bytes(b"".join(small(0)))
        reader = SpoolReader(writer.folder)
        assert [record.meta["step"] for _, record in reader.records()] == [0, 1]
        reader.remove(reader.names()[0])
        assert [record.meta["step"] for _, record in reader.records()] == [1]


class TestRemoving:
    def test_a_removed_record_stays_removed_for_every_reader(self, writer):
        names = [writer.append(small(step)) for step in range(3)]
        other = SpoolReader(writer.folder)
        assert other.names() == names
        SpoolReader(writer.folder).remove(names[1])
        assert other.names() == SpoolReader(writer.folder).names() == [names[0], names[2]]
        assert [other.has(name) for name in names] == [True, False, True]
        with pytest.raises(FileNotFoundError):
            other.read(names[1])

    def test_a_segment_goes_when_nothing_in_it_waits_and_a_newer_one_is_there(self, writer, short_segments):
        names = [writer.append(small(step)) for step in range(20)]
        reader = SpoolReader(writer.folder)
        for name in reader.names():
            reader.remove(name)
        assert len(files(writer.folder, SEGMENT)) == 1
        names = [writer.append(small(step)) for step in range(3)]
        assert reader.names() == names

    def test_room_comes_back_although_the_newest_segment_stays(self, tmp_path):
        writer = SpoolWriter(tmp_path / "spool", max_bytes=2000)
        reader = SpoolReader(writer.folder)
        for step in range(100):
            name = writer.append(small(step))
            reader.remove(name)
            assert writer.count_waiting() == 0
        writer.close()


class TestWhatAKilledWriterLeaves:
    def test_an_incomplete_record_is_none_and_is_counted(self, writer):
        names = [writer.append(small(step)) for step in range(3)]
        path, start = place_of(writer.folder, names[2])
        writer.close()
        whole = path.read_bytes()
        for length in range(start - 32, len(whole)):
            path.write_bytes(whole[:length])
            reader = SpoolReader(writer.folder)
            assert reader.names() == names[:2]
            assert reader.count_torn() == (length > start - 32)
            assert SpoolReader(writer.folder).names() == names[:2]
            assert path.stat().st_size == start - 32

    def test_it_is_a_record_once_it_is_complete(self, writer):
        names = [writer.append(small(step)) for step in range(3)]
        path, start = place_of(writer.folder, names[2])
        whole = path.read_bytes()
        path.write_bytes(whole[: start + 20])
        reader = SpoolReader(writer.folder)
        assert reader.names() == names[:2]
        path.write_bytes(whole)
        assert reader.names() == names


class TestAFullDisk:
    def test_leaves_nothing_of_the_record_and_the_next_one_follows(self, writer):
        names = [writer.append(small(step)) for step in range(3)]
        length = files(writer.folder, SEGMENT)[0].stat().st_size
        for limit in (length, length + 10, length + 60):
            with no_file_longer_than(limit), pytest.raises(OSError, match="File too large"):
                writer.append(small(9))
            assert files(writer.folder, SEGMENT)[0].stat().st_size == length
        names.append(writer.append(small(3)))
        assert SpoolReader(writer.folder).names() == names
        assert steps_of(writer.folder) == [0, 1, 2, 3]

    def test_where_it_cannot_be_cut_off_the_next_record_begins_a_segment(self, writer, monkeypatch):
        writer.append(small(0))
        length = files(writer.folder, SEGMENT)[0].stat().st_size

        def refuse(fd, size):
            raise OSError(errno.EIO, "no")

        monkeypatch.setattr(segments.os, "ftruncate", refuse)
        with no_file_longer_than(length + 10), pytest.raises(OSError, match="File too large"):
            writer.append(small(9))
        writer.append(small(1))
        assert len(files(writer.folder, SEGMENT)) == 2
        assert steps_of(writer.folder) == [0, 1]

    def test_is_said_as_such(self, writer, monkeypatch):
        def refuse(fd, data):
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(segments.os, "write", refuse)
        with pytest.raises(DiskFull, match="no room for"):
            writer.append(small())
        assert SpoolReader(writer.folder).names() == [] and not files(writer.folder, SEGMENT)

    @pytest.mark.parametrize(("n_bytes", "steps"), [(50, [0, 1]), (None, [0, 9, 1])])
    def test_an_interrupted_call_leaves_all_of_a_record_or_nothing(self, writer, monkeypatch, n_bytes, steps):
        writer.append(small(0))
        write = segments._write

        def interrupted(fd, data):
            write(fd, data[:n_bytes])
            raise KeyboardInterrupt

        reader = SpoolReader(writer.folder)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(segments, "_write", interrupted)
            writer.append(small(9))
        assert len(reader.names()) == len(steps) - 1
        writer.append(small(1))
        assert [record.meta["step"] for _, record in reader.records()] == steps


class TestDamage:
    def test_of_a_record_takes_no_sibling(self, writer):
        names = [writer.append(small(step)) for step in range(3)]
        flip_byte(writer.folder, names[1], 60)
        reader = SpoolReader(writer.folder)
        found = dict(reader.records())
        assert isinstance(found[names[1]], RecordError)
        assert [found[names[0]].meta["step"], found[names[2]].meta["step"]] == [0, 2]
        aside = reader.set_aside(names[1])
        assert b'":1,' in aside.read_bytes() and aside.stat().st_mode & 0o777 == 0o600
        assert reader.names() == SpoolReader(writer.folder).names() == [names[0], names[2]]

    @pytest.mark.parametrize("at", range(-32, -8))
    def test_of_any_byte_of_a_head_is_told_and_takes_no_sibling(self, writer, at):
        names = [writer.append(small(step)) for step in range(3)]
        flip_byte(writer.folder, names[1], at)
        reader, other = SpoolReader(writer.folder), SpoolReader(writer.folder)
        [first, damaged, last] = reader.names()
        assert (first, last) == (names[0], names[2])
        assert other.names() == [first, damaged, last]
        with pytest.raises(RecordError, match="cannot be read"):
            reader.read(damaged)
        assert b'"step":1' in reader.set_aside(damaged).read_bytes()
        for one in (reader, other, SpoolReader(writer.folder)):
            assert one.names() == [names[0], names[2]]
        assert writer.append(small(3)) == reader.names()[-1]

    def test_of_the_last_head_is_counted_once_the_writer_is_gone(self, writer):
        names = [writer.append(small(step)) for step in range(2)]
        flip_byte(writer.folder, names[1], -20)
        writer.close()
        reader = SpoolReader(writer.folder)
        assert reader.names() == names[:1]
        assert reader.count_torn() == 1

    def test_of_the_beginning_is_one_damaged_record(self, writer, short_segments):
        names = [writer.append(small(step)) for step in range(8)]
        path = files(writer.folder, SEGMENT)[0]
        path.write_bytes(b"?" + path.read_bytes()[1:])
        reader = SpoolReader(writer.folder)
        damaged, *others = reader.names()
        with pytest.raises(RecordError):
            reader.read(damaged)
        assert others and others == names[-len(others) :]
        assert reader.set_aside(damaged).read_bytes().startswith(b"?Tsg")
        assert reader.names() == others
        assert len(files(writer.folder, DAMAGED)) == 1

    def test_is_removed_also_where_no_copy_can_be_kept(self, writer, caplog):
        name = writer.append(small(1))
        flip_byte(writer.folder, name, 60)
        reader = SpoolReader(writer.folder)
        with no_file_longer_than(60):
            aside = reader.set_aside(name)
        assert reader.names() == [] and not aside.exists()
        assert "is not kept" in caplog.text

    def test_text_that_looks_like_a_head_of_another_segment_is_text(self, writer, short_segments):
        forged = place_of(writer.folder, writer.append(small(1)))[0].read_bytes()
        for step in range(4):
            writer.append(small(2 + step, text=" " * 100))
        name = writer.append(encode(Record("rollouts", {}, {"a": np.frombuffer(forged, np.uint8)})))
        after = writer.append(small(9))
        flip_byte(writer.folder, name, -20)
        names = SpoolReader(writer.folder).names()
        assert len(names) == 7 and after == names[-1]


class TestReadingWhileItIsWritten:
    def test_no_record_is_seen_before_an_earlier_one(self, tmp_path):
        writer = SpoolWriter(tmp_path / "spool", max_bytes=1 << 30)
        written: list[str] = []
        ended = threading.Event()

        def write() -> None:
            for step in range(600):
                written.append(writer.append((large if step % 5 == 0 else small)(step)))
            ended.set()

        thread = threading.Thread(target=write)
        thread.start()
        reader = SpoolReader(writer.folder)
        seen = []
        while not ended.is_set():
            seen.append(reader.names())
        thread.join()
        writer.close()
        assert reader.names() == written
        assert len(seen) > 5
        assert all(names == written[: len(names)] for names in seen)


class TestAnySequence:
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["small", "large", "remove", "aside", "reopen", "count"]), st.integers(0, 99)
            ),
            max_size=40,
        ),
        st.integers(100, 2000),
    )
    def test_gives_what_a_list_would(self, tmp_path_factory, actions, segment_bytes):
        folder = tmp_path_factory.mktemp("spool")
        before, segments.SEGMENT_BYTES = segments.SEGMENT_BYTES, segment_bytes
        writer = SpoolWriter(folder, max_bytes=1 << 30)
        reader, other = SpoolReader(folder), SpoolReader(folder)
        waiting: list[tuple[str, int]] = []
        try:
            for step, (action, which) in enumerate(actions):
                if action == "small":
                    waiting.append((writer.append(small(step)), step))
                elif action == "large":
                    waiting.append((writer.append(large(step)), step))
                elif action == "reopen":
                    writer.close()
                    writer, reader = SpoolWriter(folder, max_bytes=1 << 30), SpoolReader(folder)
                elif action == "count":
                    assert writer.count_waiting() > 0 or not waiting
                elif waiting:
                    name, _ = waiting.pop(which % len(waiting))
                    (reader.remove if action == "remove" else reader.set_aside)(name)
                assert reader.names() == other.names() == [name for name, _ in waiting]
            assert steps_of(folder) == [step for _, step in waiting]
        finally:
            writer.close()
            segments.SEGMENT_BYTES = before
