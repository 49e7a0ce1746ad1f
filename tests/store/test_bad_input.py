"""What no project should hold and nobody should ask: a clear error, and a store that goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store import QueryError, Store, open_store, places
from tests.store.projects import PROJECT, RUN, make_ledger, write_step, write_traces
from tests.store.projects import step_records as records_of


@pytest.fixture(scope="module")
def asked_by_all(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for every bad question; it still runs SQL when all of them are over."""
    store = open_store(
        PROJECT, folder=shared_folder, index_path=tmp_path_factory.mktemp("bad") / "index.sqlite3"
    )
    yield store
    assert store.sql("select count(*) as n from rollouts")["n"].to_pylist() == [26]
    store.close()


@pytest.fixture
def usable(asked_by_all: Store) -> Iterator[Store]:
    """A store that must still answer when the test is over."""
    yield asked_by_all
    asked_by_all.forget_answers()
    assert asked_by_all.count(where="reward >= 0", rows="all") == 23


class TestColumns:
    def test_ten_thousand_names_are_bounded_counted_and_stay_in_the_traces(
        self, trackio_dir: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        ledger = make_ledger([[1.0, 0.0]], step=0, traced=(0,))
        (record,) = records_of(ledger, (0,))
        record.metadata.update({f"own/m{at}": float(at) for at in range(10_000)})
        write_traces({"rollout/trajectories": [record]}, step=0)
        store = open_store(PROJECT)
        assert store.count() == 1 and store.count(where="`own/m7` = 7") == 1
        assert len(store.columns()) < 2100 and "have no column" in caplog.text
        assert store.record(store.query().rows[0].id or "").metadata["own/m9999"] == 9999.0

    def test_numbers_and_texts_in_one_column_are_texts(self, trackio_dir: Path) -> None:
        for step, value in enumerate((3, "three", None, [1, "x"], float("inf"))):
            (record,) = records_of(make_ledger([[1.0]], step=step), (0,))
            record.metadata["odd"] = value
            write_traces({"rollout/trajectories": [record]}, step=step)
        store = open_store(PROJECT)
        assert store.count(where="odd = 'three'") == 1
        assert store.query(order_by="-odd").total == 5
        found = store.histogram("odd", 4)
        assert (sum(found.counts), found.unknown, found.infinite) == (1, 3, ((float("inf"), 1),))

    @pytest.mark.parametrize(
        "name", ["'; DROP TABLE docs; --", 'a"b', "a\x00b", "\u202eevil", " ", "x" * 5000]
    )
    def test_hostile_names_of_columns_and_runs_are_names(self, trackio_dir: Path, name: str) -> None:
        run = name.replace("\x00", "") or "run"
        (record,) = records_of(make_ledger([[1.0]], step=0), (0,))
        record.metadata[name] = 1.0
        write_traces({"rollout/trajectories": [record]}, step=0, run=(run, "3" * 32))
        store = open_store(PROJECT)
        assert [info.name for info in store.runs()] == [run] and store.count(run=run) == 1
        assert store.rollouts().num_rows == store.sql("select * from rollouts").num_rows == 1
        assert store.query(order_by="-reward").total == 1

    def test_values_of_five_megabytes_are_cut_in_the_table_and_whole_in_the_trace(
        self, trackio_dir: Path
    ) -> None:
        ledger = make_ledger([[1.0]], step=0, traced=(0,))
        (record,) = records_of(ledger, (0,))
        record.messages[1]["content"] = "word " * 1_000_000
        record.metadata["note"] = "n" * 5_000_000
        write_traces({"rollout/trajectories": [record]}, step=0)
        store = open_store(PROJECT)
        row = store.query(text="word").rows[0]
        assert len(str(row["note"])) < 1000 and len(str(row["reply"])) < 1000
        whole = store.record(row.id or "")
        assert len(whole.metadata["note"]) == 5_000_000
        assert sum(len(str(m["content"])) for m in whole.messages) > 5_000_000

    def test_not_a_number_is_unknown(self, trackio_dir: Path) -> None:
        rewards = [float("nan"), float("inf"), -float("inf"), 1.0]
        write_step(make_ledger([rewards], step=0, advantage=np.asarray([np.nan] * 4)), ())
        store = open_store(PROJECT)
        assert store.rollouts(columns=["reward"])["reward"].null_count == 1
        found = store.histogram("reward", 4, rows="all")
        assert (found.unknown, found.infinite) == (1, ((-float("inf"), 1), (float("inf"), 1)))
        assert store.query(order_by="-reward", rows="all").total == 4


class TestQuestions:
    @pytest.mark.parametrize(
        "where",
        [
            "reward > 0 or " * 80_000 + "reward > 0",
            "(" * 1000 + "reward > 0" + ")" * 1000,
            "not " * 1000 + "reward > 0",
            "- " * 1000 + "1 < reward",
            "reward in [" + "1, " * 300_000 + "1]",
        ],
        ids=["1 MB", "1,000 levels", "1,000 nots", "1,000 signs", "1 MB of values"],
    )
    def test_a_filter_too_long_or_deep_is_one_sentence(self, usable: Store, where: str) -> None:
        with pytest.raises(QueryError):
            usable.count(where=where, rows="all")

    @pytest.mark.parametrize("pattern", ["(a+)+$", "(x|xx)*y", "((a*)*)*b", "^(([a-z])+.)+[A-Z]$"])
    def test_a_pathological_expression_takes_linear_time(self, trackio_dir: Path, pattern: str) -> None:
        texts = {0: (("user", "q"), ("assistant", "a" * 50_000 + "!"))}
        write_step(make_ledger([[1.0]], step=0, traced=(0,)), (0,), texts)
        store = open_store(PROJECT)
        started = time.process_time()
        store.count(where=f"text ~ '{pattern}'")
        assert time.process_time() - started < 20

    @pytest.mark.parametrize("pattern", ["(", "a{1000000}", "(?<=a)b", "\\1"])
    def test_what_is_no_expression_points_at_it(self, usable: Store, pattern: str) -> None:
        with pytest.raises(QueryError):
            usable.count(where=f"text ~ '{pattern}'")

    @pytest.mark.parametrize(
        "statement",
        [
            "insert into rollouts select * from rollouts",
            "create table mine as select * from rollouts",
            "attach 'x.db' as other",
            "copy (select 1) to 'x.csv'",
            "install httpfs",
            "set enable_external_access = true",
            "pragma database_list",
            "select * from read_csv('x.csv')",
            "select * from 'x.parquet'",
            "select * from glob('*')",
            "select getenv('HOME')",
            "",
            "select",
        ],
    )
    def test_sql_that_writes_attaches_or_reads_files_is_refused(
        self, usable: Store, statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.iterdir())
        with pytest.raises(StoreError):
            usable.sql(statement)
        assert sorted(tmp_path.iterdir()) == before

    def test_sql_that_never_ends_is_stopped(self, usable: Store) -> None:
        with pytest.raises(StoreError, match="longer than 1 seconds"):
            usable.sql(
                "with recursive r(n) as (select 1 union all select n + 1 from r) select max(n) from r",
                timeout=1,
            )


class TestWhereTheIndexLies:
    def test_a_network_mount_has_its_index_in_the_cache(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mounts = tmp_path / "mounts"
        mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path}/shared\\040disk nfs4 rw 0 0\n")
        shared = tmp_path / "shared disk"
        shared.mkdir()
        assert places.on_network(shared, mounts) and not places.on_network(tmp_path, mounts)
        monkeypatch.setattr(places, "on_network", lambda path: True)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert places.local_index_path(shared / "p.db").is_relative_to(tmp_path / "cache")

    def test_a_refresh_that_is_killed_leaves_a_usable_index(self, trackio_dir: Path) -> None:
        for step in range(40):
            write_step(make_ledger([[0.5] * 20], step=step), range(20))
        context = multiprocessing.get_context("spawn")
        for wait in (0.0, 0.05, 0.2):
            begun = context.Event()
            worker = context.Process(target=_index_slowly, args=(str(trackio_dir), begun))
            worker.start()
            begun.wait(60)
            time.sleep(wait)
            os.kill(worker.pid or 0, signal.SIGKILL)
            worker.join()
            store = open_store(PROJECT)
            assert store.count() == store.rollouts().num_rows == 800
            store.index_anew()
            store.close()
            for path in (trackio_dir / "rollout-index").rglob("*.sqlite3*"):
                path.unlink()
        assert open_store(PROJECT).count(run=RUN) == 800


def _index_slowly(folder: str, begun) -> None:
    """Indexes batch by batch, each a transaction and a segment, and joins them."""
    os.environ["TRACKIO_DIR"] = folder
    from rollout_traces.store import manifest
    from rollout_traces.store.source import Source

    Source.page = 50
    manifest.FAN = 4
    begun.set()
    while True:
        opened = open_store(PROJECT)
        opened.rebuild()
        opened.close()
