"""A file of an export as the table holds it: its own columns, and those that its folders say."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store.export_index import MESSAGES, read_file


def parquet(**columns: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


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
