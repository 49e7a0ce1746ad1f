from __future__ import annotations

import logging
import multiprocessing
import shutil
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store import Store, manifest, open_store, rollout_table, source
from rollout_traces.store.asking import Asking
from rollout_traces.store.source import LocalSource
from tests.store.projects import PROJECT, RUN, RUN_ID, conversation, make_ledger, store_values, write_step

OTHER = ("run-002", "2" * 32)


def uids(store) -> list[str]:
    return sorted(row["uid"] for row in store.query(limit=1000).rows)


def test_folders_may_be_given_as_text(shared_folder: Path, tmp_path: Path) -> None:
    """Seen once: a text for the index's folder was a raw TypeError."""
    store = open_store(PROJECT, folder=str(shared_folder), index_path=str(tmp_path / "index"))
    assert store.count() and (tmp_path / "index").exists()
    store.close()


class TestLiveRuns:
    def test_only_what_is_new_is_read(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0, 1.0]], step=0, traced=(0, 1)), (0, 1))
        store = open_store(PROJECT)
        assert store.refresh() == 0
        write_step(make_ledger([[0.0, 1.0]], step=1, traced=(0,)), (0,))
        assert store.refresh() == 2  # the trace and the step summary
        assert uids(store) == ["b0-0", "b0-1", "b1-0"]
        assert store.runs()[0].last_step == 1

    def test_counts_follow_what_is_new(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0, 1.0]], step=0), (0, 1))
        store = open_store(PROJECT)
        assert store.count(where="reward > 0.5") == 1
        write_step(make_ledger([[1.0, 1.0]], step=1), (0, 1))
        store.refresh()
        assert store.count(where="reward > 0.5") == 3

    def test_new_rows_do_not_move_the_next_page(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0, 1.0, 0.5, 0.25]], step=0), (0, 1, 2, 3))
        store = open_store(PROJECT)
        first = store.query(limit=2)
        write_step(make_ledger([[0.9]], step=1), (0,))
        store.refresh()
        second = store.query(limit=2, after=first.next)
        assert [row["uid"] for row in first.rows + second.rows] == ["b0-0", "b0-1", "b0-2", "b0-3"]

    def test_a_new_metadata_name_becomes_a_column(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0]], step=0), (0,))
        store = open_store(PROJECT)
        write_step(make_ledger([[0.0]], step=1, **{"component/style": np.asarray([0.75])}), (0,))
        store.refresh()
        assert store.query(where="component/style > 0.5").rows[0].step == 1

    def test_scalars_go_on_where_they_ended(self, trackio_dir: Path) -> None:
        store_values({"loss": 1.0, "bad": float("inf"), "flag": True, "text": "x"}, step=0)
        store = open_store(PROJECT)
        assert store.metrics(RUN) == {"loss": ([0], [1.0]), "bad": ([0], [float("inf")])}
        store.metrics(RUN)["loss"][1].append(99.0)
        store_values({"loss": 0.5}, step=1)
        assert store.metrics(RUN)["loss"] == ([0, 1], [1.0, 0.5])

    def test_a_project_without_traces_has_runs_and_no_rows(self, trackio_dir: Path) -> None:
        store_values({"loss": 1.0}, step=3)
        store = open_store(PROJECT)
        assert [(run.name, run.n_traces, run.last_step) for run in store.runs()] == [(RUN, 0, 3)]
        assert store.query().rows == () and store.groups(RUN, "rollout", 0).groups == ()

    def test_progress_is_reported_up_to_the_whole(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0] * 3], step=0), (0, 1, 2))
        seen: list[tuple[int, int]] = []
        store = open_store(PROJECT, refresh=False)
        store.refresh(lambda done, total: seen.append((done, total)))
        assert seen[-1] == (4, 4)


class TestLargeTraces:
    def test_few_large_traces_are_read_at_a_time(
        self, trackio_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        texts = dict.fromkeys(range(4), (("user", "x"), ("assistant", "word " * 4000)))
        write_step(make_ledger([[0.0] * 6], step=0), range(6), texts)
        monkeypatch.setattr(source, "PAGE_BYTES", 45_000)
        store = open_store(PROJECT, refresh=False)
        sizes, after = [], 0
        while page := store.source.traces(after):
            sizes.append(len(page))
            after = page[-1].rowid
        assert sizes == [2, 5]
        assert store.refresh() == 7 and len(uids(store)) == 6

    def test_many_pages_are_indexed_as_one_page_is(
        self, trackio_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for step in range(3):
            write_step(make_ledger([[0.0] * 6], step=step), range(6))
        whole = open_store(PROJECT, index_path=tmp_path / "whole")
        monkeypatch.setattr(LocalSource, "page", 2)
        progress: list[tuple[int, int]] = []
        paged = open_store(PROJECT, refresh=False, index_path=tmp_path / "paged")
        assert paged.refresh(lambda *done: progress.append(done)) == 21
        assert [done for done, _ in progress] == [*range(2, 21, 2), 21]
        assert paged.rollouts().sort_by("uid").equals(whole.rollouts().sort_by("uid"))
        assert paged.count(text="answer") == whole.count(text="answer")

    def test_a_message_of_megabytes_is_indexed_and_read(self, trackio_dir: Path) -> None:
        message = {"role": "assistant", "content": "filler " * 700_000 + "needle"}
        store_values(conversation("chat", [message]), step=0)
        store = open_store(PROJECT)
        assert store.search("needle").rows[0]["snippet"].endswith("needle")


class TestHandedOverAgain:
    def test_the_newer_trace_of_a_rollout_replaces_the_older(self, trackio_dir: Path) -> None:
        texts = {0: (("user", "again?"), ("assistant", "the second time"))}
        write_step(make_ledger([[0.0]], step=0), (0,))
        write_step(make_ledger([[0.75]], step=0), (0,), texts)
        store = open_store(PROJECT)
        (row,) = store.query().rows
        assert (row["reward"], row["reply"]) == (0.75, "the second time")
        assert store.count(text="answer") == 0

    def test_the_newer_ledger_of_a_step_replaces_its_rows(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0, 0.25]], step=0), ())
        write_step(make_ledger([[0.5, 0.75]], step=0), ())
        store = open_store(PROJECT)
        assert [row["reward"] for row in store.query(rows="all", order_by="sample").rows] == [0.5, 0.75]
        assert store.ledger().get("reward").tolist() == [0.5, 0.75]
        assert store.steps(RUN, "rollout")[0].n_rollouts == 2 == store.runs()[0].n_rollouts

    def test_two_hand_overs_of_one_step_add_up(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0, 0.25]], step=0), ())
        write_step(make_ledger([[0.5]], step=0, batch="c"), ())
        assert open_store(PROJECT).steps(RUN, "rollout")[0].n_rollouts == 3


class TestDeletedAndRenamed:
    def test_a_deleted_run_disappears(self, trackio_dir: Path) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        write_step(make_ledger([[0.0]], step=0), (0,))
        write_step(make_ledger([[1.0]], step=0, batch="x"), (0,), run=OTHER)
        store = open_store(PROJECT)
        SQLiteStorage.delete_run(PROJECT, RUN, RUN_ID)
        store.refresh()
        assert uids(store) == ["x0-0"]
        assert [run.name for run in store.runs()] == ["run-002"]
        assert store.ledger().get("uid").tolist() == ["x0-0"]

    def test_rowids_given_out_again_are_noticed(self, trackio_dir: Path) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        write_step(make_ledger([[0.0]], step=0), (0,))
        write_step(make_ledger([[1.0, 1.0]], step=0, batch="x"), (0, 1), run=OTHER)
        store = open_store(PROJECT)
        SQLiteStorage.delete_run(PROJECT, *OTHER)
        write_step(make_ledger([[0.5, 0.5, 0.5]], step=1, batch="y"), (0, 1, 2))
        store.refresh()
        assert uids(store) == ["b0-0", "y1-0", "y1-1", "y1-2"]

    def test_a_renamed_run_is_found_by_its_new_name(self, trackio_dir: Path) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        write_step(make_ledger([[0.0]], step=0), (0,))
        store = open_store(PROJECT)
        SQLiteStorage.rename_run(PROJECT, RUN, "better-name", RUN_ID)
        store.refresh()
        assert store.query(run="better-name").rows[0].run == "better-name"

    def test_two_runs_of_one_name_are_told_apart_by_id(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0]], step=0), (0,))
        write_step(make_ledger([[1.0]], step=0, batch="x"), (0,), run=(RUN, OTHER[1]))
        store = open_store(PROJECT)
        with pytest.raises(StoreError, match="2 runs are meant by 'run-001'; give the id"):
            store.query(run=RUN)
        assert store.query(run=OTHER[1]).rows[0]["uid"] == "x0-0"


class TestNeverAuthoritative:
    """An index without a table; text in a step column: once stayed broken; a raw ValueError."""

    def test_trackio_does_not_take_the_index_for_a_project(self, trackio_dir: Path) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        write_step(make_ledger([[0.0]], step=0), (0,))
        store = open_store(PROJECT)
        assert store.index_path.exists() and trackio_dir in store.index_path.parents
        assert SQLiteStorage.get_projects() == [PROJECT]

    @pytest.mark.parametrize("damage", [b"this is no database" * 100, b""])
    def test_a_damaged_file_is_built_anew_with_a_word(
        self, trackio_dir: Path, damage: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_step(make_ledger([[0.0]], step=0), (0,))
        store = open_store(PROJECT)
        path = store.index_path / "index.sqlite3"
        store.close()
        path.write_bytes(damage)
        with caplog.at_level(logging.WARNING, "rollout_traces"):
            assert uids(open_store(PROJECT)) == ["b0-0"]
        assert ("built anew" in caplog.text) == bool(damage)

    @pytest.mark.parametrize(
        "spoil",
        [
            "UPDATE segments SET kinds = '{\"uid\"'",
            "UPDATE segments SET kinds = x'ff00'",
            "UPDATE attempts SET attempt = x'00'",
        ],
    )
    def test_values_that_nobody_wrote_are_built_anew(self, trackio_dir: Path, spoil: str) -> None:
        write_step(make_ledger([[0.0] * 8], step=0, attempt=np.asarray(["a"] * 8, object)), range(8))
        store = open_store(PROJECT)
        path = store.index_path / "index.sqlite3"
        store.close()
        with sqlite3.connect(path) as connection:
            connection.execute(spoil)
        found = open_store(PROJECT)
        assert len(uids(found)) == 8 and len(uids(open_store(PROJECT))) == 8

    def test_a_page_that_is_damaged_is_built_anew(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0] * 8], step=0), range(8))
        store = open_store(PROJECT)
        path = store.index_path / "index.sqlite3"
        store.close()
        content = bytearray(path.read_bytes())
        content[4096:] = b"\xff" * (len(content) - 4096)
        path.write_bytes(content)
        assert len(uids(open_store(PROJECT))) == 8

    def test_another_version_is_built_anew_with_a_word(
        self, trackio_dir: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_step(make_ledger([[0.0]], step=0), (0,))
        store = open_store(PROJECT)
        store.close()
        with sqlite3.connect(store.index_path / "index.sqlite3") as connection:
            connection.execute("PRAGMA user_version = 999")
            connection.execute("DELETE FROM docs")
        with caplog.at_level(logging.WARNING, "rollout_traces"):
            assert uids(open_store(PROJECT)) == ["b0-0"]
        assert f"version 999, expected {manifest.INDEX_VERSION}" in caplog.text

    def test_damage_found_by_a_query_is_said_and_mended_by_the_next_refresh(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0] * 50], step=0), range(50))
        store = open_store(PROJECT)
        store.close()
        path = store.index_path / "index.sqlite3"
        content = bytearray(path.read_bytes())
        content[16384:] = b"\xff" * (len(content) - 16384)
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"damaged .* built anew at the next refresh"):
            store.query(where="text 'question'", order_by="reply", limit=1000)
        store.refresh()
        assert len(uids(store)) == 50

    def test_an_index_that_is_removed_while_open_comes_back(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0]], step=0), (0,))
        store = open_store(PROJECT)
        shutil.rmtree(store.index_path)
        assert store.refresh() == 2 and uids(store) == ["b0-0"]

    def test_an_index_that_another_process_replaced_is_followed(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0]], step=0), (0,))
        one = open_store(PROJECT)
        assert len(uids(one)) == 1
        shutil.rmtree(one.index_path)
        write_step(make_ledger([[0.0]], step=1), (0,))
        open_store(PROJECT)
        assert uids(one) == ["b0-0", "b1-0"]

    def test_rebuilding_gives_the_same_rows(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0, 1.0]], step=0, traced=(0,)), (0,))
        store = open_store(PROJECT)
        before = [row.as_dict() for row in store.query(rows="all").rows]
        assert store.rebuild() == 2
        assert [row.as_dict() for row in store.query(rows="all").rows] == before


class TestColumnsLimit:
    def test_names_beyond_the_limit_stay_in_the_trace(
        self, trackio_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(manifest, "MAX_COLUMNS", 40)
        many = {f"sample/m{i}": np.asarray([float(i)]) for i in range(60)}
        write_step(make_ledger([[0.0]], step=0, **many), (0,))
        with caplog.at_level(logging.WARNING, "rollout_traces"):
            store = open_store(PROJECT)
        row = store.query().rows[0]
        assert row["sample/m59"] is None
        assert store.record(row.id or "").metadata["sample/m59"] == 59.0
        assert "no column" in caplog.text


class TestKeptCondensed:
    def test_answers_as_any_other_while_rows_come_and_a_page_is_read(
        self, trackio_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rollout_table, "CONDENSED_TOGETHER", 5)
        write_step(make_ledger([[0.0, 0.5, 1.0]], step=0), (0, 1, 2))
        plain, condensed = open_store(PROJECT), open_store(PROJECT)
        condensed.keep_condensed()
        for n in range(1, 6):
            assert uids(plain) == uids(condensed) and len(uids(condensed)) == 3 * n

            def grow(asking: Asking, n: int = n) -> int:
                write_step(make_ledger([[0.0, 0.5, 1.0]], step=n), (0, 1, 2))
                plain.refresh()
                condensed.refresh()
                assert len(uids(condensed)) == 3 * n + 3
                [(count,)] = asking.cursor.execute("SELECT count(*) FROM rows").fetchall()
                return int(count)

            assert condensed._index.ask(grow) == 3 * n, "what is being read stays as it was"


class TestSeveralAtOnce:
    def test_threads_that_refresh_and_read_see_every_row_once(self, trackio_dir: Path) -> None:
        store = open_store(PROJECT) if (trackio_dir / f"{PROJECT}.db").exists() else None
        write_step(make_ledger([[0.0]], step=0), (0,))
        store = store or open_store(PROJECT)
        stop, wrong = threading.Event(), []

        def look() -> None:
            try:
                while not stop.is_set():
                    store.refresh()
                    found = uids(store)
                    if len(found) != len(set(found)):
                        wrong.append(found)
            except Exception as error:  # noqa: BLE001
                wrong.append(error)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for step in range(1, 15):
            write_step(make_ledger([[0.5, 1.0]], step=step), (0, 1))
        stop.set()
        for thread in threads:
            thread.join()
        store.refresh()
        assert wrong == [] and len(uids(store)) == 29

    def test_an_index_built_anew_while_it_is_filled_loses_no_row(
        self, trackio_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for step in range(3):
            write_step(make_ledger([[0.5] * 4], step=step), range(4))
        store, real = open_store(PROJECT), LocalSource.traces
        assert len(uids(store)) == 12
        write_step(make_ledger([[0.5] * 4], step=3), range(4))

        def built_anew_meanwhile(*args):
            page = real(*args)
            monkeypatch.setattr(LocalSource, "traces", real)
            _empty(open_store(PROJECT))
            return page

        monkeypatch.setattr(LocalSource, "traces", built_anew_meanwhile)
        store.refresh()
        store.refresh()
        assert len(uids(store)) == 16

    def test_an_index_that_lacks_rows_below_its_watermark_is_built_anew(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.5] * 4], step=0), range(4))
        store = open_store(PROJECT)
        assert len(uids(store)) == 4
        with sqlite3.connect(store.index_path / "index.sqlite3") as db:
            watermark = db.execute("SELECT value FROM meta WHERE name = 'watermark'").fetchone()[0]
        _empty(store)
        with sqlite3.connect(store.index_path / "index.sqlite3") as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('watermark', ?)", (watermark,))
        write_step(make_ledger([[0.5] * 4], step=1), range(4))
        store.refresh()
        store.refresh()
        assert len(uids(store)) == 8

    def test_processes_that_index_at_once_add_every_row_once(self, trackio_dir: Path) -> None:
        for step in range(20):
            write_step(make_ledger([[0.5] * 20], step=step), range(20))
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=_index, args=(str(trackio_dir),)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        assert len(uids(open_store(PROJECT))) == 400


def _empty(store: Store) -> None:
    """The tables made anew, as by a process of another version, and not filled yet."""
    with store._index._transaction() as connection:
        store._index._make_tables(connection)


def _index(folder: str) -> None:
    assert open_store(PROJECT, folder=Path(folder)).count() == 400
