"""A training script as users write it against this layout."""

import json
import sys

from areal import PPOTrainer
from areal.api.cli_args import PPOConfig, load_expr_config
from areal.infra.rpc import rtensor

config, _ = load_expr_config(sys.argv[1:], PPOConfig)
with PPOTrainer(config, train_dataset=[["a", "b"]] * 3, valid_dataset=["c"]) as trainer:
    trainer.train(workflow="my.Agent", eval_workflow="my.Agent", workflow_kwargs={})
    made = [
        {
            key: value.tolist()
            for key, value in group.items()
            if key in ("input_ids", "attention_mask", "rewards")
        }
        for group in trainer.rollout.made
    ]
print(json.dumps({"made": made, "buffered": len(rtensor._fetch_buffer)}))
