"""TRL's batches as canonical ones, and the steps that its own logs carry."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from rollout_traces.errors import BatchError
from rollout_traces.integrations.trl_batch import (
    ScoredCompletions,
    _extras,
    _StepAligned,
    _weighted,
    align_steps,
    at_global_step,
    batches_from,
)

NAN = float("nan")


def output(**more) -> dict:
    """Two rows: a prompt of two tokens and one of one, completions of three and of two."""
    return {
        "prompt_ids": torch.tensor([[1, 2], [0, 3]]),
        "prompt_mask": torch.tensor([[1, 1], [0, 1]]),
        "completion_ids": torch.tensor([[4, 5, 6], [7, 8, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        **more,
    }


def batch_of(tensors: dict | None = None, **scored):
    [batch] = batches_from(ScoredCompletions(output(**(tensors or {})), **scored))
    return batch


def bits(mask: torch.Tensor) -> list[str]:
    return ["".join(str(int(value)) for value in row) for row in mask]


class TestMasks:
    def test_completions_lie_behind_their_prompts(self):
        batch = batch_of(global_step=5)
        assert batch.input_ids.tolist() == [[1, 2, 4, 5, 6], [0, 3, 7, 8, 0]]
        assert bits(batch.attention_mask) == ["11111", "01110"]
        assert bits(batch.loss_mask) == bits(batch.response_mask) == ["00111", "00110"]
        assert batch.versions.tolist() == [[-1, -1, 5, 5, 5], [-1, -1, 5, 5, -1]] and batch.train_version == 5

    def test_a_truncated_completion_that_is_masked_is_there_and_not_trained(self):
        batch = batch_of({"completion_mask": torch.tensor([[0, 0, 0], [1, 1, 0]])}, completion_lengths=[3, 2])
        assert bits(batch.attention_mask) == ["11111", "01110"]
        assert bits(batch.loss_mask) == ["00000", "00110"] and bits(batch.response_mask) == ["00111", "00110"]

    def test_what_a_tool_wrote_is_neither_trained_nor_sampled(self):
        batch = batch_of({"tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])})
        assert bits(batch.loss_mask) == bits(batch.response_mask) == ["00101", "00110"]
        assert bits(batch.attention_mask) == ["11111", "01110"]

    def test_what_was_sampled_is_known_beside_what_is_trained(self):
        tools = {"tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])}
        batch = batch_of(
            {**tools, "completion_mask": torch.tensor([[0, 0, 0], [1, 1, 0]])},
            completion_lengths=[3, 2],
            sampled=[[1, 0, 1], [1]],
        )
        assert bits(batch.loss_mask) == ["00000", "00110"] and bits(batch.response_mask) == ["00101", "00100"]

    def test_logprobs_of_engine_trainer_and_reference_have_their_own_tracks(self):
        keys = ("sampling_per_token_logps", "old_per_token_logps", "ref_per_token_logps")
        batch = batch_of({key: torch.full((2, 3), -float(n)) for n, key in enumerate(keys, 1)})
        for n, track in enumerate((batch.logprobs, batch.prox_logprobs, batch.ref_logprobs), 1):
            assert np.isnan(track[:, :2]).all() and (track[:, 2:] == -n).all()
        none = batch_of({"old_per_token_logps": None})
        assert none.logprobs is None and none.prox_logprobs is None and none.advantages is None

    def test_a_batch_that_lacks_a_key_is_refused_by_its_name(self):
        tensors = output()
        del tensors["prompt_mask"]
        with pytest.raises(BatchError, match="prompt_mask"):
            batches_from(ScoredCompletions(tensors))


class TestRewards:
    def test_are_weighted_sums_of_what_each_function_gave(self):
        rewards = {"a": [1.0, None, NAN], "b": [2.0, 4.0, NAN]}
        assert _weighted(rewards, [0.5, 2.0]) == [4.5, 8.0, None]
        assert _weighted(rewards, []) == [3.0, 4.0, None] == _weighted(rewards, [7.0])
        assert _weighted({}, [1.0]) is None

    def test_components_are_those_of_several_functions(self):
        assert batch_of(rewards={"a": [1.0, 2.0]}).reward_components == {}
        two = batch_of(rewards={"a": [1.0, 2.0], "b": [0.0, 1.0]}, reward_weights=[1.0, 0.5])
        assert set(two.reward_components) == {"a", "b"} and two.rewards.tolist() == [1.0, 2.5]
        assert batch_of().rewards is None


class TestColumns:
    def test_the_first_known_one_is_the_ground_truth(self):
        batch = batch_of(columns={"solution": ["s", "t"], "answer": ["a", "b"], "note": [1, None]})
        assert batch.ground_truths == ["a", "b"] and batch.extras == [{"note": 1}, {"note": None}]
        assert batch_of(columns={"target": [1, 2]}).ground_truths == [1, 2]
        assert batch_of().ground_truths is None

    def test_lists_and_images_are_not_shown(self):
        assert _extras({"a": [1, "x"], "b": [[1], None], "answer": ["4", "5"]}) == [{"a": 1}, {"a": "x"}]
        assert _extras({"b": [object(), 1]}) is None and _extras({}) is None

    def test_spans_are_there_where_some_row_has_one(self):
        span = {"kind": "tool", "start": 1.0, "end": 2.0}
        assert batch_of(spans=[[span], []]).timings == [[span], []]
        assert batch_of(spans=[[], []]).timings is None


class Logged:
    """Trackio as it is called."""

    def __init__(self) -> None:
        self.calls: list = []
        self.other = "kept"

    def log(self, metrics, step=None) -> None:
        self.calls.append((metrics, step))


class TestSteps:
    def test_what_is_logged_without_one_carries_the_trainers(self):
        logged = Logged()
        aligned = _StepAligned(logged)
        aligned.log({"a": 1}, step=9)
        aligned.log({"a": 1, "train/global_step": 3.0})
        aligned.log({"a": 1})
        with at_global_step(SimpleNamespace(state=SimpleNamespace(global_step=7))):
            aligned.log({"a": 1})
            aligned.log({"train/global_step": 2}, step=0)
        aligned.log({"a": 1})
        assert [step for _, step in logged.calls] == [9, 3, None, 7, 0, None]
        assert aligned.other == "kept"

    def test_the_callback_and_the_trainers_module_are_aligned_once(self, monkeypatch):
        class TrackioCallback:
            def __init__(self) -> None:
                self._trackio = Logged()

        module = ModuleType("trainers_own")
        module.trackio = Logged()
        monkeypatch.setitem(sys.modules, "trainers_own", module)
        kind = type("Trainer", (), {"__module__": "trainers_own"})
        trainer = kind()
        callback, other = TrackioCallback(), SimpleNamespace(_trackio=Logged())
        trainer.callback_handler = SimpleNamespace(callbacks=[other, callback])
        first = module.trackio
        for _ in range(2):
            align_steps(trainer)
            assert isinstance(callback._trackio, _StepAligned) and isinstance(module.trackio, _StepAligned)
            assert module.trackio._module is first and isinstance(callback._trackio._module, Logged)
        assert isinstance(other._trackio, Logged)
