"""TRL's tables of completions are read where they lie: each row a rollout, none twice, nothing written."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.errors import StoreError
from rollout_traces.export import ExportQuery, export
from rollout_traces.store import Store, open_store
from rollout_traces.store.removal import plan_removal
from tests.sources.trl_run import PROJECT, log_run, sample
from tests.store.test_http_source import serving

pytestmark = pytest.mark.usefixtures("trackio_dir")


@pytest.fixture
def store(trackio_dir: Path) -> Store:
    log_run()
    opened = open_store(PROJECT)
    yield opened
    opened.close()


def table(*records: dict, step: int = 1) -> list:
    return [step, {"completions": {"_value": list(records)}}]


def record(completion: str = "a", prompt: str = "q", **columns: object) -> dict:
    return {"step": 1, "prompt": prompt, "completion": completion, **columns}


class TestARealRun:
    def test_every_rollout_that_the_trainer_logged_is_there_once_with_its_numbers(self, store: Store) -> None:
        """Batches trained on twice, the table at the end and what an evaluation left in the queue are repeats."""
        seen = [
            (batch["split"], text, reward, advantage)
            for batch in sample()["seen"]
            for text, reward, advantage in zip(
                batch["texts"], batch["rewards"], batch["advantages"], strict=True
            )
        ]
        rows = store.query(limit=100).rows
        read = [(r.split, store.messages(r.id)[-1]["content"], r["reward"], r["advantage"]) for r in rows]
        assert sorted(r[:2] for r in read) == sorted(s[:2] for s in seen)
        for mine, theirs in zip(sorted(read), sorted(seen), strict=True):
            np.testing.assert_allclose(mine[2:], theirs[2:], rtol=1e-6)

    def test_columns_have_our_names_beside_their_own(self, store: Store) -> None:
        row = store.query(where="split = 'rollout'", order_by="step, group", limit=1).rows[0]
        first = sample()["rows"][1][1]["completions"]["_value"][0]
        assert (row.step, row["group"], row["written_by"], row["key"]) == (1, 0, "TRL", "completions")
        assert (row["component/correct"], row["component/brief"]) == (first["correct"], first["brief"])
        assert (row["correct"], row["sample/n_characters"]) == (first["correct"], first["n_characters"])
        assert (row["extra/answer"], row["answer"]) == ("5", None)
        assert store.messages(row.id) == [*first["prompt"], *first["completion"]]
        assert store.transcript(row.id) is None
        told = store.record(row.id).metadata
        assert (told["group"], told["component/brief"], told["brief"]) == (0, first["brief"], first["brief"])
        assert (told["written_by"], told["flags"]) == ("TRL", list(row["flags"]))

    def test_equal_prompts_of_a_step_are_a_group_and_how_many_there_were_is_unknown(
        self, store: Store
    ) -> None:
        [run] = store.runs()
        assert (run.splits, run.n_traces, run.n_rollouts) == (("rollout", "eval-rollout"), 12, 0)
        groups = store.groups(run.id, "rollout", 1)
        assert [(g.group, g.n_rollouts, g.from_ledger) for g in groups.groups] == [
            (0, 2, False),
            (1, 2, False),
        ]
        assert groups.n_rollouts is None

    def test_words_are_found_and_texts_looked_through(self, store: Store) -> None:
        row = store.query(limit=1).rows[0]
        text = store.messages(row.id)[-1]["content"]
        assert row.id in {r.id for r in store.query(text='"What is"', limit=100).rows}
        part = text[3:8].replace("'", "''")
        assert row.id in {r.id for r in store.query(where=f"text contains '{part}'", limit=100).rows}
        assert store.count(where="text ~ 'What'") == 12

    def test_the_project_is_as_it_was(self, store: Store, trackio_dir: Path) -> None:
        before = (trackio_dir / f"{PROJECT}.db").read_bytes()
        store.query(limit=100)
        store.rebuild()
        assert (trackio_dir / f"{PROJECT}.db").read_bytes() == before

    def test_they_are_exported_with_their_conversations(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        export(store, path, ExportQuery())
        assert path.read_text().count('"messages":[{') == 12

    def test_text_flags_are_raised(self) -> None:
        log_run([table(record("<think>and so on"), record("fine"))])
        store = open_store(PROJECT)
        assert store.count(where="flags has 'thinking_unclosed'") == 1


class TestAServer:
    def test_its_tables_are_read_as_those_of_this_machine(
        self, store: Store, trackio_dir: Path, tmp_path: Path
    ) -> None:
        with serving(trackio_dir) as address:
            remote = open_store(PROJECT, server_url=address, index_path=tmp_path / "remote")
            here, there = ([row.as_dict() for row in s.query(limit=100).rows] for s in (store, remote))
            assert here == there and len(there) == 12
            ids = [row["id"] for row in here]
            assert remote.source.texts_of(ids, spans=False) == store.source.texts_of(ids, spans=False)
            remote.close()


class TestAGrowingProject:
    def test_a_new_table_is_read_and_what_is_known_is_not_read_again(self) -> None:
        rows = sample()["rows"]
        log_run(rows[:2])
        store = open_store(PROJECT)
        assert store.count() == 4
        log_run(rows[2:], name="r2")
        assert store.refresh() == 12
        assert store.refresh() == 0
        assert store.count() == 16

    def test_a_deleted_run_takes_its_rows_along(self, trackio_dir: Path) -> None:
        log_run()
        log_run(name="r2")
        store = open_store(PROJECT)
        assert store.count() == 24
        with sqlite3.connect(trackio_dir / f"{PROJECT}.db") as project:
            project.execute("DELETE FROM metrics WHERE run_name = 'r2'")
        store.refresh()
        assert (store.count(), {row.run for row in store.query(limit=100).rows}) == (12, {"r1"})

    def test_texts_of_rows_that_are_gone_are_left_out_where_no_trace_was_ever_stored(
        self, store: Store, trackio_dir: Path
    ) -> None:
        ids = [row.id for row in store.query(limit=2).rows]
        with sqlite3.connect(trackio_dir / f"{PROJECT}.db") as project:
            project.execute("DROP TABLE traces")
            project.execute("DELETE FROM metrics")
        opened = open_store(PROJECT, refresh=False)
        assert opened.source.texts_of(ids, spans=False) == {}
        opened.close()

    def test_a_damaged_segment_is_read_again_from_the_tables(self, store: Store) -> None:
        store.close()
        for segment in (store.index_path / "segments").iterdir():
            segment.write_bytes(b"damaged")
        again = open_store(PROJECT)
        with pytest.raises(StoreError):
            again.count(where="reward < 100")
        again.refresh()
        assert again.count(where="reward < 100") == 12


class TestOurOwnRuns:
    def test_tables_of_a_run_that_was_logged_here_are_left_out_whichever_came_first(self) -> None:
        """A hooked trainer goes on logging its tables: the same rollouts once more."""
        import trackio

        log_run(sample()["rows"][:2])
        store = open_store(PROJECT)
        assert store.count() == 4
        run = trackio.init(project=PROJECT, name="r1", resume="must", embed=False, auto_log_gpu=False)
        logger = rt.RolloutLogger(
            PROJECT, run=run, worker="thread", max_rollout_traces_per_step=8, selection="all"
        )
        logger.log_rollouts(rt.RolloutBatch.from_messages([[{"role": "user", "content": "q"}]]), step=1)
        assert logger.finish()
        store.refresh()
        assert [row["kind"] for row in store.query(limit=100).rows] == ["rollout"]
        run.log({"completions": trackio.Table(data=[record()])}, step=2)
        trackio.finish()
        store.refresh()
        assert store.count() == 1


class TestOddTables:
    def test_a_table_of_something_else_is_no_rollout(self) -> None:
        log_run([table({"name": "a", "value": 1.0}), [2, {"other": {"_value": [record()]}}]])
        assert open_store(PROJECT).count() == 0

    def test_values_that_are_none_of_trl_s_cost_themselves_alone(self) -> None:
        log_run(
            [
                table(
                    record(right=None),
                    record("b", right="high"),
                    record("c", right=0.5, step="x"),
                    record(""),
                ),
                table({"prompt": {"a": [1]}, "completion": [[], 3], "step": [], "advantage": {}}, step=2),
                table(record("far", step=1e300), record("near", step=float("inf")), step=3),
            ],
            config={"reward_weights": ["a", 2.0]},
        )
        store = open_store(PROJECT)
        assert store.count() == 7
        assert store.count(where="reward = 0.5") == 1

    def test_weights_that_do_not_fit_the_rewards_are_not_used(self) -> None:
        log_run([table(record(one=1.0, two=2.0))], config={"reward_weights": [5.0]})
        assert open_store(PROJECT).query().rows[0]["reward"] == 3.0

    def test_an_older_version_s_texts_and_steps_are_read(self) -> None:
        log_run([table({"step": "7", "prompt": "What?", "completion": "That.", "reward": 0.25}, step=3)])
        [row] = open_store(PROJECT).query().rows
        assert (row.step, row["reward"], row["component/reward"]) == (7, 0.25, 0.25)


class TestDeletion:
    def test_single_rows_are_not_deleted_and_it_says_what_can_be(self, store: Store) -> None:
        with pytest.raises(StoreError, match="delete their whole run"):
            plan_removal(store, "reward < 100")
        assert set(plan_removal(store, runs=["r1"]).runs.values()) == {"r1"}


def test_the_command_lists_them(store: Store) -> None:
    listed = CliRunner().invoke(build_app(["list"]), ["list", "-p", PROJECT, "--json"])
    assert listed.stdout.count('"table-') == 12
