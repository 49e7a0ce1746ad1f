"""A file of an export as the table holds it: its own columns, and those that its folders say; and the index of all of them."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store import Store, open_store
from rollout_traces.store.export_index import MESSAGES, read_file
from tests.store.projects import RUN


def parquet(**columns: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


@pytest.fixture
def opened(exported: Path):
    found = open_store(str(exported))
    yield found
    found.close()


class TestFolders:
    def test_say_a_value_of_their_columns_kind(self) -> None:
        data = parquet(reward=[0.5, 1.0])
        found = read_file(data, "run=7/split=1/step=3/advantage=2/part-0.parquet")
        assert [(name, found[name].to_pylist()) for name in ("run", "split", "step", "advantage")] == [
            ("run", ["7", "7"]),
            ("split", ["1", "1"]),
            ("step", [3, 3]),
            ("advantage", [2.0, 2.0]),
        ]

    @pytest.mark.parametrize(
        ("text", "value"), [("7", 7), ("0.5", 0.5), ("seven", "seven"), ("a%20b%3Dc", "a b=c")]
    )
    def test_of_a_column_that_nobody_knows_say_what_they_look_like(self, text: str, value: object) -> None:
        found = read_file(parquet(step=[1]), f"run=r/mine={text}/part-0.parquet")
        assert found["mine"].to_pylist() == [value]

    def test_say_that_a_value_is_unknown(self) -> None:
        found = read_file(parquet(step=[1]), "run=r/source=__HIVE_DEFAULT_PARTITION__/part-0.parquet")
        assert found["source"].to_pylist() == [None]

    def test_that_say_no_column_and_the_files_own_name_are_passed_over(self) -> None:
        found = read_file(parquet(step=[1]), "here/run=r/step=9.parquet")
        assert found["step"].to_pylist() == [1] and set(found.column_names) == {"run", "step"}

    def test_go_before_the_columns_of_the_file(self) -> None:
        assert read_file(parquet(step=[1]), "run=r/step=2/part-0.parquet")["step"].to_pylist() == [2]


class TestColumns:
    def test_a_step_that_is_unknown_is_none(self) -> None:
        found = read_file(parquet(run=["a", "a"], step=pa.array([4, None], pa.int64())), "part-0.parquet")
        assert found["step"].to_pylist() == [4, -1]

    @pytest.mark.parametrize("columns", [{"run": ["a"]}, {"step": [1]}])
    def test_without_a_run_or_a_step_are_refused(self, columns: dict) -> None:
        with pytest.raises(StoreError, match=r"part-0.parquet: its columns say no run and step"):
            read_file(parquet(**columns), "part-0.parquet")

    def test_a_run_may_be_told_by_its_id_alone(self) -> None:
        assert read_file(parquet(run_id=["a"], step=[1]), "part-0.parquet")["run_id"].to_pylist() == ["a"]

    def test_lists_of_texts_are_tags_and_what_the_table_cannot_hold_is_left_out(self) -> None:
        columns = {
            "flags": pa.array([["a", "b"]]),
            "none": pa.array([[]], pa.list_(pa.null())),
            "large": pa.array([["c"]], pa.large_list(pa.string())),
            "numbers": pa.array([[1, 2]]),
            "nested": pa.array([{"a": 1}]),
            "bytes": pa.array([b"x"]),
            "nothing": pa.nulls(1),
            "category": pa.array(["x"]).dictionary_encode(),
            "small": pa.array([3], pa.int8()),
        }
        found = read_file(parquet(run=["a"], step=[1], **columns), "part-0.parquet")
        assert {name: found[name].to_pylist()[0] for name in found.column_names if name in columns} == {
            "flags": ["a", "b"],
            "none": [],
            "large": ["c"],
            "category": "x",
            "small": 3,
        }

    def test_texts_are_left_in_the_file_but_for_the_conversations(self) -> None:
        texts = {MESSAGES: ["[]"], "prompt": ["a"], "reply": ["b"]}
        found = read_file(parquet(run=["a"], step=[1], **texts), "part-0.parquet")
        assert found[MESSAGES].to_pylist() == ["[]"]


class TestOpening:
    def test_says_how_far_it_is_up_to_the_whole(self, exported: Path) -> None:
        """Seen once: half a minute without a line."""
        said: list[tuple[int, int]] = []
        opened = open_store(str(exported), refresh=False)
        opened.refresh(lambda *done: said.append(done))
        n_files = len(list(exported.glob("run=*/**/*.parquet")))
        assert n_files > 1 and said[-1] == (n_files, n_files)
        opened.close()


class TestWhatChanges:
    def test_a_new_file_is_read_and_no_other(self, exported: Path, opened: Store) -> None:
        file = next(exported.glob("run=*/step=2/*.parquet"))
        later = exported / f"run={RUN}" / "step=3"
        later.mkdir()
        shutil.copy(file, later / file.name)
        assert opened.refresh() == 4 and opened.refresh() == 0
        assert opened.count(steps=(3, 3)) == 4 and opened.count() == 14

    def test_a_file_that_went_takes_its_rows_along(self, exported: Path, opened: Store) -> None:
        next(exported.glob("run=*/step=2/*.parquet")).unlink()
        opened.refresh()
        assert opened.count() == 6 and opened.count(steps=(2, 2)) == 0

    def test_a_damaged_file_is_left_out_and_said(
        self, exported: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        file = next(exported.glob("run=*/step=2/*.parquet"))
        file.write_bytes(file.read_bytes()[:200])
        assert open_store(str(exported)).count() == 6
        assert "step=2/part-0.parquet: is no whole parquet file" in caplog.text

    def test_a_damaged_segment_is_built_again(self, opened: Store) -> None:
        for segment in (opened.index_path / "segments").iterdir():
            segment.write_bytes(b"nothing")
        with pytest.raises(StoreError, match="damaged"):
            opened.rollouts()
        opened.refresh()
        assert opened.rollouts().num_rows == 26


class TestFilesOfAnotherWriter:
    def test_rows_of_another_writer_are_read(self, tmp_path: Path) -> None:
        folder = tmp_path / "theirs" / "run=other"
        folder.mkdir(parents=True)
        table = pa.table(
            {
                "step": pa.array([1, 2], pa.int32()),
                "reward": pa.array([0.5, None], pa.float32()),
                "tools": [["a"], []],
                "blob": [b"x", b"y"],
            }
        )
        pq.write_table(table, folder / "rows.parquet")
        opened = open_store(str(tmp_path / "theirs"))
        assert opened.rollouts(columns=["run", "split", "step", "reward", "tools"]).to_pylist() == [
            {"run": "other", "split": "rollout", "step": 1, "reward": 0.5, "tools": ["a"]},
            {"run": "other", "split": "rollout", "step": 2, "reward": None, "tools": []},
        ]

    def test_rows_without_a_step_are_refused(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "theirs").mkdir()
        pq.write_table(pa.table({"reward": [1.0]}), tmp_path / "theirs" / "rows.parquet")
        assert open_store(str(tmp_path / "theirs")).runs() == []
        assert "say no run and step" in caplog.text

    def test_kept_rollouts_are_counted_and_files_without_rows_are_none(self, tmp_path: Path) -> None:
        folder = tmp_path / "theirs" / "run=other"
        folder.mkdir(parents=True)
        rows = pa.table({"step": [1, 1, 2], "id": ["a", None, "c"], "uid": ["u", "v", "w"]})
        pq.write_table(rows, folder / "rows.parquet")
        pq.write_table(rows.slice(0, 0), folder / "empty.parquet")
        opened = open_store(str(tmp_path / "theirs"), refresh=False)
        assert opened.refresh() == 2 and opened.refresh() == 0
        found = opened.rollouts(columns=["id", "uid", "step", "traced"]).to_pylist()
        assert [(row["id"], row["uid"], row["step"], row["traced"]) for row in found] == [
            ("a", "u", 1, True),
            (None, "v", 1, False),
            ("c", "w", 2, True),
        ]
        opened.close()

    def test_runs_splits_and_kinds_are_told_from_one_another(self, tmp_path: Path) -> None:
        (tmp_path / "theirs").mkdir()
        rows = pa.table(
            {
                "run_id": ["1", "2", "2"],
                "run": ["one", None, "two"],
                "split": ["rollout", None, "eval-rollout"],
                "step": [1, 1, 2],
                "kind": ["rollout", "", "note"],
                "late": [True, False, None],
            }
        )
        pq.write_table(rows, tmp_path / "theirs" / "rows.parquet")
        opened = open_store(str(tmp_path / "theirs"))
        assert {run.id for run in opened.runs()} == {"1", "2"}
        found = opened.rollouts(columns=["run_id", "split", "step"]).to_pylist()
        assert {(row["run_id"], row["split"], row["step"]) for row in found} >= {
            ("1", "rollout", 1),
            ("2", "rollout", 1),
        }
        opened.close()
