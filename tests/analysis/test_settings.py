"""What changed in the settings at each attempt of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trackio.utils

import rollout_traces as rt
from rollout_traces.analysis import diagnose
from rollout_traces.analysis.runs import configs_of, settings_of_attempts
from tests.generator import tiny_tokenizer
from tests.stories.logged import batch_of
from tests.stories.world import Kind, write_run
from tests.trackio_home import use_trackio_home

ROOT = Path(__file__).parents[2]


def log_attempt(steps: range, config: dict[str, object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.stories.world.KINDS", {"small": Kind(n_sources=1, groups=(3, 3), group_size=4)})
        story = write_run(3, "small", n_steps=8)
    rollouts = story.rollouts.to_pydict()
    tokenizer = tiny_tokenizer()
    logger = rt.RolloutLogger(
        "resumes", "run", tokenizer, worker="thread", max_rollout_traces_per_step=2, config=config
    )
    for step in steps:
        rows = [
            i
            for i, (s, sp) in enumerate(zip(rollouts["step"], rollouts["split"], strict=True))
            if (s, sp) == (step, "rollout")
        ]
        logger.log_rollouts(
            batch_of(rollouts, rows, [story.replies[i] for i in rows], step, tokenizer), step=step
        )
        logger.close_step(step)
    logger.flush(timeout=60)
    logger.finish()


class TestAResume:
    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> rt.Store:
        use_trackio_home(monkeypatch, tmp_path)
        log_attempt(range(5), {"kl_coef": 0.05, "lr": 1e-6})
        again = "from tests.analysis.test_settings import log_attempt; log_attempt(range(5, 8), {'kl_coef': 0.0, 'lr': 1e-6})"
        environment = {**os.environ, "TRACKIO_DIR": str(trackio.utils.TRACKIO_DIR)}
        subprocess.run([sys.executable, "-c", again], check=True, env=environment, cwd=ROOT)
        return rt.open_store(project="resumes")

    def test_with_another_kl_coef_it_is_the_first_thing_said(self, store):
        first = diagnose(store.table(), "run").diagnoses[0]
        assert first.step == 5
        assert (
            first.sentence == "“kl_coef” was changed at step 5, where the run was resumed: “0.05” to “0.0”."
        )
        assert configs_of(store.config("run"))[0]["kl_coef"] == 0.05


class TestAttempts:
    FIRST = {"kl": 1, "_Created": "2026-01-01T10:00:00.000000+00:00"}

    def test_a_config_belongs_to_the_attempts_that_began_after_it(self):
        newest = {
            "kl": 2,
            "_Created": "2026-01-02T10:00:00.000000+00:00",
            "rollout_traces_earlier": '[{"kl": 1, "_Created": "2026-01-01T10:00:00"}]',
        }
        attempts = [
            ("20260101T100001.000000Z-001", 0),
            ("20260101T110000.000000Z-001", 7),
            ("20260102T100001.000000Z-001", 9),
        ]
        ((step, (change,)),) = settings_of_attempts(newest, attempts)
        assert (step, change.key, change.a, change.b) == (9, "kl", 1, 2)

    def test_one_process_with_one_config_changed_nothing(self):
        assert list(settings_of_attempts(self.FIRST, [("20260101T100001.000000Z-001", 0)])) == []

    @pytest.mark.parametrize("odd", ["{", "[1]", 5, None])
    def test_a_damaged_history_is_none(self, odd):
        assert configs_of({"kl": 1, "rollout_traces_earlier": odd})[-1]["kl"] == 1
