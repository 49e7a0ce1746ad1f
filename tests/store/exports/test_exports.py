from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.export import export_partitioned
from rollout_traces.store import Store, open_store
from rollout_traces.store.export_source import METRICS
from tests.store.projects import PROJECT, RUN


@pytest.fixture
def opened(exported: Path):
    found = open_store(str(exported))
    yield found
    found.close()


class TestWhatIsReadBack:
    def test_every_column_of_every_rollout(self, store: Store, opened: Store) -> None:
        before, after = store.rollouts(), opened.rollouts()
        assert set(before.column_names) == set(after.column_names)
        keys = [("run_id", "ascending"), ("split", "ascending"), ("uid", "ascending")]
        for name in before.column_names:
            a, b = before.sort_by(keys)[name].to_pylist(), after.sort_by(keys)[name].to_pylist()
            assert str(a) == str(b), name

    def test_runs_steps_and_groups(self, store: Store, opened: Store) -> None:
        assert opened.runs() == store.runs()
        steps = [(s.step, s.n_traces, s.n_rollouts) for s in opened.steps(RUN, "rollout")]
        assert steps == [(s.step, s.n_traces, s.n_rollouts) for s in store.steps(RUN, "rollout")]
        for a, b in zip(
            opened.groups(RUN, "rollout", 1).groups, store.groups(RUN, "rollout", 1).groups, strict=True
        ):
            assert (a.group, a.rewards, a.prompt, a.tied) == (b.group, b.rewards, b.prompt, b.tied)
            assert [row.id for row in a.traces] == [row.id for row in b.traces]

    def test_conversations_and_tokens(self, store: Store, opened: Store) -> None:
        for row in store.query().rows:
            assert opened.record(row.id or "") == store.record(row.id or "")
            a, b = opened.transcript(row.id or ""), store.transcript(row.id or "")
            assert a is not None and b is not None
            assert np.array_equal(a.tokens.input_ids, b.tokens.input_ids)
        assert opened.messages("b1-0") == store.messages("b1-0")

    def test_searches(self, store: Store, opened: Store) -> None:
        for text in ("boxed{4", '"cannot be wrong"', "答案", "annot"):
            assert opened.count(text=text) == store.count(text=text)
        assert opened.count(where="reply ~ 'cann[o]t'") == store.count(where="reply ~ 'cann[o]t'") > 0
        assert "boxed" in str(opened.search("boxed{42}").rows[0]["snippet"])

    def test_logged_numbers_and_configurations(self, store: Store, opened: Store) -> None:
        assert opened.metrics(RUN)["train/loss"] == store.metrics(RUN)["train/loss"]
        assert opened.config(RUN) == store.config(RUN)
        assert opened.ledger(RUN, "rollout").n_rows == store.ledger(RUN, "rollout").n_rows

    def test_an_unknown_trace_is_named(self, opened: Store) -> None:
        with pytest.raises(StoreError, match="no trace 'nobody'"):
            opened.record("nobody")


class TestAddresses:
    def test_a_bare_name_is_a_folder_where_there_is_no_such_project(
        self, exported: Path, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(exported.parent)
        assert open_store("exported", folder=shared_folder).count() == 10
        with pytest.raises(StoreError, match="no project 'elsewhere'"):
            open_store("elsewhere", folder=shared_folder)

    def test_a_project_is_meant_where_there_is_one(
        self, exported: Path, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.move(exported, exported.parent / PROJECT)
        monkeypatch.chdir(exported.parent)
        assert open_store(PROJECT, folder=shared_folder).source.label == f"project {PROJECT!r}"

    @pytest.mark.parametrize("address", ["http://127.0.0.1:1/x", "simplecache::s3://a/b", "github://a:b@/c"])
    def test_other_kinds_of_addresses_are_refused(self, address: str) -> None:
        with pytest.raises(StoreError, match="expected one of file, s3"):
            open_store(address)

    def test_a_folder_without_parquet_says_how_to_write_some(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(StoreError, match="no parquet files"):
            open_store(str(tmp_path / "empty"))
        with pytest.raises(StoreError, match="nothing there"):
            open_store(str(tmp_path / "nowhere"))

    def test_a_data_set_on_the_hub_is_asked_for_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        with pytest.raises(StoreError, match=r"hf://datasets/nobody/rollouts cannot be read.*network"):
            open_store("hf://datasets/nobody/rollouts")

    def test_a_missing_package_is_named(self) -> None:
        with pytest.raises(ConfigError, match="gcsfs"):
            open_store("gs://bucket/rollouts")


class TestOneFileARun:
    def test_is_what_a_partition_by_run_alone_writes_and_is_read_as_well(
        self, store: Store, tmp_path: Path
    ) -> None:
        folder = tmp_path / "by run"
        export_partitioned(store, folder, partition_by=["run"])
        assert len(list(folder.glob("run=*/*.parquet"))) == len(store.runs())
        opened = open_store(str(folder))
        assert opened.count() == store.count()
        opened.close()


class TestDamage:
    def test_logged_numbers_without_a_column_are_damage(self, exported: Path) -> None:
        file = exported / METRICS
        table = pa.ipc.open_file(file.read_bytes()).read_all().drop_columns("step")
        with pa.OSFile(str(file), "wb") as opened_file, pa.ipc.new_file(opened_file, table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(StoreError, match=r"metrics\.arrow: damaged .*step"):
            open_store(str(exported)).metrics(RUN)


class TestParts:
    def test_columns_alone_say_so_where_a_conversation_is_wanted(self, store: Store, tmp_path: Path) -> None:
        export_partitioned(store, tmp_path / "out", conversations=False)
        opened = open_store(str(tmp_path / "out"))
        row = opened.query(order_by="-reward").rows[0]
        with pytest.raises(StoreError, match="columns without conversations"):
            opened.record(row.id or "")
        assert opened.query(limit=1).rows[0]["prompt"]

    def test_a_part_of_a_run_keeps_what_was_superseded(
        self, trackio_dir: Path, tmp_path: Path, texts_of: Callable[[list[str]], np.ndarray]
    ) -> None:
        from tests.store.projects import make_ledger, write_step

        for attempt, steps in (("a", (0, 1, 2)), ("b", (1, 2))):
            for step in steps:
                ledger = make_ledger([[1.0, 0.0]], step=step, batch=attempt, attempt=texts_of([attempt] * 2))
                write_step(ledger, ())
        store = open_store(PROJECT)
        export_partitioned(store, tmp_path / "out", steps=(2, 2), where="attempt = a")
        assert open_store(str(tmp_path / "out")).rollouts()["superseded"].to_pylist() == [True, True]


@pytest.fixture
def texts_of() -> Callable[[list[str]], np.ndarray]:
    def made(values: list[str]) -> np.ndarray:
        column = np.empty(len(values), object)
        column[:] = values
        return column

    return made
