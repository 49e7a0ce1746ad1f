"""The trainer and its loop, in main's order: rollouts, advantages, update, evaluation, clearing, statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import AutoTokenizer

from areal.api.cli_args import PPOConfig
from areal.utils.stats_logger import StatsLogger
from areal.v2.inference_service.controller.controller import RolloutControllerV2
from areal.v2.training_service.controller.controller import GatewayTrainController


class PPOTrainer:
    def __init__(
        self, config: PPOConfig, train_dataset: Any | None = None, valid_dataset: Any | None = None
    ) -> None:
        self.config = config
        self.processor, self.tokenizer = None, AutoTokenizer.from_pretrained(config.tokenizer_path)
        self.actor = GatewayTrainController(None, config, None)
        self.critic = self.ref = None
        self.teachers: list[Any] = []
        self.train_dataloader, self.valid_dataloader = train_dataset, valid_dataset
        self.rollout = RolloutControllerV2(config, None)
        self.eval_rollout = None if valid_dataset is None else RolloutControllerV2(config, None)
        self.actor.connect_engine(self.rollout, None)
        self.stats_logger = StatsLogger(config, None)
        self.recover_info = None

    def train(
        self,
        workflow: Any | None = None,
        eval_workflow: Any | None = None,
        workflow_kwargs: dict[str, Any] | None = None,
        eval_workflow_kwargs: dict[str, Any] | None = None,
        dynamic_filter_fn: Callable[[dict[str, Any]], bool] | str | None = None,
        total_epochs: int | None = None,
    ) -> None:
        for global_step in range(len(self.train_dataloader)):
            rollout_batch = self.actor.prepare_batch(
                self.train_dataloader,
                workflow=workflow,
                workflow_kwargs=workflow_kwargs,
                should_accept_fn=dynamic_filter_fn,
                group_size=self.config.gconfig.n_samples,
                dynamic_bs=self.config.dynamic_bs,
            )
            adv_batch = self.actor.compute_advantages(rollout_batch)
            self.actor.ppo_update(adv_batch)
            self.rollout.set_version(global_step + 1)
            self._evaluate(eval_workflow, eval_workflow_kwargs, 0, global_step, global_step)
            self.actor.clear_batches(rollout_batch, adv_batch)
            self._export_and_commit_stats(epoch=0, epoch_step=global_step, global_step=global_step)

    def _evaluate(self, eval_workflow, eval_workflow_kwargs, epoch, epoch_step, global_step) -> None:
        if self.eval_rollout is None or not self.actor.is_data_parallel_head():
            return
        for item in self.valid_dataloader:
            self.eval_rollout.submit(
                item, eval_workflow, eval_workflow_kwargs, self.config.eval_gconfig.n_samples, is_eval=True
            )
        self.eval_rollout.wait(len(self.valid_dataloader), timeout=None)

    def _export_and_commit_stats(self, epoch: int, epoch_step: int, global_step: int) -> None:
        stats = self.actor.export_stats()
        stats.update(self.rollout.export_stats())
        self.stats_logger.commit(epoch, epoch_step, global_step, stats)

    def close(self) -> None:
        self.stats_logger.close()
        for part in (self.eval_rollout, self.rollout, self.actor):
            if part is not None:
                part.destroy()

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_value, traceback):
        self.close()
        return False
