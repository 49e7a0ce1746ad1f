"""AReaL's parts that need no GPU, real, and small stand-ins for those that do.

Real: the workflows, the executor, the actor's advantages, `RTensor`. Standing in: the inference engine, the
rollout controller around the executor, the train controller around the actor.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from areal.api import RolloutWorkflow
from areal.api.cli_args import InferenceEngineConfig, NormConfig, PPOActorConfig
from areal.api.io_struct import ModelResponse
from areal.infra.remote_inf_engine import GroupedRolloutWorkflow
from areal.infra.rpc.rtensor import RTensor
from areal.infra.workflow_executor import WorkflowExecutor
from areal.trainer.ppo.actor import PPOActor
from areal.utils import logging as areal_logging
from areal.utils.dynamic_import import import_from_string

ANSWERS = ("It is 42.", "no idea", "forty two maybe")


def built(workflow: RolloutWorkflow | type | str, kwargs: dict | None) -> RolloutWorkflow:
    """A workflow as AReaL's engines resolve it: an instance, a class, or the import path of a class."""
    if isinstance(workflow, str):
        workflow = import_from_string(workflow)
    return workflow(**(kwargs or {})) if isinstance(workflow, type) else workflow


class LocalBackend:
    """Keeps shards in this process, as the trainer's workers would."""

    def __init__(self) -> None:
        self.shards: dict = {}

    def store(self, tensor):
        key = f"shard-{len(self.shards)}"
        self.shards[key] = tensor
        return key

    def fetch(self, shards):
        return [self.shards[shard.shard_id] for shard in shards]

    async def delete(self, *_):
        return None


class Engine:
    """What a workflow needs of an inference engine: canned answers, a version that moves mid-answer."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer
        self.version = 0
        self.times: list[tuple[float, float]] = []
        self.rid_to_address: dict[str, str] = {}

    def get_version(self) -> int:
        return self.version

    async def agenerate(self, request):
        began = time.time()
        self.rid_to_address[request.rid] = "10.0.0.1:3000"
        await asyncio.sleep(0.01)
        self.times.append((began, time.time()))
        stop = random.choice(["stop", "stop", "length"])
        tokens = self.tokenizer.encode(random.choice(ANSWERS), add_special_tokens=False)
        if stop == "stop":
            tokens = [*tokens, self.tokenizer.eos_token_id]
        half = len(tokens) // 2
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=tokens,
            output_logprobs=[-0.5] * len(tokens),
            output_versions=[self.version] * half + [self.version + 1] * (len(tokens) - half),
            stop_reason=stop,
            tokenizer=request.tokenizer,
            latency=0.1,
            ttft=0.1,
        )


class Rollout:
    """The surface of AReaL's rollout controller over its real executor."""

    def __init__(self, tokenizer, folder: Path, n_prompts: int = 4) -> None:
        self.engine = Engine(tokenizer)
        config = InferenceEngineConfig(
            backend="sglang:d1",
            experiment_name="e",
            trial_name="t",
            fileroot=str(folder),
            consumer_batch_size=n_prompts,
            max_concurrent_rollouts=2 * n_prompts,
            max_head_offpolicyness=10**6,
        )
        self.executor = WorkflowExecutor(config, self.engine)
        self.executor.initialize(train_data_parallel_size=1)

    def submit(self, data, workflow, kwargs, group_size=1, is_eval=False, **_):
        workflow = built(workflow, kwargs)
        if group_size > 1:
            workflow = GroupedRolloutWorkflow(workflow, group_size, areal_logging.getLogger("g"))
        self.executor.submit(data, workflow=workflow, is_eval=is_eval)

    def wait(self, n, timeout=None, raise_timeout=True):
        return [RTensor.remotize(item, node_addr="n:1") for item in self.executor.wait(n, timeout=timeout)]

    def set_version(self, version):
        self.engine.version = version

    def export_stats(self):
        return {"rollout/accepted": 1.0}

    def destroy(self):
        self.executor.destroy()

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Actor:
    """The surface of the train controller over AReaL's real actor; the update itself is left out."""

    data_parallel_rank, data_parallel_world_size = 0, 1
    config = PPOActorConfig(
        experiment_name="e",
        trial_name="t",
        backend="fsdp:d1",
        path="x",
        kl_ctl=0.0,
        use_decoupled_loss=False,
        recompute_logprob=False,
        reward_norm=NormConfig(mean_level="group", std_level="group", group_size=4),
        adv_norm=None,
    )

    def __init__(self, rollout: Rollout | None = None) -> None:
        self.rollout = rollout
        self.inner = PPOActor(self.config, SimpleNamespace(data_parallel_group=None))
        self.commits = 0
        self.batches: list = []
        self.advantages: list = []

    def connect_engine(self, rollout, meta):
        self.rollout = rollout

    def prepare_batch(self, loader, workflow, workflow_kwargs=None, should_accept_fn=None, group_size=1, **_):
        workflow = built(workflow, workflow_kwargs)
        grouped = GroupedRolloutWorkflow(workflow, group_size, areal_logging.getLogger("g"))
        batch = self.rollout.executor.prepare_batch(loader, workflow=grouped)
        self.batches.append([{k: v.clone() for k, v in item.items() if torch.is_tensor(v)} for item in batch])
        return [RTensor.remotize(item, node_addr="n:1") for item in batch]

    def compute_advantages(self, batch):
        made = self.inner.compute_advantages(RTensor.localize(copy.deepcopy(batch)))
        self.advantages.append(
            [{k: v.clone() for k, v in item.items() if torch.is_tensor(v)} for item in made]
        )
        return [RTensor.remotize(item, node_addr="n:1") for item in made]

    def is_data_parallel_head(self):
        return True

    def get_device_stats(self):
        return SimpleNamespace(log=lambda *_: None)

    def export_stats(self):
        self.commits += 1
        return {"ppo_actor/loss": 1.0 / self.commits}

    def __getattr__(self, name):
        return lambda *args, **kwargs: None
