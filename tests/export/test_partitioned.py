from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.export import export_partitioned
from rollout_traces.store import Store
from tests.store.conftest import shared_folder, store

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
