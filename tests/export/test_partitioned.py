from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.export import export_partitioned, partitioned
from rollout_traces.store import Store, open_store
from tests.store.conftest import shared_folder, store
from tests.store.projects import PROJECT, RUN, RUN_ID, make_ledger, write_step

__all__ = ["shared_folder", "store"]


class TestPartitions:
    def test_runs_and_steps_are_folders_that_any_reader_puts_together(
        self, store: Store, tmp_path: Path
    ) -> None:
        assert export_partitioned(store, tmp_path / "out") == 26
        assert (tmp_path / "out" / "run=run-001" / "step=1").is_dir()
        read = ds.dataset(tmp_path / "out", partitioning="hive").to_table()
        assert read.num_rows == 26 and sum(read["traced"].to_pylist()) == 10
        assert sorted(set(read["step"].to_pylist())) == [0, 1, 2]
        assert read.schema.field("reward").metadata[b"meaning"] == b"the reward"

    def test_a_filter_narrows_it(self, store: Store, tmp_path: Path) -> None:
        assert export_partitioned(store, tmp_path / "out", where="truncated", steps=(0, 1)) == 4

    def test_a_folder_with_something_in_it_is_left_alone(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "kept").write_text("x")
        with pytest.raises(ConfigError, match="not empty"):
            export_partitioned(store, tmp_path / "out")
        with pytest.raises(ConfigError, match="not empty"):
            export_partitioned(store, tmp_path / "out" / "kept")

    def test_lists_of_names_are_no_folders(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="expected columns with one value"):
            export_partitioned(store, tmp_path / "out", partition_by=["flags"])


class TestTexts:
    def read(self, folder: Path) -> dict[str, dict]:
        rows = ds.dataset(folder, partitioning="hive").to_table().to_pylist()
        return {row["uid"]: row for row in rows}

    def test_of_kept_rollouts_are_columns_and_of_others_null(self, store: Store, tmp_path: Path) -> None:
        export_partitioned(store, tmp_path / "out")
        rows = self.read(tmp_path / "out")
        assert "boxed" in rows["b1-0"]["messages"] and rows["b1-2"]["messages"] is None
        assert orjson.loads(rows["b1-0"]["metadata"])["uid"] == "b1-0" and rows["b1-2"]["metadata"] is None
        assert "spans" not in rows["b1-0"]

    def test_are_left_out_or_come_with_their_tokens_on_request(self, store: Store, tmp_path: Path) -> None:
        export_partitioned(store, tmp_path / "columns", conversations=False)
        assert not {"messages", "metadata", "spans"} & set(self.read(tmp_path / "columns")["b1-0"])
        export_partitioned(store, tmp_path / "tokens", conversations=False, tokens=True)
        rows = self.read(tmp_path / "tokens")
        assert orjson.loads(rows["b1-0"]["spans"]) and rows["b1-2"]["spans"] is None
        assert "boxed" in rows["b1-0"]["messages"]

    def test_more_rows_than_a_group_have_all_of_theirs(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(partitioned, "TEXT_ROW_GROUP", 4)
        assert export_partitioned(store, tmp_path / "out", partition_by=["split"]) == 26
        rows = self.read(tmp_path / "out")
        assert len(rows) == 26 and sum(row["messages"] is not None for row in rows.values()) == 10


class TestAbout:
    def about(self, folder: Path) -> dict:
        return orjson.loads((folder / partitioned.ABOUT).read_bytes())

    def test_runs_are_told_with_their_configurations(self, store: Store, tmp_path: Path) -> None:
        export_partitioned(store, tmp_path / "out")
        about = self.about(tmp_path / "out")
        [run] = about["runs"]
        assert (about["project"], run["name"], run["last_step"]) == (PROJECT, RUN, 2)
        assert run["config"] == store.config(RUN) and about["attempts"] == []

    def test_logged_numbers_lie_beside_the_rows(self, store: Store, tmp_path: Path) -> None:
        export_partitioned(store, tmp_path / "out")
        table = pa.ipc.open_file((tmp_path / "out" / partitioned.METRICS).read_bytes()).read_all()
        said = [(row["step"], orjson.loads(row["metrics"])) for row in table.to_pylist()]
        losses = {step: metrics["train/loss"] for step, metrics in said if "train/loss" in metrics}
        assert losses == {0: 1.0, 1: 0.5, 2: pytest.approx(1 / 3)}
        assert set(table["run_id"].to_pylist()) == {RUN_ID}

    def test_attempts_are_told_of_the_runs_that_are_written(self, trackio_dir: Path, tmp_path: Path) -> None:
        for run, attempt, step in (("r1", "a", 0), ("r1", "b", 1), ("r2", "c", 0)):
            column = np.asarray([attempt] * 2, object)
            ledger = make_ledger([[1.0, 0.0]], step=step, batch=f"{run}{attempt}", attempt=column)
            write_step(ledger, (), run=(run, run[-1] * 32))
        store = open_store(PROJECT)
        export_partitioned(store, tmp_path / "all")
        first = ["1" * 32, "rollout", "a", 0], ["1" * 32, "rollout", "b", 1]
        second = ["2" * 32, "rollout", "c", 0]
        assert self.about(tmp_path / "all")["attempts"] == [*first, second]
        export_partitioned(store, tmp_path / "one", runs=["r2"])
        assert self.about(tmp_path / "one")["attempts"] == [second]

    def test_of_no_run_there_is_nothing_to_tell(self, store: Store, tmp_path: Path) -> None:
        assert export_partitioned(store, tmp_path / "out", runs=[]) == 0
        assert self.about(tmp_path / "out")["runs"] == []
        assert orjson.loads((tmp_path / "out" / partitioned.HISTOGRAMS).read_bytes()) == []

    @pytest.mark.parametrize("column", ["nope", "labels_of"])
    def test_a_column_that_there_is_not_is_no_folder(self, store: Store, tmp_path: Path, column: str) -> None:
        with pytest.raises(ConfigError, match=f"partition_by: {column}: expected columns"):
            export_partitioned(store, tmp_path / "out", partition_by=["run", column])
