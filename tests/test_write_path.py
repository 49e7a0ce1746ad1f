"""From a batch of tensors to Trackio's database and back."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import numpy as np
import orjson
import pytest

import rollout_traces as rt
from rollout_traces.errors import ConfigError
from rollout_traces.spool.folder import DiskFull
from rollout_traces.trace.conversion import TraceRecord, read_ledger, read_transcript
from tests.generator import BatchPlan, batch_arrays, rollout_batch, tiny_tokenizer


def stored(folder: Path, key: str, project: str = "p") -> list[tuple[int, TraceRecord]]:
    """(step, trace) of a key, in the order logged."""
    with sqlite3.connect(folder / f"{project}.db") as db:
        rows = db.execute(
            "select step, messages, metadata, spans from traces where key = ? order by step, trace_index",
            (key,),
        ).fetchall()
    return [(step, TraceRecord(*(orjson.loads(part) for part in parts))) for step, *parts in rows]


def scalars(folder: Path, project: str = "p") -> dict[int, dict]:
    """Step -> every metric logged at it."""
    merged: dict[int, dict] = {}
    with sqlite3.connect(folder / f"{project}.db") as db:
        for step, values in db.execute("select step, metrics from metrics order by id"):
            merged.setdefault(step, {}).update(orjson.loads(values))
    return merged


def make_logger(**options) -> rt.RolloutLogger:
    settings = {
        "project": "p",
        "name": "run",
        "tokenizer": tiny_tokenizer(),
        "max_rollout_traces_per_step": 12,
        "worker": "thread",
    }
    return rt.RolloutLogger(**{**settings, **options})


class TestEndToEnd:
    @pytest.mark.parametrize("padding", ["right", "left", "both"])
    def test_what_is_read_back_is_what_was_handed_over_token_for_token(self, trackio_dir, padding):
        tokenizer = tiny_tokenizer()
        plan = BatchPlan(n_groups=2, group_size=4, padding=padding, seed=3)
        arrays = batch_arrays(tokenizer, plan)
        logger = make_logger(selection="all", worker="process")
        logger.log_rollouts(rollout_batch(tokenizer, plan), step=10)
        assert logger.finish()

        records = stored(trackio_dir, "rollout/trajectories")
        assert len(records) == 8
        for _, record in records:
            row = int(record.metadata["uid"].split("-")[1])
            real = arrays["attention_mask"][row]
            transcript = read_transcript(record)
            np.testing.assert_array_equal(transcript.tokens.input_ids, arrays["input_ids"][row][real])
            np.testing.assert_array_equal(transcript.tokens.loss_mask, arrays["loss_mask"][row][real] > 0)
            np.testing.assert_array_equal(transcript.tokens.tracks["versions"], arrays["versions"][row][real])
            np.testing.assert_allclose(
                transcript.tokens.tracks["logprobs"], arrays["logprobs"][row][real], atol=2e-3, rtol=1e-3
            )
            assert transcript.raw == tokenizer.decode(arrays["input_ids"][row][real])
            assert record.metadata["reward"] == pytest.approx(float(arrays["rewards"][row]))

    def test_weights_that_are_named_by_their_time_in_milliseconds_keep_their_versions(self, trackio_dir):
        arrays = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2, step=3))
        now = 1_764_530_000_000
        arrays["versions"] = np.where(arrays["versions"] < 0, -1, arrays["versions"] + now)
        arrays["train_version"] = now + 4
        sampled = (arrays["versions"] >= 0) & arrays["attention_mask"]
        logger = make_logger(selection="all", worker="process")
        logger.log_rollouts(arrays, step=3)
        assert logger.finish()
        for _, record in stored(trackio_dir, "rollout/trajectories"):
            row = int(record.metadata["uid"].split("-")[1])
            tokens = read_transcript(record).tokens
            real = arrays["attention_mask"][row]
            np.testing.assert_array_equal(tokens.tracks["versions"], arrays["versions"][row][real])
            np.testing.assert_array_equal(tokens.response_mask, sampled[row][real])
        [(_, digest)] = stored(trackio_dir, "rollout/steps")
        ledger = read_ledger(digest)
        assert ledger.get("n_sampled").tolist() == sampled.sum(1).tolist()
        newest = np.where(sampled, arrays["versions"], -1).max(1)
        assert ledger.get("version_max").tolist() == newest.tolist()
        assert scalars(trackio_dir)[3]["rollout/staleness/mean"] == pytest.approx(
            (now + 4 - arrays["versions"][sampled]).mean()
        )

    def test_the_conversation_has_its_roles_and_no_template_markers(self, trackio_dir):
        logger = make_logger(selection="all")
        logger.log_rollouts(rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1, cut_share=0)), step=1)
        logger.finish()
        for _, record in stored(trackio_dir, "rollout/trajectories"):
            roles = [message["role"] for message in record.messages]
            assert roles[:4] == ["system", "user", "assistant", "tool"]
            for message in record.messages:
                assert "<|im_start|>" not in message["content"]
                assert "<|im_end|>" not in message["content"]

    def test_every_row_is_in_the_ledger_and_the_digest_says_what_was_kept(self, trackio_dir):
        logger = make_logger()
        logger.log_rollouts(rollout_batch(tiny_tokenizer()), step=5)
        logger.finish()
        [(step, digest)] = stored(trackio_dir, "rollout/steps")
        ledger = read_ledger(digest)
        assert (step, ledger.n_rows) == (5, 32)
        assert (digest.metadata["population"], digest.metadata["kept"]) == (32, 12)
        traced = {uid for uid in ledger.get("trace_uid").tolist() if uid}
        assert traced == {record.metadata["uid"] for _, record in stored(trackio_dir, "rollout/trajectories")}

    def test_scalars_and_traces_of_a_step_carry_the_same_step(self, trackio_dir):
        logger = make_logger()
        for step in (7, 8):
            logger.log_rollouts(rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1, step=step)), step=step)
            logger.log_scalars({"train/loss": step / 10}, step=step)
        logger.finish()
        assert {step for step, _ in stored(trackio_dir, "rollout/trajectories")} == {7, 8}
        assert {step: values["train/loss"] for step, values in scalars(trackio_dir).items()} == {
            7: 0.7,
            8: 0.8,
        }
        assert all("rollout/reward/mean" in values for values in scalars(trackio_dir).values())

    def test_training_and_evaluation_are_separate_splits_with_a_cap_each(self, trackio_dir):
        logger = make_logger(max_rollout_traces_per_step=5)
        for split in ("rollout", "eval-rollout"):
            logger.log_rollouts(rollout_batch(tiny_tokenizer()), step=1, split=split)
        logger.finish()
        assert len(stored(trackio_dir, "rollout/trajectories")) == 5
        assert len(stored(trackio_dir, "eval-rollout/trajectories")) == 5
        assert any(key.startswith("eval-rollout/reward/") for key in scalars(trackio_dir)[1])

    def test_the_cap_holds_over_all_calls_of_a_step(self, trackio_dir):
        logger = make_logger(max_rollout_traces_per_step=6, selection="first")
        for part in range(3):
            logger.log_rollouts(
                rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=4, seed=part)), step=2
            )
        logger.finish()
        assert len(stored(trackio_dir, "rollout/trajectories")) == 6
        [(_, digest)] = stored(trackio_dir, "rollout/steps")
        assert read_ledger(digest).n_rows == 12

    @pytest.mark.parametrize("cap", [0, -1])
    def test_a_cap_of_zero_or_less_logs_no_traces_but_the_scalars_and_the_ledger(self, trackio_dir, cap):
        logger = make_logger(max_rollout_traces_per_step=cap)
        logger.log_rollouts(rollout_batch(tiny_tokenizer()), step=1)
        logger.log_scalars({"train/loss": 0.5}, step=1)
        logger.finish()
        assert stored(trackio_dir, "rollout/trajectories") == []
        assert len(stored(trackio_dir, "rollout/steps")) == 1
        assert scalars(trackio_dir)[1]["train/loss"] == 0.5

    def test_a_list_of_dicts_is_a_group_each(self, trackio_dir):
        arrays = [
            batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=3, seed=s)) for s in range(2)
        ]
        parts = [{k: v for k, v in part.items() if k != "group_ids"} for part in arrays]
        logger = make_logger(selection="all")
        logger.log_rollouts([*parts, None], step=1)
        logger.finish()
        groups = [record.metadata["group"] for _, record in stored(trackio_dir, "rollout/trajectories")]
        assert sorted(groups) == [0, 0, 0, 1, 1, 1]


class TestTheRun:
    def test_the_current_run_is_used_and_left_open(self, trackio_dir):
        import trackio

        run = trackio.init(project="p", name="trainers-own")
        logger = make_logger(name="ignored", worker="process")
        logger.log_rollouts(rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1)), step=1)
        logger.finish()
        run.log({"after": 1.0}, step=2)
        run.finish()
        with sqlite3.connect(trackio_dir / "p.db") as db:
            assert db.execute("select distinct run_name from traces").fetchall() == [("trainers-own",)]
        assert scalars(trackio_dir)[2] == {"after": 1.0}

    def test_that_is_given_stands_over_the_current_one(self, trackio_dir):
        import trackio

        given = trackio.init(project="p", name="given", embed=False)
        trackio.context_vars.current_run.set(None)
        current = trackio.init(project="p", name="current", embed=False)
        logger = make_logger(name="ignored", run=given, worker="process")
        logger.log_rollouts(rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1)), step=1)
        assert logger.finish()
        given.log({"after": 1.0}, step=2)
        for run in (given, current):
            run.finish()
        with sqlite3.connect(trackio_dir / "p.db") as db:
            assert db.execute("select distinct run_name from traces").fetchall() == [("given",)]
        assert scalars(trackio_dir)[2] == {"after": 1.0}

    def test_a_second_logger_after_the_first_has_a_run_of_its_own(self, trackio_dir):
        for name in ("one", "two"):
            logger = make_logger(name=name, worker="process")
            logger.log_rollouts(rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1)), step=1)
            logger.finish()
        with sqlite3.connect(trackio_dir / "p.db") as db:
            assert db.execute("select distinct run_name from traces order by 1").fetchall() == [
                ("one",),
                ("two",),
            ]


class TestBadInput:
    @pytest.mark.parametrize("cap", [1.5, "32", None, True])
    def test_a_cap_that_is_not_an_int_is_refused_by_name(self, trackio_dir, cap):
        with pytest.raises(ConfigError, match="max_rollout_traces_per_step: seen"):
            make_logger(max_rollout_traces_per_step=cap)

    def test_a_models_name_is_no_tokenizer(self, trackio_dir):
        with pytest.raises(ConfigError, match=r"tokenizer: seen 'Qwen/Qwen3-8B'\. Expected a tokenizer"):
            make_logger(tokenizer="Qwen/Qwen3-8B")

    def test_an_unknown_selection_is_refused_by_name(self, trackio_dir):
        with pytest.raises(ConfigError, match="selection: seen 'best'"):
            make_logger(selection="best")

    def test_a_batch_that_cannot_be_understood_is_a_counted_warning_and_training_goes_on(
        self, trackio_dir, caplog
    ):
        logger = make_logger()
        handle = logger.log_rollouts({"input_ids": np.ones((2, 3), int)}, step=1)
        handle.join(advantages=np.ones(2))
        logger.log_rollouts(rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1)), step=1)
        assert logger.finish()
        assert logger.counters["batches_refused"] == 1
        assert "required key 'attention_mask' is missing" in caplog.text
        assert len(stored(trackio_dir, "rollout/trajectories")) == 8

    @pytest.mark.parametrize(
        ("options", "said"),
        [({"project": ""}, "project: seen ''"), ({"resume": "yes"}, "resume: seen 'yes'")],
    )
    def test_a_run_that_cannot_be_named_or_resumed_is_refused(self, trackio_dir, options, said):
        with pytest.raises(ConfigError, match=said):
            make_logger(**options)

    def test_a_misspelt_key_is_said_and_the_batch_is_taken(self, trackio_dir, caplog):
        logger = make_logger()
        batch = rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1))
        ones = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        logger.log_rollouts({**ones, "loss_mask": batch.loss_mask, "reward": np.ones(batch.n_rows)}, step=1)
        assert logger.finish()
        assert logger.counters["keys_left_out"] == 1
        assert "no keys of a batch, left out: reward (meant rewards?)" in caplog.text

    def test_scalars_that_are_no_number_are_left_out_and_counted(self, trackio_dir):
        logger = make_logger()
        logger.log_scalars({"a": "high", "b": None, "c": 1}, step=3)
        assert logger.finish()
        stored = scalars(trackio_dir)[3]
        assert stored.pop("_attempt").endswith("-001") and stored == {"c": 1}
        assert logger.counters["scalar_values_left_out"] == 2

    def test_a_loss_that_is_nan_is_stored_as_trackio_stores_it(self, trackio_dir):
        logger = make_logger()
        values = {"loss": float("nan"), "norm": np.float32("inf"), "kl": -float("inf"), "lr": 0.1}
        logger.log_scalars(values, step=3)
        assert logger.finish()
        stored = scalars(trackio_dir)[3]
        stored.pop("_attempt")
        assert stored == {"loss": "NaN", "norm": "Infinity", "kl": "-Infinity", "lr": 0.1}
        assert not logger.counters["scalar_values_left_out"]
        read = (
            rt.open_store(project="p")
            .table()
            .sql("select key, value from metrics where step = 3 order by key")
        )
        assert [row["key"] for row in read.to_pylist()] == ["kl", "loss", "lr", "norm"]

    def test_one_warning_stands_for_many_refusals(self, trackio_dir, caplog):
        logger = make_logger()
        for step in range(20):
            logger.log_rollouts({}, step=step)
        logger.finish()
        assert logger.counters["batches_refused"] == 20
        assert caplog.text.count("training goes on") == 1

    def test_what_comes_after_finish_is_refused_and_counted(self, trackio_dir, caplog):
        logger = make_logger()
        batch = rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1))
        handle = logger.log_rollouts(batch, step=1)
        assert logger.finish()
        logger.log_scalars({"late": 1.0}, step=2)
        handle.join(advantages=np.ones(batch.n_rows))
        assert logger.log_rollouts(batch, step=2).batch_id is None
        refused = {key: n for key, n in logger.counters.items() if key.endswith("refused")}
        assert refused == {"scalars_refused": 1, "joins_refused": 1, "batches_refused": 1}
        assert logger.counters["spooled"] == 0
        assert "the logger is finished" in caplog.text

    def test_a_forked_child_has_its_scalars_and_joins_refused(self, trackio_dir):
        logger = make_logger(worker="process")
        batch = rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1))
        handle = logger.log_rollouts(batch, step=1)
        child = os.fork()
        if child == 0:
            logger.log_scalars({"child": 1.0}, step=1)
            handle.join(advantages=np.ones(batch.n_rows))
            refused = logger._counters["scalars_refused"], logger._counters["joins_refused"]
            os._exit(0 if refused == (1, 1) and not logger.flush(timeout=180) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert logger.finish()
        assert "child" not in scalars(trackio_dir).get(1, {})

    def test_a_disk_that_stays_full_is_said_when_it_finishes(self, trackio_dir, monkeypatch):
        logger = make_logger()

        def full(_):
            raise DiskFull("full")

        monkeypatch.setattr(logger._pipeline._spool, "append", full)
        logger.log_rollouts(rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1)), step=1)
        logger.log_scalars({"a": 1.0}, step=1)
        assert not logger.finish(timeout=1)
        assert logger.counters["rollouts_dropped"] == 8
        assert logger.counters["records_dropped"] == 1

    def test_a_step_or_split_that_makes_no_sense_is_counted(self, trackio_dir):
        logger = make_logger()
        batch = rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1))
        logger.log_rollouts(batch, step="soon")
        logger.log_rollouts(batch, step=1, split="training")
        logger.finish()
        assert logger.counters["batches_refused"] == 2


class TestDiskLimit:
    def test_above_it_steps_keep_their_ledger_alone_and_say_so(self, trackio_dir):
        for step, limit in ((1, None), (2, 1e-9)):
            logger = make_logger(max_disk_gb=limit)
            logger.log_rollouts(rollout_batch(tiny_tokenizer()), step=step)
            assert logger.finish()
        assert {step for step, _ in stored(trackio_dir, "rollout/trajectories")} == {1}
        (_, before), (_, after) = stored(trackio_dir, "rollout/steps")
        assert read_ledger(after).n_rows == 32
        said = [str(digest.messages) + str(digest.metadata) for digest in (before, after)]
        assert ["above its max_disk_gb" in text for text in said] == [False, True]
        assert logger.counters["steps_over_disk_limit"] == 1

    def test_below_it_nothing_is_left_out(self, trackio_dir):
        logger = make_logger(max_disk_gb=10)
        logger.log_rollouts(rollout_batch(tiny_tokenizer()), step=1)
        assert logger.finish()
        assert len(stored(trackio_dir, "rollout/trajectories")) == 12
        assert logger.counters["steps_over_disk_limit"] == 0


class TestNetworkMount:
    def test_has_the_spool_on_the_nodes_own_disk_and_says_what_follows(
        self, trackio_dir, tmp_path, monkeypatch, caplog
    ):
        from rollout_traces.spool import run_folder

        monkeypatch.setattr(run_folder, "is_network_mount", lambda path: True)
        monkeypatch.setattr(run_folder.tempfile, "gettempdir", lambda: str(tmp_path / "node"))
        logger = make_logger(worker="process")
        logger.log_rollouts(rollout_batch(tiny_tokenizer()), step=1)
        assert logger._pipeline.folder.path.is_relative_to(tmp_path / "node")
        assert not (trackio_dir / "rollout-traces" / "spool").exists()
        assert "can be recovered from this node only" in caplog.text
        assert logger.finish()
        assert len(stored(trackio_dir, "rollout/trajectories")) == 12
