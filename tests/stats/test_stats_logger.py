"""StatsLogger: steps, windows, filters, fan-out, and scalars and traces that share a step in Trackio."""

from __future__ import annotations

import dataclasses
import logging
import math
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import rollout_traces as rt
from rollout_traces.errors import ConfigError
from rollout_traces.stats.stats_logger import StatsLogger, StepRule, WindowedAverages, is_averaged
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer


class Recorder:
    """A sink that keeps what it was given."""

    name = "recorder"

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def log_scalars(self, scalars, step):
        self.rows.append((step, dict(scalars)))

    def close(self):
        self.closed = True


class Broken(Recorder):
    name = "broken"

    def log_scalars(self, scalars, step):
        raise OSError("disk on fire")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def quiet(**options) -> dict:
    return {"console": False, **options}


class TestStepRule:
    def test_a_step_never_goes_back(self):
        rule = StepRule()
        assert [rule.commit(g) for g in (0, 1, 5, 3, 4)] == [0, 1, 5, 6, 7]

    def test_a_list_takes_consecutive_steps(self):
        rule = StepRule()
        assert rule.commit(0, 3) == 0 and rule.commit(1) == 3

    def test_traces_and_scalars_of_a_global_step_share_it_whichever_comes_first(self):
        rule = StepRule()
        rule.commit(0, 3)
        assert rule.log_step(1) == 3 and rule.commit(1) == 3
        assert rule.commit(2) == 4 and rule.log_step(2) == 4

    def test_rollouts_of_the_next_step_may_come_before_this_steps_commit(self):
        rule = StepRule()
        assert rule.log_step(0) == 0 and rule.log_step(1) == 1
        assert rule.commit(0) == 0 and rule.commit(1) == 1

    def test_a_global_step_committed_twice_does_not_write_over_the_first(self):
        rule = StepRule()
        assert rule.commit(4) == 4 and rule.commit(4) == 5 and rule.log_step(4) == 5

    def test_it_goes_on_after_a_checkpoint(self):
        rule, restored = StepRule(), StepRule()
        rule.commit(9, 2)
        restored.load_state_dict(rule.state_dict())
        assert rule.state_dict() == {"last_commit_step": 10}
        assert restored.commit(7) == 11


class TestCommit:
    def test_counts_are_left_out(self, recorder):
        StatsLogger(quiet(), sinks=[recorder]).commit(0, 0, 0, {"loss": 1.0, "loss__count": 4})
        assert recorder.rows == [(0, {"loss": 1.0})]

    def test_a_list_of_dicts_takes_consecutive_steps(self, recorder):
        logger = StatsLogger(quiet(), sinks=[recorder])
        logger.commit(0, 0, 3, [{"loss": 1.0}, {"loss": 2.0}])
        logger.commit(0, 1, 4, {"loss": 3.0})
        assert [step for step, _ in recorder.rows] == [3, 4, 5]

    def test_values_that_are_not_finite_or_not_numbers_are_left_out_and_counted(self, recorder):
        logger = StatsLogger(quiet(), sinks=[recorder])
        logger.commit(
            0, 0, 0, {"a": math.nan, "b": math.inf, "c": "text", "d": torch.tensor(2.0), "e": np.float32(3)}
        )
        assert recorder.rows == [(0, {"d": 2.0, "e": 3.0})]
        assert logger.counters["scalars_nonfinite"] == 2 and logger.counters["scalars_not_numbers"] == 1

    def test_what_was_added_between_two_commits_is_averaged(self, recorder):
        logger = StatsLogger(quiet(), sinks=[recorder])
        for loss, longest, version in ((1.0, 10, 1), (3.0, 5, 2), (math.nan, 7, 3)):
            logger.add({"loss": loss, "length/max": longest, "version": version})
        logger.commit(0, 0, 0, {"lr": 0.1})
        assert recorder.rows == [(0, {"loss": 2.0, "lr": 0.1, "length/max": 7.0, "version": 3.0})]

    def test_every_nth_commit_and_the_first_are_logged_and_the_others_averaged_into_the_next(self, recorder):
        logger = StatsLogger(quiet(every_n_steps=3), sinks=[recorder])
        for step in range(7):
            logger.commit(0, step, step, {"loss": float(step)})
        assert recorder.rows == [(0, {"loss": 0.0}), (3, {"loss": 2.0}), (6, {"loss": 5.0})]

    def test_closing_logs_what_a_window_still_holds(self, recorder):
        logger = StatsLogger(quiet(every_n_steps=10), sinks=[recorder])
        for step in range(3):
            logger.commit(0, step, step, {"loss": float(step)})
        logger.close()
        logger.close()
        assert recorder.rows[-1] == (2, {"loss": 1.5}) and recorder.closed and len(recorder.rows) == 2

    @pytest.mark.parametrize(
        ("keys", "kept"),
        [
            ("full", {"loss/avg", "loss/max", "timeperf/step", "reward"}),
            ("slim", {"loss/avg", "reward"}),
            (["loss/*"], {"loss/avg", "loss/max"}),
            (["loss/*", "!*/max"], {"loss/avg"}),
            (["!loss/*"], {"timeperf/step", "reward"}),
            (["slim", "!reward"], {"loss/avg"}),
        ],
    )
    def test_the_key_filter(self, recorder, keys, kept):
        data = {"loss/avg": 1, "loss/max": 2, "timeperf/step": 3, "reward": 4}
        StatsLogger(quiet(keys=keys), sinks=[recorder]).commit(0, 0, 0, data)
        assert set(recorder.rows[0][1]) == kept

    def test_the_state_survives_a_checkpoint(self, recorder):
        first = StatsLogger(quiet())
        first.commit(0, 0, 7, [{"a": 1}, {"a": 2}])
        second = StatsLogger(quiet(), sinks=[recorder])
        second.load_state_dict(first.state_dict())
        second.commit(0, 0, 5, {"a": 3})
        assert recorder.rows == [(9, {"a": 3.0})]

    def test_the_progress_line_has_the_totals_of_the_finetune_spec(self, caplog):
        spec = SimpleNamespace(total_train_epochs=2, steps_per_epoch=10, total_train_steps=20)
        with caplog.at_level(logging.INFO, logger="rollout_traces"):
            StatsLogger(quiet(), spec).commit(0, 3, 3, {"a": 1})
        assert "Epoch 1/2 Step 4/10 Train step 4/20 done." in caplog.text


class TestNothingRaises:
    def test_a_sink_that_fails_does_not_take_the_others_with_it(self, recorder, caplog):
        logger = StatsLogger(quiet(), sinks=[Broken(), recorder])
        logger.commit(0, 0, 0, {"a": 1})
        logger.commit(0, 1, 1, {"a": 2})
        assert len(recorder.rows) == 2 and logger.counters["errors_broken"] == 2
        assert caplog.text.count("disk on fire") == 1

    @pytest.mark.parametrize("data", [None, 3, [None], "text", {1: 2}])
    def test_data_that_cannot_be_understood(self, data):
        StatsLogger(quiet()).commit(0, 0, 0, data)

    def test_rollouts_that_cannot_be_understood(self, trackio_dir):
        logger = StatsLogger(quiet(trackio={"mode": "local", "project": "p"}))
        handle = logger.log_rollout_traces("nonsense", global_step=0)
        logger.close()
        assert handle.batch_id is None

    def test_a_tokenizer_that_cannot_decode_rollouts_leaves_the_scalars(self, trackio_dir, caplog):
        from rollout_traces.store import open_store

        class OnlyDecodes:
            def decode(self, ids):
                return "x"

        logger = StatsLogger(
            {"trackio": {"mode": "local", "project": "p", "name": "r", "max_rollout_traces_per_step": 4}},
            tokenizer=OnlyDecodes(),
        )
        logger.commit(0, 0, 0, {"loss": 0.5})
        logger.close()
        assert logger.counters["errors_tokenizer"] == 1
        assert "Expected a tokenizer, with `decode` and `get_vocab`" in caplog.text
        assert "loss" in open_store(project="p").metrics("r")

    def test_a_tracker_that_is_not_installed_is_said_and_training_goes_on(self, monkeypatch, caplog):
        monkeypatch.setitem(__import__("sys").modules, "swanlab", None)
        logger = StatsLogger(quiet(swanlab={"mode": "local"}))
        logger.commit(0, 0, 0, {"a": 1})
        assert "pip install swanlab" in caplog.text and logger.counters["trackers_missing"] == 1

    def test_scalars_are_kept_within_bounds_while_the_run_cannot_be_opened(
        self, trackio_dir, monkeypatch, recorder
    ):
        def refuse(*arguments, **options):
            raise OSError("no run today")

        monkeypatch.setattr("rollout_traces.stats.stats_logger.RolloutLogger", refuse)
        monkeypatch.setattr("rollout_traces.stats.stats_logger.MAX_HELD_COMMITS", 3)
        logger = StatsLogger(quiet(trackio={"mode": "local", "project": "p"}), sinks=[recorder])
        for step in range(5):
            logger.commit(0, step, step, {"a": step})
        assert len(logger._held) == 3 and logger.counters["commits_dropped"] == 2
        assert len(recorder.rows) == 5 and logger.counters["errors_trackio"] == 5


class TestSettings:
    @pytest.mark.parametrize(
        "options",
        [{"metric_keys": "rewrad/mean"}, {"metric_keys": [5]}, {"flag_parameters": {"no_flag.limit": 1}}],
    )
    def test_that_would_fail_later_are_refused_when_it_is_made(self, trackio_dir, options):
        with pytest.raises(ConfigError, match=next(iter(options)).split("_")[0]):
            StatsLogger({"trackio": {"mode": "local", "project": "p", **options}})


class TestTrackio:
    @pytest.fixture(scope="class")
    def tokenizer(self):
        return tiny_tokenizer()

    def test_disabled_logs_nothing(self, trackio_dir):
        logger = StatsLogger(quiet())
        assert logger.log_rollout_traces([], global_step=0).batch_id is None
        logger.commit(0, 0, 0, {"a": 1})
        logger.close()
        assert not list(trackio_dir.iterdir())

    @pytest.mark.parametrize("scalars_first", [False, True])
    def test_scalars_and_traces_of_a_step_share_it(self, trackio_dir, tokenizer, scalars_first):
        trackio = {"mode": "local", "project": "p", "name": "r", "max_rollout_traces_per_step": 4}
        logger = StatsLogger(quiet(trackio=trackio), tokenizer=None if scalars_first else tokenizer)
        batch = rollout_batch(tokenizer, BatchPlan(n_groups=2, group_size=4))
        logger.commit(
            0, 0, 0, [{"loss": 1.0}] * 3
        )  # takes steps 0, 1, 2, so that global step 1 is not step 1
        if scalars_first:
            logger.commit(0, 1, 1, {"loss": 0.5})
        logger.log_rollout_traces(batch, global_step=1, tokenizer=tokenizer)
        if not scalars_first:
            logger.commit(0, 1, 1, {"loss": 0.5})
        logger.close()
        steps = stored(trackio_dir)
        assert steps["loss"] == [0, 1, 2, 3]
        assert steps["rollout/trajectories"] == [3] * 4 and steps["rollout/steps"] == [3]

    def test_one_run_holds_everything_also_when_the_tokenizer_came_late(self, trackio_dir, tokenizer):
        logger = StatsLogger(
            quiet(trackio={"mode": "local", "project": "p", "name": "r", "max_rollout_traces_per_step": 2})
        )
        logger.commit(0, 0, 0, {"loss": 1.0})
        logger.log_rollout_traces(rollout_batch(tokenizer), global_step=1, tokenizer=tokenizer)
        logger.commit(0, 1, 1, {"loss": 0.5})
        logger.close()
        steps = stored(trackio_dir)
        assert steps["runs"] == ["r"] and steps["rollout/trajectories"] == [1, 1]

    def test_a_tokenizer_that_never_comes_is_not_waited_for_forever(self, trackio_dir, tokenizer, caplog):
        logger = StatsLogger(
            quiet(trackio={"mode": "local", "project": "p", "max_rollout_traces_per_step": 2})
        )
        for step in range(10):
            logger.commit(0, step, step, {"loss": 1.0})
        logger.flush()
        assert stored(trackio_dir)["loss"] == list(range(10))
        logger.log_rollout_traces(rollout_batch(tokenizer), global_step=10, tokenizer=tokenizer)
        logger.close()
        assert "StatsLogger(tokenizer=...)" in caplog.text
        assert stored(trackio_dir)["rollout/steps"] == [10]


def stored(folder: Path) -> dict[str, list]:
    """Key -> the steps it was stored at, and `runs`."""
    found: dict[str, list] = {"runs": []}
    for database in folder.glob("*.db"):
        with sqlite3.connect(database) as connection:
            for step, name, metrics in connection.execute(
                "SELECT step, run_name, metrics FROM metrics ORDER BY step"
            ):
                if name not in found["runs"]:
                    found["runs"].append(name)
                for key in orjson.loads(metrics):
                    if key == "loss":
                        found.setdefault(key, []).append(step)
            for step, key in connection.execute("SELECT step, key FROM traces ORDER BY step"):
                found.setdefault(key, []).append(step)
    return found


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        recorder = Recorder()
        logger = StatsLogger(quiet(), sinks=[recorder])
        logger.commit(0, 0, 0, {"a": 1})
        logger.config.trackio.mode = "local" if rank else "disabled"
        refused = [logger.log_rollout_traces({}, global_step=0).batch_id for _ in range(2)]
        logger.close()
        assert refused == [None, None]
        left = logger.counters["rollouts_left_to_rank_zero"]
        (Path(folder) / str(rank)).write_text(f"{len(recorder.rows)} {left}")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_only_rank_zero_writes_and_the_others_count_the_rollouts_they_leave_to_it(tmp_path):
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["1 0", "0 2"]


class TestConsole:
    def test_a_commit_is_printed_as_an_aligned_table(self, capsys):
        StatsLogger({}).commit(0, 0, 0, {"loss": 0.12345678, "count/samples": 512})
        printed = capsys.readouterr().err
        assert "0.1235" in printed and "512" in printed and "step 0" in printed

    def test_a_few_rollouts_are_printed_per_step(self, trackio_dir, capfd):
        tokenizer = tiny_tokenizer()
        trackio = {"mode": "local", "project": "p", "max_rollout_traces_per_step": 1}
        logger = StatsLogger(quiet(trackio=trackio, log_completions=2), tokenizer=tokenizer)
        logger.log_rollout_traces(rollout_batch(tokenizer), global_step=0)
        logger.close()
        printed = capfd.readouterr().err
        assert printed.count("loss mask:") == 2 and "reward" in printed and "call: calculator" in printed


@dataclasses.dataclass
class TrainerConfig:
    """A trainer's whole config, of which ours is a section."""

    stats_logger: dict
    note: str = "the trainer's own"
    api_key: str = "hush"


def test_the_trainers_config_is_stored_with_the_run_without_its_secrets(trackio_dir):
    section = {"trackio": {"mode": "local", "project": "p", "name": "r"}, "console": False}
    logger = rt.StatsLogger(TrainerConfig(section))
    logger.commit(0, 0, 0, {"a": 1})
    logger.close()
    (config,) = sqlite3.connect(trackio_dir / "p.db").execute("SELECT config FROM configs").fetchone()
    config = orjson.loads(config)
    assert config["note"] == "the trainer's own" and config["api_key"] == "***"
    assert config["stats_logger"] == section


@pytest.mark.parametrize(
    "key", ["loss", "reward/mean", "loss/avg", "maximum_entropy_bonus", "group/pass@8", "stop/length_share"]
)
def test_quantities_are_averaged(key):
    assert is_averaged(key)


@pytest.mark.parametrize(
    "key",
    ["loss/min", "reward/max", "grad_max", "reward/p95", "entropy/p10", "median", "global_step", "step", "count/samples",
     "discarded/too_long_count", "version", "rollout/count/tokens", "epoch"],
)  # fmt: skip
def test_counters_extremes_and_quantiles_are_not(key):
    assert not is_averaged(key)


def test_keys_have_counts_of_their_own():
    window = WindowedAverages()
    assert window.add({"a": 1.0, "b": 4.0, "step": 1}) == 0
    assert window.add({"a": 3.0, "b": math.nan, "step": 2}) == 1
    assert window.flush() == {"a": 2.0, "b": 4.0, "step": 2}
    assert window.flush() == {}


def test_a_key_that_was_never_finite_is_absent():
    window = WindowedAverages()
    window.add({"a": math.inf})
    assert window.flush() == {}
