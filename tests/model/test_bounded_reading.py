"""Parquet files from outside: what they hold, or one sentence, in little memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_traces.errors import FileRefused
from rollout_traces.model import bounded_reading
from rollout_traces.model.bounded_reading import batches, check_values, on_disk, read, schema_of

MEASURE = """
import resource, sys
from pathlib import Path
from rollout_traces.model.bounded_reading import read
from rollout_traces.errors import FileRefused
try:
    read(Path(sys.argv[1]))
except FileRefused as error:
    print(error)
import rollout_traces.model.bounded_reading as own
own._end_idle()
# ru_maxrss of this process counts its parent's memory at the fork
status = Path("/proc/self/status").read_text().split()
most = int(status[status.index("VmHWM:") + 1])
print((most + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) >> 10)
"""
"""Reads a file in a process of its own; prints what was said, and the megabytes that it and its child took at most."""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.parquet"
    table = pa.table(
        {
            "step": range(5000),
            "text": [f"t{n % 7}" for n in range(5000)],
            "ids": [[1, n] for n in range(5000)],
        }
    )
    pq.write_table(table, path, row_group_size=700)
    return path


def one_text_for_all(path: Path, n_rows: int, n_bytes: int) -> None:
    """A text stored once, and its number n times in a few bytes: the footer counts it once."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * n_rows, pa.int32()), pa.array(["x" * n_bytes]))
    pq.write_table(pa.table({"prompt": texts, "step": [0] * n_rows}), path, compression="none")


class TestWholeFiles:
    def test_rows_are_what_pyarrow_reads(self, small: Path) -> None:
        assert read(small).to_pydict() == pq.read_table(small).to_pydict()
        assert schema_of(small).names == ["step", "text", "ids"]

    def test_some_columns_and_some_rows(self, small: Path) -> None:
        assert read(small, ["text", "no such"]).column_names == ["text"]
        assert read(small, ["step"], at=[0, 699, 700, 4999])["step"].to_pylist() == [0, 699, 700, 4999]

    def test_some_rows_are_the_first_thing_that_is_asked_for(self, small: Path) -> None:
        bounded_reading._end_idle()
        bounded_reading._idle.clear()
        assert read(small, at=[7])["step"].to_pylist() == [7]

    def test_rows_come_some_at_a_time(self, small: Path) -> None:
        sizes = [len(part) for part in batches(small, rows=100)]
        assert sum(sizes) == 5000 and max(sizes) <= 100

    def test_a_reader_that_stops_early_leaves_the_next_one_whole(self, small: Path) -> None:
        next(iter(batches(small, rows=10)))
        assert read(small).num_rows == 5000

    def test_categories_come_as_texts(self, tmp_path: Path) -> None:
        one_text_for_all(tmp_path / "c.parquet", 10, 5)
        assert read(tmp_path / "c.parquet")["prompt"].to_pylist() == ["xxxxx"] * 10

    def test_an_empty_table(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "e.parquet")
        assert read(tmp_path / "e.parquet").schema.names == ["a"]


class TestBombs:
    """A parquet file in which thousands of rows share a text: once 7 GB from 4.3 MB, and a raw ArrowInvalid."""

    def test_a_text_that_thousands_of_rows_share_is_refused_below_500_megabytes(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.parquet"
        one_text_for_all(path, 7000, 1 << 20)
        assert path.stat().st_size < 5 << 20
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(path)],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        said, megabytes = done.stdout.splitlines()[-2:]
        assert said.startswith(f"{path}: ") and "taken for a bomb" in said
        assert int(megabytes) < 500

    def test_a_footer_that_says_it_is_believed(self, tmp_path: Path) -> None:
        path = tmp_path / "large.parquet"
        pq.write_table(
            pa.table({"text": ["y" * (1 << 20)] * 200}), path, use_dictionary=False, compression="zstd"
        )
        with pytest.raises(FileRefused, match=r"unpacks from [\d,]+ to [\d,]+ bytes, it says itself"):
            read(path)


class TestAPageThatLies:
    def test_about_its_size_is_refused_in_little_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "lies.parquet"
        table = pa.table({"step": range(100)})
        pq.write_table(table, path, use_dictionary=False, compression="snappy", write_statistics=False)
        whole = path.read_bytes()
        at = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
        # thrift's compact protocol: the page's type, then its size unpacked, a zigzag varint
        assert whole[at : at + 3] == bytes([0x15, 0x00, 0x15])
        end = next(n for n in range(at + 3, len(whole)) if whole[n] < 0x80) + 1
        two_gigabytes = bytes([0xFE, 0xFF, 0xFF, 0xFF, 0x0F])
        path.write_bytes(whole[: at + 3] + two_gigabytes + whole[end:])
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
        )
        said, most = done.stdout.strip().splitlines()
        assert str(path) in said and int(most) < 500, done.stdout


class TestDamage:
    def test_cut_emptied_and_no_parquet(self, small: Path, tmp_path: Path) -> None:
        whole = small.read_bytes()
        for data in (b"", b"PAR1", whole[:-9], b"x" * 100, whole[:-8] + b"\xff\xff\xff\x7fPAR1"):
            path = tmp_path / "damaged.parquet"
            path.write_bytes(data)
            with pytest.raises(FileRefused, match=r"damaged.parquet: "):
                read(path)

    def test_bytes_are_called_by_the_name_that_was_given(self) -> None:
        with pytest.raises(FileRefused, match=r"^part-7: "), on_disk(b"PAR1 nothing PAR1", "part-7") as path:
            read(path)

    def test_the_own_process_is_not_bounded(self, small: Path) -> None:
        before = resource.getrlimit(resource.RLIMIT_AS)
        read(small)
        assert resource.getrlimit(resource.RLIMIT_AS) == before and os.getpid()


def idle() -> list[int]:
    """The process numbers of the children that wait."""
    return [child.process.pid for _, child in bounded_reading._idle]


@pytest.fixture
def one_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """One child waits, and none before the test."""
    bounded_reading._end_idle()
    bounded_reading._idle.clear()
    monkeypatch.setattr(bounded_reading, "MOST_IDLE", 1)


@pytest.mark.usefixtures("one_child")
class TestTheChild:
    def test_one_reads_many_files_a_refused_one_among_them(self, small: Path, tmp_path: Path) -> None:
        read(small)
        (first,) = idle()
        (tmp_path / "d.parquet").write_bytes(b"x" * 100)
        with pytest.raises(FileRefused):
            read(tmp_path / "d.parquet")
        read(small)
        assert idle() == [first]

    def test_one_that_has_ended_is_replaced(self, small: Path) -> None:
        read(small)
        bounded_reading._idle[0][1].process.kill()
        bounded_reading._idle[0][1].process.wait()
        assert read(small).num_rows == 5000 and len(idle()) == 1

    def test_one_of_another_process_is_left_to_it(self, small: Path) -> None:
        read(small)
        [(_, theirs)] = bounded_reading._idle
        bounded_reading._idle[:] = [(os.getppid(), theirs)]
        read(small)
        assert idle() != [theirs.process.pid] and theirs.process.poll() is None
        theirs.end()

    def test_of_two_at_the_same_time_one_waits_on_and_the_other_ends(self, small: Path) -> None:
        outer = batches(small, rows=100)
        n = len(next(outer))
        assert read(small).num_rows == 5000
        (kept,) = idle()
        assert n + sum(len(part) for part in outer) == 5000
        assert idle() == [kept]

    def test_as_many_wait_on_as_can_work_at_the_same_time(
        self, small: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bounded_reading, "MOST_IDLE", 2)
        for _ in range(2):
            outer = batches(small, rows=100)
            next(outer)
            read(small)
            list(outer)
            kept = set(idle())
        list(batches(small))
        assert len(kept) == 2 and set(idle()) == kept

    def test_one_left_in_the_middle_of_an_answer_is_ended(self, small: Path) -> None:
        read(small)
        ((_, child),) = bounded_reading._idle
        started = batches(small, rows=10)
        next(started)
        started.close()
        assert child.process.poll() is not None and idle() == []

    def test_none_outlives_the_end_of_its_owner(self, small: Path) -> None:
        read(small)
        ((_, child),) = bounded_reading._idle
        bounded_reading._end_idle()
        assert child.process.poll() is not None


class TestPieces:
    def test_rows_asked_for_are_taken_from_every_group_and_piece(self, small: Path) -> None:
        wanted = [3, 99, 100, 101, 699, 700, 1399, 1400, 4200, 4999]
        found = [
            row for part in batches(small, ["step"], rows=100, at=wanted) for row in part["step"].to_pylist()
        ]
        assert found == wanted


class TestJsonOfMany:
    """What Python would take for it is counted by its marks."""

    SIZE = 5 << 20

    @pytest.mark.parametrize("unit", [b"{},", b"[],", b"[0,0,0,0,0,0,0]"])
    def test_a_text_that_fits_says_nothing(self, unit: bytes) -> None:
        check_values(unit * (self.SIZE // len(unit)))

    @pytest.mark.parametrize(
        ("unit", "each"), [(b"{},", 3 + 232 + 40), (b"[],", 3 + 64 + 40), (b"1,", 2 + 40)]
    )
    def test_it_is_refused_from_the_gigabyte_on(self, unit: bytes, each: int) -> None:
        n = bounded_reading.MOST_DECODED // each
        check_values(unit * n)
        with pytest.raises(ValueError, match=r"would take up to 1,024 MB; expected at most 1,024"):
            check_values(unit * (n + 1))

    def test_a_small_text_is_not_counted(self) -> None:
        check_values(b"{" * bounded_reading.SMALL)


def test_pandas_left_out_is_as_if_not_installed() -> None:
    code = (
        "from rollout_traces.model.bounded_reading import leave_pandas_out\nleave_pandas_out()\nimport pandas"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: pandas is left out")


def test_a_batch_is_handed_over_in_parts_of_as_many_bytes_as_one_may_have(monkeypatch):
    """What two processes hand each other is read whole: each part has to fit."""
    monkeypatch.setattr(bounded_reading, "MOST_PIECE", 800)
    batch = pa.record_batch({"n": pa.array(range(1000), pa.int64())})
    parts = list(bounded_reading._parts(batch))
    assert {part.num_rows for part in parts} == {100} and max(part.nbytes for part in parts) <= 800
    assert [n for part in parts for n in part["n"].to_pylist()] == list(range(1000))
    wide = pa.record_batch({"text": ["x" * 2000, "y" * 2000]})
    assert [part.num_rows for part in bounded_reading._parts(wide)] == [1, 1]
