"""What a step is judged by: options, and what is known of the steps before."""

from __future__ import annotations

import orjson
import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.steps.run_state import (
    LOGGED,
    RunState,
    StepOptions,
    of_trainer,
    read_figures,
    read_run_state,
)
from rollout_traces.steps.selection import default_policy, policy_named


class TestScalarsOfTheTrainer:
    def test_are_those_that_the_package_did_not_log_itself(self):
        scalars = {"loss": 1.0, "rollout/reward": 2.0, "eval-rollout/reward": 3.0, "phase/sampling": 4.0}
        assert of_trainer(scalars, ["rollout", LOGGED]) == {"loss": 1.0, "eval-rollout/reward": 3.0}
        assert of_trainer(scalars, []) == {key: value for key, value in scalars.items() if key[0] != "p"}
        assert of_trainer({"rollouts": 1.0, "phases": 2.0}, ["rollout"]) == {"rollouts": 1.0, "phases": 2.0}


class TestReading:
    def test_the_newest_summary_has_the_runs_state(self):
        kept = [
            ("rollout", {"run_state": '{"raised": ["a"]}'}),
            ("rollout", {"run_state": {"raised": ["b"]}}),
        ]
        assert read_run_state(kept) == {"raised": ["b"]} and read_run_state(kept[:1]) == {"raised": ["a"]}
        assert read_run_state([]) == {} == read_run_state([("rollout", {})])
        assert read_run_state([("rollout", {"run_state": "[1]"})]) == {}

    def test_figures_are_those_of_summaries_that_have_some(self):
        kept = [
            ("a", {"figures": b'{"step": 1}'}),
            ("b", {}),
            ("c", {"figures": "3"}),
            ("d", {"figures": {}}),
        ]
        assert read_figures(kept) == [("a", {"step": 1}), ("d", {})]

    def test_what_was_raised_comes_back(self):
        state = RunState(frozenset({"b", "a"}))
        assert orjson.loads(state.as_text()) == {"raised": ["a", "b"]}
        back = RunState.resumed(orjson.loads(state.as_text()), [], [], {"x": 1.0}, {"rollout": {"p": 2}})
        assert (back.raised, back.totals, back.prompts) == (state.raised, {"x": 1.0}, {"rollout": {"p": 2}})
        assert list(back.trails) == [LOGGED]
        assert RunState.resumed({}, [], [], {}, {}).raised == frozenset()


class TestOptions:
    def test_come_back_with_what_the_run_declares(self):
        options = StepOptions(settings=RunSettings.create(reward_range=(0, 1)), seed=7)
        assert StepOptions.from_plain(orjson.loads(orjson.dumps(options.as_plain()))) == options

    def test_an_evaluation_has_its_own_selection_unless_another_was_asked_for(self):
        assert type(StepOptions().policy("eval-rollout")) is type(default_policy("eval-rollout"))
        assert type(StepOptions().policy("rollout")) is type(policy_named("portfolio"))
        assert type(StepOptions(selection="random").policy("eval-rollout")) is type(policy_named("random"))
        with pytest.raises(ConfigError):
            StepOptions(selection="none of them").policy("eval-rollout")
