"""Agent Lightning's rows: every row of a step once, with why it was dropped, and a validation's merged calls."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from rollout_traces.capture.host_copy import capture
from rollout_traces.integrations import agent_lightning, verl

P, R = 3, 4
ROWS = (
    {"rollout": "r0", "turn": 0, "task": "t0", "prompt": [5, 6], "response": [7, 2], "long": False},
    {"rollout": "r0", "turn": 1, "task": "t0", "prompt": [5, 6, 7], "response": [8, 2], "long": True},
    {"rollout": "r1", "turn": 0, "task": "t0", "prompt": [5, 6], "response": [9, 9, 2], "long": False},
    {"rollout": "r2", "turn": 0, "task": "t1", "prompt": [4], "response": [8], "long": False},
)


class Proto(SimpleNamespace):
    """As much of verl's `DataProto` as the adapter reads."""

    @classmethod
    def of(cls, rows) -> Proto:
        prompts = torch.tensor([[0] * (P - len(row["prompt"])) + row["prompt"] for row in rows])
        responses = torch.tensor([row["response"] + [0] * (R - len(row["response"])) for row in rows])
        scores = torch.zeros(len(rows), R, dtype=torch.bfloat16)
        for b, row in enumerate(rows):
            scores[b, len(row["response"]) - 1] = 0.5
        return cls(
            batch={
                "prompts": prompts,
                "responses": responses,
                "input_ids": torch.cat([prompts, responses], dim=1),
                "attention_mask": torch.cat([prompts, responses], dim=1) != 0,
                "response_mask": responses != 0,
                "token_level_scores": scores,
                "advantages": torch.ones(len(rows), R),
                "is_drop_mask": torch.tensor([row["long"] for row in rows]),
            },
            non_tensor_batch={
                "uid": np.asarray([row["task"] for row in rows]),
                "data_id_list": np.asarray([row["task"] for row in rows]),
                "rollout_id_list": np.asarray([row["rollout"] for row in rows]),
                "turn_index_list": np.asarray([row["turn"] for row in rows]),
            },
        )


class TestTraining:
    def test_rows_carry_their_rollout_and_task_and_why_they_were_dropped(self):
        processed = agent_lightning.Processed(Proto.of(ROWS), Proto.of((ROWS[2], ROWS[0])), train_version=3)
        [batch] = agent_lightning.batches_from(processed)
        assert batch.discard_reasons == [None, "prompt_too_long", None, "not_in_a_mini_batch"]
        assert batch.group_ids == ["t0", "t0", "t0", "t1"]
        assert batch.episode_ids == ["r0", "r0", "r1", "r2"]
        assert batch.sample_ids == ["r0:0", "r0:1", "r1:0", "r2:0"]
        host = capture([batch], step=1, split="rollout")
        assert host.row_floats["rewards"].tolist() == [0.5] * 4
        for b, row in enumerate(ROWS):
            assert host.input_ids[host.row(b)].tolist() == row["prompt"] + row["response"]

    def test_of_two_equal_rows_one_may_have_been_dropped(self):
        twice = Proto.of((ROWS[0], ROWS[0]))
        [batch] = agent_lightning.batches_from(agent_lightning.Processed(twice, Proto.of((ROWS[0],))))
        assert batch.discard_reasons == [None, "not_in_a_mini_batch"]


class TestValidation:
    def test_the_calls_of_a_rollout_are_merged_and_one_without_calls_has_no_row(self):
        def triplet(prompt, response, logprobs=None):
            return SimpleNamespace(
                prompt={"token_ids": prompt}, response={"token_ids": response, "logprobs": logprobs}
            )

        rollouts = {
            "r0": SimpleNamespace(
                final_reward=1.0,
                triplets=[
                    triplet([1, 2], [3], [{"logprob": -0.5}]),
                    triplet([1, 2, 3, 4], [5, 6], [{"logprob": -0.25}, {"logprob": -1.0}]),
                ],
            ),
            "r1": SimpleNamespace(final_reward=None, triplets=[]),
        }
        samples = {"r0": {"data_id": "t0", "data_source": "math"}}
        [batch] = agent_lightning.batches_of_rollouts(rollouts, samples)
        assert (batch.rewards, batch.group_ids, batch.sources) == ([1.0], ["t0"], ["math"])
        assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 6]]
        assert batch.loss_mask.astype(int).tolist() == [[0, 0, 1, 0, 1, 1]]
        assert batch.logprobs[0, [2, 4, 5]].tolist() == [-0.5, -0.25, -1.0]
        assert agent_lightning.batches_of_rollouts({"r1": rollouts["r1"]}, samples) == []

    def test_a_rollout_without_a_reward_has_that_of_its_daemon(self):
        call = SimpleNamespace(prompt={"token_ids": [1]}, response={"token_ids": [2]})
        rollouts = {"r": SimpleNamespace(final_reward=None, triplets=[call])}
        [batch] = agent_lightning.batches_of_rollouts(rollouts, {}, 0.0)
        assert batch.rewards.tolist() == [0.0]
        [batch] = agent_lightning.batches_of_rollouts(rollouts, {})
        assert batch.rewards.tolist() == [None]


class Daemon:
    """As Agent Lightning's: keeps what has finished until it is cleared."""

    def __init__(self) -> None:
        self._completed_rollouts_v0: dict = {}
        self._task_id_to_original_sample: dict = {}

    def get_test_metrics(self):
        return {"val/reward": 1.0}


@pytest.fixture
def package(monkeypatch):
    """The two modules that are watched, with Agent Lightning's names."""
    modules = {name: ModuleType(name) for name in ("agentlightning", "agentlightning.verl")}
    trainer, daemon = ModuleType("agentlightning.verl.trainer"), ModuleType("agentlightning.verl.daemon")
    trainer.compute_data_metrics = lambda batch, use_critic=True, suffix="": {}
    daemon.AgentModeDaemon = Daemon
    modules["agentlightning.verl"].trainer, modules["agentlightning.verl"].daemon = trainer, daemon
    for name, module in {**modules, trainer.__name__: trainer, daemon.__name__: daemon}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Daemon, "get_test_metrics", Daemon.get_test_metrics)
    return trainer


class Trainer:
    """As `AgentLightningTrainer`: neither of the methods that are hooked in verl's own is called."""

    def __init__(self, module) -> None:
        self.module, self.global_steps, self.tokenizer = module, 1, None
        self.config = SimpleNamespace(trainer={})
        self.agent_mode_daemon = Daemon()

    def fit(self):
        self._train_step({})
        self._validate()

    def _train_step(self, batch_dict):
        self.module.compute_data_metrics(batch=Proto.of(ROWS), suffix="_before_processing")
        self.module.compute_data_metrics(batch=Proto.of(ROWS[:1]), suffix="_after_processing")

    def _validate(self):
        triplets = [SimpleNamespace(prompt={"token_ids": [1]}, response={"token_ids": [2]})]
        self.agent_mode_daemon._completed_rollouts_v0["r"] = SimpleNamespace(
            final_reward=1.0, triplets=triplets
        )
        return self.agent_mode_daemon.get_test_metrics()

    def _log_rollout_data(self, batch):
        raise AssertionError("Agent Lightning does not call it")


Trainer.__module__ = "agentlightning.verl.trainer"


def test_verls_hook_leaves_the_trainer_to_this_one_and_asks_for_no_dump(package):
    calls = []
    mine = SimpleNamespace(
        log_rollouts=lambda batches, *, step, split, await_join: calls.append(
            (step, split, sum(batch.n_rows for batch in batches))
        ),
        close_step=lambda step, split: calls.append((step, split, "closed")),
        flush=lambda: True,
    )
    trainer = Trainer(package)
    verl.attach(trainer, logger=mine)
    assert "rollout_data_dir" not in trainer.config.trainer
    trainer.fit()
    assert calls == [
        (1, "rollout", 4),
        (1, "rollout", "closed"),
        (1, "eval-rollout", 1),
        (1, "eval-rollout", "closed"),
    ]
