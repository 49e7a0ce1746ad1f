"""Where processes beside a trainer say what is in flight: a real trainer's logger, and a real other process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import SimpleNamespace

import pytest

import rollout_traces as rt
from rollout_traces.integrations import agent_lightning, followed
from rollout_traces.integrations.run_report import LIVE_PLACE
from rollout_traces.logger.live import NOT_LIVE
from rollout_traces.store import open_store

BESIDE = """
from rollout_traces.integrations import followed
import time
rollout = followed.begin("What is 6*7?", split="rollout", group="g")
rollout.stage("sampling", turns=1, tokens=5, words="It is")
time.sleep(1)
print(rollout.id)
"""


def answer_of(call: Coroutine) -> object:
    """What a coroutine answers in a thread of its own: a browser's loop may run in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, asyncio.run, call).result()


@pytest.fixture
def named(monkeypatch, tmp_path):
    folder = tmp_path / "named"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(LIVE_PLACE, str(folder / "place.json"))
    monkeypatch.setattr(followed, "_process", followed._Announced())
    return folder / "place.json"


def beside() -> str:
    done = subprocess.run(
        [sys.executable, "-c", BESIDE], capture_output=True, text=True, check=True, env=os.environ
    )
    return done.stdout.strip()


class TestBeside:
    def test_another_process_says_what_is_in_flight_in_the_trainers_run(self, trackio_dir, named):
        logger = rt.RolloutLogger(project="p", name="r", worker="thread")
        followed.announce(logger)
        assert named.stat().st_mode & 0o077 == 0
        key = beside()
        look = open_store(project="p").live.look("r")
        (row,) = look.rows
        assert row.rollout.id == key and (row.rollout.stage, row.rollout.turns) == ("sampling", 1)
        assert row.rollout.prompt == "What is 6*7?" and look.writers[0].texts
        logger.finish()

    def test_it_says_no_text_where_the_trainer_redacts(self, trackio_dir, named):
        logger = rt.RolloutLogger(project="p", name="r", worker="thread", redact=lambda message: [])
        followed.announce(logger)
        beside()
        (row,) = open_store(project="p").live.look("r").rows
        assert row.rollout.prompt is None and row.rollout.words is None
        logger.finish()

    def test_it_says_nothing_where_no_trainer_told_of_its_run(self, trackio_dir, named):
        assert beside() == ""

    def test_a_file_that_others_may_have_written_is_not_believed(self, trackio_dir, named):
        logger = rt.RolloutLogger(project="p", name="r", worker="thread")
        followed.announce(logger)
        named.chmod(0o666)
        assert beside() == ""
        logger.finish()


class TestTrainer:
    def test_its_own_process_says_it_to_its_logger(self, trackio_dir, named):
        logger = rt.RolloutLogger(project="p", name="r", worker="thread")
        followed.announce(logger)
        rollout = followed.begin("q", split="rollout")
        assert rollout.id and logger.counters["live_refused"] == 0
        logger.finish()

    def test_nothing_is_said_of_a_trainer_that_is_gone(self, trackio_dir, named):
        logger = rt.RolloutLogger(project="p", name="r", worker="thread")
        followed.announce(logger)
        logger.finish()
        del logger
        import gc

        gc.collect()
        assert not followed.begin("q", split="rollout").id


def test_a_score_of_verls_loop_is_what_the_loop_gave_where_nobody_follows_the_rollout():
    async def score(loop, outputs, asked):
        return f"{outputs}: {asked}"

    assert answer_of(agent_lightning.verl_observer._scored(score)(None, "outputs", asked=3)) == "outputs: 3"


class TestTools:
    def test_a_tool_of_verls_loop_answers_whether_its_rollout_is_followed_or_not(self):
        async def call(loop, tool_call, asked):
            return f"{tool_call.name}: {asked}"

        called, tool = agent_lightning.verl_observer._called(call), SimpleNamespace(name="search")
        assert answer_of(called(None, tool, "Porto")) == "search: Porto"
        rollout = followed.Followed(NOT_LIVE)
        with rollout.running():
            assert answer_of(called(None, tool, asked="Kyoto")) == "search: Kyoto"
        assert [(span["kind"], span["name"]) for span in rollout.noted] == [("tool", "search")]
