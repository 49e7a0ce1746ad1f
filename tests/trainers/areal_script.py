"""A training script as AReaL's examples are: its config loader, its trainer, no word of rollout-traces.

Only the parts that need a GPU stand in: `areal_parts`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from areal import PPOTrainer
from areal.api.cli_args import GRPOConfig, load_expr_config
from areal.infra.rpc.rtensor import set_backend
from areal_parts import Actor, LocalBackend, Rollout


class InProcessTrainer(PPOTrainer):
    """AReaL's trainer, its constructor and its loop, around engines in this process."""

    def _init_scheduler(self):
        return None

    def _create_train_engine(self, actor_config, alloc):
        return Actor()

    def _init_rollout(self, rollout_config, is_eval=False, lora_path=None):
        return Rollout(self.tokenizer, Path(self.config.cluster.fileroot))


def main(args: list[str]) -> None:
    config, _ = load_expr_config(args, GRPOConfig)
    random.seed(config.seed)
    set_backend(LocalBackend())
    system = {"role": "system", "content": "Be short."}
    data = [
        {"messages": [system, {"role": "user", "content": f"What is 6*7? v{i}"}], "answer": "42"}
        for i in range(12)
    ]
    workflow = {
        "reward_fn": "areal_reward.is_right",
        "gconfig": config.gconfig,
        "tokenizer": config.tokenizer_path,
        "enable_thinking": False,
    }
    with InProcessTrainer(config, train_dataset=data, valid_dataset=data[:3]) as trainer:
        trainer.train(
            workflow="areal.workflow.rlvr.RLVRWorkflow",
            workflow_kwargs=workflow,
            eval_workflow="areal.workflow.rlvr.RLVRWorkflow",
            eval_workflow_kwargs=workflow,
        )
        torch.save(trainer.actor.batches, Path(config.cluster.fileroot) / "batches.pt")
    print("trained", trainer.actor.commits, "steps with", type(config.stats_logger.trackio).__name__)


if __name__ == "__main__":
    main(sys.argv[1:])
