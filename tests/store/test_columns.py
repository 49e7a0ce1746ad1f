from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.export import write_side_table
from rollout_traces.store import QueryError, Store, open_store
from tests.store.conftest import shared_folder
from tests.store.projects import PROJECT

__all__ = ["shared_folder"]


@pytest.fixture
def store(shared_folder: Path, tmp_path: Path):
    shutil.copytree(shared_folder, tmp_path / "trackio")
    opened = open_store(PROJECT, folder=tmp_path / "trackio")
    yield opened
    opened.close()


def judged(store: Store, **columns: list) -> pa.Table:
    ids = [row.id for row in store.query(order_by="uid").rows]
    return pa.table({"id": ids, **{name: values[: len(ids)] for name, values in columns.items()}})


class TestSideTables:
    def test_its_columns_are_filtered_sorted_counted_and_read(self, store: Store) -> None:
        write_side_table(store, "judge", judged(store, score=[float(n) for n in range(10)]))
        page = store.query(where="score >= 7", order_by="-score", columns=["score"])
        assert [row["score"] for row in page.rows] == [9.0, 8.0, 7.0]
        assert store.rollouts(columns=["score"])["score"].null_count == 16
        assert store.count(where="score is null", rows="all") == 16
        assert store.histogram("score", 2).counts == (5, 5)
        assert store.sql("select max(score) as m from rollouts")["m"].to_pylist() == [9.0]

    def test_its_meaning_is_listed(self, store: Store) -> None:
        write_side_table(store, "judge", judged(store, score=[1.0] * 10), {"score": "the judge's, 0 to 10"})
        assert {c.name: c.meaning for c in store.columns()}["score"] == "the judge's, 0 to 10"

    def test_a_newer_one_replaces_it_for_a_store_that_is_open(self, store: Store) -> None:
        write_side_table(store, "judge", judged(store, score=[1.0] * 10))
        assert store.count(where="score = 1") == 10
        write_side_table(store, "judge", judged(store, score=[2.0] * 10))
        assert store.count(where="score = 1") == 0 and store.count(where="score = 2") == 10

    def test_a_rebuilt_index_keeps_it(self, store: Store) -> None:
        write_side_table(store, "judge", judged(store, score=[1.0] * 10))
        store.rebuild()
        assert store.count(where="score = 1") == 10

    def test_traces_that_are_gone_do_not_matter(self, store: Store) -> None:
        table = pa.concat_tables([judged(store, score=[1.0] * 10), pa.table({"id": ["x"], "score": [5.0]})])
        write_side_table(store, "judge", table)
        assert store.count(where="score > 0", rows="all") == 10

    def test_a_column_of_the_tables_own_stays(self, store: Store, caplog: pytest.LogCaptureFixture) -> None:
        write_side_table(store, "judge", judged(store, reward=[-5.0] * 10))
        assert store.count(where="reward = -5") == 0
        assert "columns that the table has by itself; they are left out: reward" in caplog.text

    def test_a_damaged_one_is_left_out(self, store: Store, caplog: pytest.LogCaptureFixture) -> None:
        write_side_table(store, "judge", judged(store, score=[1.0] * 10))
        folder = Path(store.side_folder)
        (folder / "broken.parquet").write_bytes(b"PAR1")
        pq.write_table(pa.table({"other": [1]}), folder / "keyless.parquet")
        assert store.count(where="score = 1") == 10
        assert "broken.parquet is left out" in caplog.text and "no column id" in caplog.text

    def test_it_goes_with_its_file(self, store: Store) -> None:
        path = write_side_table(store, "judge", judged(store, score=[1.0] * 10))
        assert store.count(where="score = 1") == 10
        Path(path).unlink()
        with pytest.raises(QueryError, match="score"):
            store.count(where="score = 1")

    def test_rows_without_ids_or_with_lists_are_refused(self, store: Store) -> None:
        with pytest.raises(ConfigError, match="expected `id` and at least one more"):
            write_side_table(store, "judge", pa.table({"score": [1.0]}))
        with pytest.raises(ConfigError, match="expected one value a row"):
            write_side_table(store, "judge", pa.table({"id": ["a"], "names": [["x"]]}))
        with pytest.raises(ConfigError):
            write_side_table(store, "../judge", judged(store, score=[1.0] * 10))
