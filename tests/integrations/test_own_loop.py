"""A loop of one's own logs by a decorator, a subclass of transformers' Trainer by a callback."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import Trainer, TrainingArguments

from rollout_traces.integrations.base import failures
from rollout_traces.integrations.own_loop import logs_rollouts
from rollout_traces.integrations.trainer_callback import RolloutCallback
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.store import open_store
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer


@pytest.fixture
def seen():
    calls = []
    return SimpleNamespace(
        calls=calls,
        log_rollouts=lambda rollouts, *, step, split: calls.append((rollouts, step, split)),
    )


class TestTheDecorator:
    def test_a_result_is_logged_at_the_argument_step_and_handed_on(self, seen):
        @logs_rollouts(seen)
        def sample(step, prompts):
            return {"rows": prompts}

        assert sample(3, prompts=2) == {"rows": 2}
        assert seen.calls == [({"rows": 2}, 3, "rollout")]

    def test_step_and_batches_may_come_from_elsewhere(self, seen):
        @logs_rollouts(
            seen,
            split="eval-rollout",
            step=lambda given: given["epoch"] * 10,
            batches=lambda result: result["batch"],
        )
        def evaluate(epoch):
            return {"batch": "b", "score": 1.0}

        evaluate(2)
        assert seen.calls == [("b", 20, "eval-rollout")]

    def test_a_function_without_a_step_is_named_and_not_disturbed(self, seen, caplog):
        failures.clear()

        @logs_rollouts(seen)
        def sample(prompts):
            return prompts

        assert sample(2) == 2
        assert "no argument 'step'. Seen prompts" in caplog.text
        assert not seen.calls


class Sampling(Trainer):
    """A trainer that samples rollouts in every step."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        self.callback.log_rollouts(self.rollouts)
        loss = model.layer(inputs["x"]).square().mean()
        return (loss, {}) if return_outputs else loss


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x)


def test_a_real_trainers_steps_rollouts_and_scalars_lie_at_one_step(trackio_dir, tmp_path):
    tokenizer = tiny_tokenizer()
    logger = RolloutLogger(
        project="own", name="r", tokenizer=tokenizer, max_rollout_traces_per_step=2, worker="thread"
    )
    callback = RolloutCallback(logger)
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        per_device_train_batch_size=2,
    )
    data = [{"x": torch.ones(2)} for _ in range(8)]
    trainer = Sampling(Model(), arguments, train_dataset=data, callbacks=[callback])
    trainer.callback, trainer.rollouts = (
        callback,
        rollout_batch(tokenizer, BatchPlan(n_groups=2, group_size=4)),
    )
    trainer.train()
    store = open_store(project="own")
    assert logger.counters["closes_handed_over"] == 3
    assert sorted(set(store.ledger("r", "rollout").get("step").tolist())) == [1, 2, 3]
    steps, _ = store.metrics("r")["loss"][:2]
    assert list(steps) == [1, 2, 3]
