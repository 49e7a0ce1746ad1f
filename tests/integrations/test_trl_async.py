"""Samples of TRL's asynchronous trainer: each is logged in the step that trains on it, a stale one as discarded."""

from __future__ import annotations

import queue
from types import SimpleNamespace

import numpy as np

from rollout_traces.capture.host_copy import capture
from rollout_traces.integrations import trl_async
from rollout_traces.integrations.trl_async import Taken, batches_from


def sample(prompt: list[int], mask: list[int], *, group: int = 0, version: int = 1, reward: float = 0.5):
    """As TRL's `RolloutSample`."""
    n = len(prompt) + len(mask)
    return SimpleNamespace(
        input_ids=np.asarray([*prompt, *range(100, 100 + len(mask))], np.int64),
        completion_mask=np.asarray([0] * len(prompt) + mask),
        old_log_probs=np.asarray([0.0] * len(prompt) + [-0.5 * m for m in mask], np.float32),
        advantage=-0.25,
        model_version=version,
        group_id=group,
        metrics={"reward": reward, "rewards/right": reward, "tools/call_frequency": 1.0},
        n=n,
    )


class TestBatch:
    def test_tokens_masks_logprobs_versions_and_rewards_are_the_samples(self):
        samples = [sample([1, 2], [1, 0, 1], group=4), sample([1], [1], version=0, reward=float("nan"))]
        [batch] = batches_from(Taken(samples, train_version=2))
        host = capture([batch], step=1, split="rollout")
        for b, given in enumerate(samples):
            where = host.row(b)
            mask = given.completion_mask == 1
            assert host.input_ids[where].tolist() == given.input_ids.tolist()
            assert host.loss_mask[where].tolist() == host.response_mask[where].tolist() == mask.tolist()
            assert host.tracks["versions"][where].tolist() == [given.model_version if m else -1 for m in mask]
            assert host.tracks["logprobs"][where][mask].tolist() == given.old_log_probs[mask].tolist()
        assert batch.group_ids == [4, 0] and batch.discard_reasons is None
        assert batch.reward_components["right"][0] == 0.5
        assert list(batch.sample_metrics["call_frequency"]) == [1.0, 1.0]

    def test_a_sample_with_nothing_to_train_on_is_all_prompt(self):
        [batch] = batches_from(Taken([sample([1, 2], [0, 0])]))
        assert not batch.loss_mask.any() and batch.attention_mask.sum() == 4

    def test_no_samples_are_no_batch(self):
        assert batches_from(Taken([])) == []


class Trainer:
    """The surface that is hooked: a loader that reads one micro-batch ahead, as accelerate's does."""

    def __init__(self, samples) -> None:
        self.rollouts = queue.Queue()
        for one in samples:
            self.rollouts.put(one)
        self.state = SimpleNamespace(global_step=0)
        self.accelerator = SimpleNamespace(prepare=lambda loader: loader)
        self.callback_handler = SimpleNamespace(callbacks=[])
        self.args, self.processing_class, self.model_version = SimpleNamespace(), None, 3
        self.log = lambda logs: None

    def get_train_dataloader(self):
        self._rollout_dataset = SimpleNamespace(
            queue=self.rollouts, model_version_fn=lambda: 3, max_staleness=1, report_to=["trackio"]
        )
        return self.accelerator.prepare(SimpleNamespace(collate_fn=lambda examples: examples))

    def training_step(self, model, inputs):
        return inputs

    def micro_batch(self, loader):
        taken = self._rollout_dataset.queue.get()
        while 3 - taken.model_version > 1:
            taken = self._rollout_dataset.queue.get()
        return loader.collate_fn([[SimpleNamespace(samples=[{"input_ids": taken.input_ids}])]])


def test_a_sample_read_ahead_is_logged_in_the_step_that_trains_on_it(monkeypatch):
    samples = [sample([1], [1], group=g, version=v) for g, v in ((0, 3), (1, 0), (2, 3), (3, 2))]
    logged = []
    mine = SimpleNamespace(
        log_rollouts=lambda batches, *, step, split, await_join: logged.extend(
            (step, group, reason)
            for batch in batches
            for group, reason in zip(
                batch.group_ids, batch.discard_reasons or [None] * batch.n_rows, strict=True
            )
        ),
        close_step=lambda step, split: logged.append((step, "closed")),
    )
    trainer = Trainer(samples)
    callback = trl_async.attach(trainer, logger=mine)
    loader = trainer.get_train_dataloader()
    ahead = trainer.micro_batch(loader)
    for _ in range(2):
        inputs, ahead = ahead, trainer.micro_batch(loader)
        trainer.training_step(None, inputs)
        trainer.state.global_step += 1
        callback.on_step_end(None, trainer.state, None)
    assert logged == [
        (1, 1, "stale"),
        (1, 0, None),
        (1, "closed"),
        (2, 2, None),
        (2, "closed"),
    ]
    assert trainer._rollout_dataset.report_to == []
    assert len(callback.packed) == 1 and not callback.pulled
