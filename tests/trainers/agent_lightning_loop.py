"""Agent Lightning's real daemon and trainer step on verl; compared with what was stored.

Real: `AgentModeDaemon.get_train_data_batch` (a row a call, and merged rows), `get_test_metrics`,
`AgentLightningTrainer._train_step` and `_validate`, verl's `DataProto` and `compute_advantage`. Standing in: the agents
and their server, the workers (logprobs, update). litellm and agentops are empty modules, and so is Agent Lightning's
entry point, which wants an older verl.
"""

from __future__ import annotations

import random
from collections import defaultdict
from types import SimpleNamespace

import stand_ins  # noqa: F401
from adapter_rows import Comparison, Row

# isort: split
# What is imported above lets Agent Lightning be imported.
import torch
from agentlightning.types import RolloutLegacy, Triplet
from agentlightning.verl.daemon import AgentModeDaemon
from agentlightning.verl.trainer import AgentLightningTrainer
from omegaconf import OmegaConf
from verl import DataProto

from rollout_traces.integrations import agent_lightning
from tests.generator import tiny_tokenizer

STEPS, TASKS, SAMPLES, MINI_BATCH, LONGEST_PROMPT, LONGEST_RESPONSE = 6, 24, 4, 16, 60, 24
CONFIG = {
    "agentlightning": {
        "trace_aggregator": {
            "level": "transition",
            "trajectory_max_prompt_length": LONGEST_PROMPT,
            "trajectory_max_response_length": 3 * LONGEST_RESPONSE,
        }
    },
    "data": {"max_prompt_length": LONGEST_PROMPT, "max_response_length": LONGEST_RESPONSE},
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0},
    "actor_rollout_ref": {
        "rollout": {"n": SAMPLES, "multi_turn": {"enable": True}},
        "actor": {"ppo_mini_batch_size": MINI_BATCH, "loss_agg_mode": "token-mean"},
    },
    "trainer": {"balance_batch": False, "critic_warmup": 0, "project_name": "rows", "experiment_name": "r"},
}


class Daemon(AgentModeDaemon):
    """The real one without its server: rollouts are there at once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.pad_token_id, self.reward_fillna_value = rng, 0, 0.0
        self.trace_aggregator, self._use_mrope, self.is_train, self.tokenizer = (
            {"level": "transition"},
            False,
            True,
            None,
        )
        self._completed_rollouts_v0, self._task_id_to_original_sample = {}, {}
        self.made: list[dict[str, RolloutLegacy]] = []

    def set_up_data_and_server(self, data, server_addresses, is_train=True) -> None:
        self.is_train, step = is_train, len(self.made)
        for task in range(TASKS if is_train else 8):
            prompt = [self.rng.randrange(300, 1500) for _ in range(self.rng.randrange(2, 30))]
            for sample in range(SAMPLES if is_train else 1):
                name = f"rollout-{step}-{task}-{sample}"
                self._completed_rollouts_v0[name] = self._rollout(name, list(prompt))
                self._task_id_to_original_sample[name] = {"data_id": f"task-{task}", "data_source": "demo"}
        self._total_tasks_queued = len(self._completed_rollouts_v0)
        self.made.append(dict(self._completed_rollouts_v0))

    def run_until_all_finished(self, verbose=True) -> None: ...

    def _rollout(self, name: str, prompt: list[int]) -> RolloutLegacy:
        """One to four calls; some contexts are rewritten, some rollouts have no reward, some no call."""
        calls = []
        for _ in range(self.rng.choice([0, 1, 1, 2, 2, 3, 4])):
            ids = [self.rng.randrange(300, 1500) for _ in range(self.rng.randrange(1, 30))]
            logprobs = [{"logprob": -self.rng.random() * 3} for _ in ids]
            calls.append(
                Triplet(prompt={"token_ids": list(prompt)}, response={"token_ids": ids, "logprobs": logprobs})
            )
            between = [self.rng.randrange(300, 1500) for _ in range(self.rng.randrange(1, 6))]
            prompt = [*prompt, *ids, *between] if self.rng.random() < 0.8 else [prompt[0], *between]
        reward = self.rng.choice([0.0, 0.25, 1.0, None])
        return RolloutLegacy(rollout_id=name, final_reward=reward, triplets=calls)


class Workers:
    """In the place of the actor's worker group."""

    world_size = 1

    def __init__(self) -> None:
        self.trained: list[DataProto] = []

    def compute_log_prob(self, batch):
        zeros = torch.zeros(batch.batch["responses"].shape)
        return DataProto.from_dict(tensors={"old_log_probs": zeros - 0.5, "entropys": zeros})

    def update_actor(self, batch):
        self.trained.append(batch)
        return DataProto(meta_info={"metrics": {}})


class Manager:
    """In the place of verl's rollout servers."""

    server_addresses: list[str] = []

    def wake_up(self) -> None: ...

    def sleep(self) -> None: ...


class Trainer(AgentLightningTrainer):
    """The real one without workers and without a loop of epochs."""

    def __init__(self, tokenizer, rng: random.Random) -> None:
        self.config, self.tokenizer, self.global_steps = OmegaConf.create(CONFIG), tokenizer, 1
        self.agent_mode_daemon, self.actor_rollout_wg = Daemon(rng), Workers()
        self.async_rollout_manager = Manager()
        self.use_rm = self.use_critic = self.use_reference_policy = False
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        self.val_dataloader = [{"fake_ids": torch.zeros(1)}]


def rows_of_step(trainer: Trainer, everything: DataProto, trained: DataProto) -> list[Row]:
    """The rows of the data proto, and which of them reached the update."""
    left = defaultdict(int)
    for row in range(len(trained)):
        left[_identity(trained, row)] += 1
    rows = []
    for b in range(len(everything)):
        tensors, others = everything.batch[b], everything.non_tensor_batch
        real = tensors["attention_mask"].bool()
        n_prompt = int(real[: tensors["prompts"].shape[0]].sum())
        mask = tensors["response_mask"][real[tensors["prompts"].shape[0] :]].tolist()
        values = tensors["advantages"][real[tensors["prompts"].shape[0] :]].tolist()
        reason = None
        if bool(tensors["is_drop_mask"]):
            reason = agent_lightning.TOO_LONG
        elif left[_identity(everything, b)] == 0:
            reason = agent_lightning.REMAINDER
        else:
            left[_identity(everything, b)] -= 1
        rollout = others["rollout_id_list"][b]
        reward = trainer.agent_mode_daemon.made[-1][rollout].final_reward or 0.0
        rows.append(
            Row(
                ids=tensors["input_ids"][real].tolist(),
                trained=[0] * n_prompt + mask,
                reward=reward,
                group=others["data_id_list"][b],
                episode=rollout,
                tracks={
                    "advantages": [0.0] * n_prompt + values,
                    "prox_logprobs": [-0.5] * (n_prompt + len(mask)),
                },
                metadata={"discard_reason": reason},
            )
        )
    return rows


def _identity(data: DataProto, row: int) -> tuple:
    turns = data.non_tensor_batch.get("turn_index_list")
    return (
        data.non_tensor_batch["rollout_id_list"][row],
        None if turns is None else int(turns[row]),
        tuple(data.batch["input_ids"][row].tolist()),
    )


def rows_of_validation(trainer: Trainer) -> list[Row]:
    """The calls of each rollout merged as Agent Lightning merges them in training."""
    rows = []
    for name, rollout in trainer.agent_mode_daemon.made[-1].items():
        mine: list[tuple[list[int], list[int], list[float]]] = []
        for call in rollout.triplets:
            prompt, ids = call.prompt["token_ids"], call.response["token_ids"]
            logprobs = [item["logprob"] for item in call.response["logprobs"]]
            if not mine or prompt[: len(mine[-1][0])] != mine[-1][0]:
                mine.append(([], [], []))
            held, mask, values = mine[-1]
            new = len(prompt) - len(held)
            mask += [0] * new + [1] * len(ids)
            values += [0.0] * new + logprobs
            held[:] = [*prompt, *ids]
        for held, mask, values in mine:
            rows.append(
                Row(
                    ids=held,
                    trained=mask,
                    reward=0.0 if rollout.final_reward is None else rollout.final_reward,
                    group=name.split("-")[2],
                    episode=name,
                    tracks={"logprobs": values},
                    split="eval-rollout",
                )
            )
    return rows


def main() -> None:
    """Trains six steps, half of them with merged rows, validates twice, and compares."""
    rng, tokenizer = random.Random(0), tiny_tokenizer("qwen2_5")
    comparison = Comparison("Agent Lightning", "agentlightning", tokenizer)
    trainer = Trainer(tokenizer, rng)
    agent_lightning.attach(trainer, logger=comparison.logger)
    observer = trainer._rollout_traces
    seen: list[DataProto] = []
    hand_over = observer.on_metrics
    observer.on_metrics = lambda data: (seen.append(data), hand_over(data))[1]

    for step in range(1, STEPS + 1):
        trainer.global_steps = step
        level = "transition" if step % 2 else "trajectory"
        trainer.agent_mode_daemon.trace_aggregator = {"level": level}
        trainer.config.agentlightning.trace_aggregator.level = level
        trainer._train_step({"fake_ids": torch.zeros(1)})
        everything, trained = seen[-2:]
        comparison.add(step, rows_of_step(trainer, everything, trained))
        if step % 3 == 0:
            trainer._validate()
            comparison.add(step, rows_of_validation(trainer))
    comparison.finish("agent_lightning")


if __name__ == "__main__":
    random.seed(0)  # Agent Lightning's own shuffle
    main()
