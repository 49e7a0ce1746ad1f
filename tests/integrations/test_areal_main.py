"""The hook on the layout of AReaL's main branch: a fixture of its module paths, names and signatures, not its code."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tests.generator import tiny_tokenizer

LAYOUT = Path(__file__).resolve().parent / "areal_main"
ROOT = LAYOUT.parents[2]
RUN = (sys.executable, "-c", "from rollout_traces.cli import main; main()", "run")


TRACKIO = {
    "mode": "local",
    "project": "main",
    "max_rollout_traces_per_step": 32,
    "selection": "all",
}
SHORT = {**TRACKIO, "worker": "thread"}
"""What starts no further process."""


@pytest.fixture
def start(tmp_path):
    """Starts the layout's training script with a launcher; returns what it printed and where Trackio wrote."""
    return functools.partial(start_in, tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The layout's script, trained once."""
    return start_in(tmp_path_factory.mktemp("trained"), *RUN, **TRACKIO)


def start_in(
    folder: Path, *launcher: str, layout: Path = LAYOUT, **trackio
) -> tuple[subprocess.CompletedProcess[str], Path]:
    tiny_tokenizer("qwen3").save_pretrained(folder / "tokenizer")
    config = {"tokenizer_path": str(folder / "tokenizer"), "stats_logger": {"trackio": trackio}}
    (folder / "grpo.yaml").write_bytes(orjson.dumps(config))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(layout), str(ROOT)]),
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    script = [str(layout / "train.py"), "--config", str(folder / "grpo.yaml")]
    done = subprocess.run([*launcher, *script], env=environment, capture_output=True, text=True, check=False)
    return done, folder / "trackio" / "main.db"


def rows(database: Path, sql: str) -> list[tuple]:
    with sqlite3.connect(database) as db:
        return db.execute(sql).fetchall()


def metadata(database: Path, key: str) -> list[tuple[int, dict]]:
    found = rows(database, f"select step, metadata from traces where key = '{key}' order by step")
    return [(step, orjson.loads(text)) for step, text in found]


class TestTheLayout:
    def test_the_yaml_key_works_and_every_row_is_stored(self, trained):
        done, database = trained
        assert done.returncode == 0, done.stderr
        said = orjson.loads(done.stdout.splitlines()[-1])
        stored = metadata(database, "rollout/trajectories")
        assert [step for step, _ in stored] == [0] * 4 + [1] * 4 + [2] * 4
        wanted = [
            (step, group % 2, float(reward), sum(mask))
            for step in range(3)
            for group, made in enumerate(said["made"][2 * step : 2 * step + 2])
            for reward, mask in zip(made["rewards"], made["attention_mask"], strict=True)
        ]
        seen = [(step, m["group"], m["reward"], m["n_tokens"]) for step, m in stored]
        assert sorted(seen) == sorted(wanted)
        assert {m["version_min"] for step, m in stored if step == 2} == {2}
        assert [step for step, _ in metadata(database, "eval-rollout/trajectories")] == [0, 1, 2]

    def test_scalars_and_rollouts_share_areals_run_and_steps(self, trained):
        _, database = trained
        assert rows(database, "select distinct run_name from traces") == [("t",)]
        scalars = rows(database, "select step, metrics from metrics order by step")
        own = [step for step, values in scalars if "ppo_actor/loss" in orjson.loads(values)]
        assert own == [0, 1, 2]

    def test_nothing_stays_in_the_trainers_fetch_buffer(self, trained):
        done, _ = trained
        assert orjson.loads(done.stdout.splitlines()[-1])["buffered"] == 0

    def test_without_the_hook_the_key_is_refused(self, start):
        done, database = start(sys.executable, **TRACKIO)
        assert done.returncode == 1
        assert "Key 'max_rollout_traces_per_step' not in 'TrackioConfig'" in done.stderr
        assert not database.exists()


STATS, TRAINER = "areal/utils/stats_logger.py", "areal/trainer/rl_trainer.py"
ACTOR = "areal/v2/training_service/controller/controller.py"
ROLLOUT = "areal/v2/inference_service/controller/controller.py"
MOVED = {
    "stats_logger.commit": (
        (STATS, "def commit(", "def publish("),
        (TRAINER, "logger.commit(", "logger.publish("),
    ),
    "PPOTrainer.train": tuple(
        (file, "PPOTrainer", "Trainer") for file in (TRAINER, "areal/__init__.py", "train.py")
    ),
    "actor.is_data_parallel_head": tuple(
        (file, "is_data_parallel_head", "leads") for file in (ACTOR, TRAINER)
    ),
    "'input_ids'": tuple((file, '"input_ids"', '"tokens"') for file in (ROLLOUT, ACTOR, "train.py")),
}
"""What a later version might rename: what the warning says -> (file, old, new)."""


class TestMovedParts:
    @pytest.mark.parametrize("named", MOVED)
    def test_one_warning_names_version_and_key_and_training_goes_on(self, start, tmp_path, named):
        layout = tmp_path / "layout"
        shutil.copytree(LAYOUT, layout)
        for file, old, new in MOVED[named]:
            text = (layout / file).read_text()
            assert old in text
            (layout / file).write_text(text.replace(old, new))
        done, database = start(*RUN, layout=layout, **SHORT)
        assert done.returncode == 0, done.stderr
        warned, report = [line for line in done.stderr.splitlines() if "rollout-traces" in line]
        assert "areal 2.0.0" in warned and named in warned, warned
        assert report.startswith("rollout-traces: areal: no rollouts were logged: ") and named in report, (
            report
        )
        scalars = rows(database, "select step, metrics from metrics order by step")
        assert [step for step, values in scalars if "ppo_actor/loss" in orjson.loads(values)] == [0, 1, 2]
        assert rows(database, "select count(*) from traces") == [(0,)]

    def test_a_version_that_was_not_tested_is_said_once_and_tried(self, start, tmp_path):
        layout = tmp_path / "layout"
        shutil.copytree(LAYOUT, layout)
        information = layout / "areal-2.0.0.dist-info" / "METADATA"
        information.write_text(information.read_text().replace("2.0.0", "3.1.0"))
        done, database = start(*RUN, layout=layout, **SHORT)
        said = [line for line in done.stderr.splitlines() if "rollout-traces" in line]
        assert len(said) == 2 and "areal 3.1.0 is not among the versions tested" in said[0], done.stderr
        assert said[1].startswith("rollout-traces: areal: 15 rollouts of 3 training steps handed over;")
        assert rows(database, "select count(*) from traces where key = 'rollout/trajectories'") == [(12,)]

    def test_an_areal_that_logs_rollouts_itself_does_not_log_them_twice(self, start, tmp_path):
        layout = tmp_path / "layout"
        shutil.copytree(LAYOUT, layout)
        own = "    def log_rollout_traces(self, trajectories, *, split, global_step, tokenizer):\n        raise AssertionError\n"
        (layout / STATS).write_text((layout / STATS).read_text() + "\n" + own)
        call = "self.stats_logger.log_rollout_traces(rollout_batch, split='rollout', global_step=global_step, tokenizer=None)"
        text = (layout / TRAINER).read_text()
        update = "            self.actor.ppo_update(adv_batch)\n"
        assert update in text
        (layout / TRAINER).write_text(text.replace(update, f"{update}            {call}\n"))
        done, database = start(*RUN, layout=layout, **SHORT)
        assert done.returncode == 0, done.stderr
        assert rows(database, "select count(*) from traces where key = 'rollout/trajectories'") == [(12,)]

    def test_a_trainer_with_a_loop_of_its_own_is_hooked_when_it_is_built(self, start, tmp_path):
        layout = tmp_path / "layout"
        shutil.copytree(LAYOUT, layout)
        script = (layout / "train.py").read_text().replace("with PPOTrainer(", "with Mine(")
        mine = "class Mine(PPOTrainer):\n    train = PPOTrainer.train.__wrapped__\n\n\n"
        (layout / "train.py").write_text(script.replace("config, _ = ", f"{mine}config, _ = "))
        done, database = start(*RUN, layout=layout, **SHORT)
        assert done.returncode == 0, done.stderr
        assert rows(database, "select count(*) from traces where key = 'rollout/trajectories'") == [(12,)]

    def test_what_the_script_itself_asks_for_is_honoured_on_a_hooked_trainer(self, start, tmp_path):
        layout = tmp_path / "layout"
        shutil.copytree(LAYOUT, layout)
        script = (layout / "train.py").read_text()
        asked = "    areal.attach(trainer, join_advantages=True, selection='first', max_rollout_traces_per_step=3)\n"
        train = "    trainer.train("
        assert train in script
        script = "from rollout_traces.integrations import areal\n" + script.replace(train, asked + train)
        (layout / "train.py").write_text(script)
        done, database = start(*RUN, layout=layout, **SHORT)
        assert done.returncode == 0, done.stderr
        stored = metadata(database, "rollout/trajectories")
        assert [step for step, _ in stored] == [0] * 3 + [1] * 3 + [2] * 3
        assert {m["advantage"] for _, m in stored} == {1.0}
