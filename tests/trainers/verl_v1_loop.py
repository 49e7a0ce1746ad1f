"""verl's default trainer (`trainer.use_v1`) over a real transfer queue; compared with what was stored.

Real: the config, `PPOTrainer.fit`, `step`, `_compute_old_log_prob` (bypass), `_compute_advantage`, `_validate`,
`_log_rollout_data`, the replay buffer, the queue with its storage unit, the tool agent loop. Not run: the worker
groups (weights, update) and the inference engine; `AgentLoopWorkerTQ`'s writing to the queue is done here with its
fields and tags. Run by `make test-trainers` in verl's environment. Prints one line a check.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from verl_loop import ARGUMENTS, FOLDER, check_live, check_spans, worker_of

# isort: split
# What is imported above sets the environment in which verl loads its plugins.
import numpy as np
import orjson
import ray
import torch
import transfer_queue
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.experimental.agent_loop import agent_loop
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from rollout_traces.integrations.verl_observer import NO_DUMP
from rollout_traces.trace.conversion import TraceRecord, read_transcript
from tests.generator import tiny_tokenizer
from tests.trainers.live_watch import Watched
from tests.trainers.result import report

STEPS, PROMPTS, SAMPLES = 4, 32, 4
OVERRIDES = [
    "trainer.project_name=verl-v1",
    "trainer.experiment_name=r1",
    "trainer.logger=[]",
    "trainer.total_epochs=1",
    "trainer.test_freq=2",
    "trainer.val_before_train=false",
    "trainer.save_freq=-1",
    f"data.train_batch_size={PROMPTS}",
    f"actor_rollout_ref.rollout.n={SAMPLES}",
    "actor_rollout_ref.rollout.val_kwargs.n=2",
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=4",
    "actor_rollout_ref.rollout.prompt_length=400",
    "actor_rollout_ref.rollout.response_length=160",
    "algorithm.adv_estimator=grpo",
    "algorithm.rollout_correction.bypass_mode=true",
]


class Worker(agent_loop.AgentLoopWorker):
    """verl's worker, whose outputs are kept as they are."""

    async def _agent_loop_postprocess(self, output, validate, **kwargs):
        await self._compute_score([output], kwargs=kwargs)
        return output


class Loops:
    """Runs verl's tool agent loop and writes what it made to the queue, as `AgentLoopWorkerTQ` does."""

    def __init__(self, config, tokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.worker = worker_of(config, tokenizer, Worker)
        self.written: dict[str, dict] = {}

    def generate_sequences(self, batch) -> None:
        validate = bool(batch["validate"]) if "validate" in batch else False
        asyncio.run(self._all(batch, validate))

    async def _all(self, batch, validate: bool) -> None:
        step = int(batch["global_steps"])
        partition, n = ("val", 2) if validate else ("train", SAMPLES)
        sessions = []
        for uid, prompt in zip(map(_plain, batch["uid"]), map(_plain, batch["raw_prompt"]), strict=True):
            for session in range(n):
                sessions.append(self._one(uid, prompt, (session, step, partition)))
        await asyncio.gather(*sessions)
        for uid in map(_plain, batch["uid"]):
            transfer_queue.kv_put(key=uid, partition_id=partition, tag={"status": "finished"})

    async def _one(self, uid: str, prompt: list, place: tuple[int, int, str]) -> None:
        session, step, partition = place
        trajectory = {"step": step, "sample_index": 0, "rollout_n": session, "validate": partition == "val"}
        output = await self.worker._run_agent_loop(
            {}, trajectory, agent_name="scored_tool_agent", raw_prompt=prompt, uid=uid
        )
        version = max(step - 1, 0)
        output.extra_fields.update(min_global_steps=version, max_global_steps=version)
        field = output.as_dict()
        field.update(
            uid=uid,
            data_source="demo",
            reward_model={"style": "rule", "ground_truth": "42"},
            raw_prompt=prompt,
        )
        field["loss_mask"] = field["response_mask"]
        field["input_ids"] = torch.cat([field["prompts"], field["responses"]])
        key = f"{uid}_{session}_0"
        tag = {
            "status": "success",
            "seq_len": len(field["input_ids"]),
            "global_steps": step,
            "min_global_steps": version,
            "max_global_steps": version,
        }
        self.written[key] = {**field, "step": step, "partition": partition}
        fields = list_of_dict_to_tensordict([field])
        transfer_queue.kv_batch_put(keys=[key], fields=fields, tags=[tag], partition_id=partition)


def _plain(value):
    return getattr(value, "data", value)


def away(config, tokenizer, n: int) -> tuple[int, list[dict]]:
    """Runs agent loops in the process that this is called in, and gives what was noted of them."""
    worker = worker_of(config, tokenizer, Worker)

    async def run():
        place = {"step": 99, "sample_index": 0, "rollout_n": 0, "validate": False}
        prompt = [{"role": "user", "content": "What is 6*7?"}]
        runs = [
            worker._run_agent_loop({}, place, agent_name="scored_tool_agent", raw_prompt=prompt, uid="away")
            for _ in range(n)
        ]
        return await asyncio.gather(*runs)

    outputs = asyncio.run(run())
    time.sleep(1)
    return os.getpid(), [orjson.loads(output.extra_fields["rollout_traces"]) for output in outputs]


def check_away(trainer, tokenizer) -> None:
    """A worker of another process says what is in flight in the same run, and hands its spans on."""
    with Watched(FOLDER / "trackio", "verl-v1") as watched:
        pid, noted = ray.get(ray.remote(num_cpus=0)(away).remote(trainer.config, tokenizer, 4))
    assert pid != os.getpid()
    for each in noted:
        assert watched.stages(each["live"])[-1] == "done", watched.lines.get(each["live"])
        assert [span["kind"] for span in each["spans"]] == ["generate", "tool", "generate"], each["spans"]
    print(f"verl v1: {len(noted)} rollouts of a Ray worker seen in flight in the trainer's run")


def objects(values: list) -> np.ndarray:
    """One object an element; `np.array` would make equally long lists a matrix."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


class Trainer(PPOTrainer):
    """verl's trainer without workers: what needs weights does nothing."""

    def on_sample_end(self) -> None: ...

    def on_step_end(self) -> None: ...

    def prepare_step(self) -> dict:
        self._submit_batch_to_rollout(self._prompts(PROMPTS))
        return {}

    def _prompts(self, n: int):
        from verl.utils import tensordict_utils

        rows = [
            {"raw_prompt": [{"role": "user", "content": f"What is 6*7? v{i}"}], "index": i} for i in range(n)
        ]
        columns = {name: objects([row[name] for row in rows]) for name in rows[0]}
        columns["uid"] = objects([f"{self.global_steps}x{i}" for i in range(n)])
        batch = tensordict_utils.get_tensordict(columns)
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch

    def _balance_batch(self, batch, metrics, **_):
        return batch

    def _update_actor(self, batch, metrics):
        self.kept.update(self._advantages(batch))
        return batch

    def _advantages(self, batch) -> dict:
        data = transfer_queue.kv_batch_get(
            keys=batch.keys,
            partition_id=batch.partition_id,
            select_fields=["advantages", "rollout_log_probs"],
        )
        return {
            key: (advantage.numpy(), logprob.numpy())
            for key, advantage, logprob in zip(
                batch.keys,
                data.get("advantages").unbind(),
                data.get("rollout_log_probs").unbind(),
                strict=True,
            )
        }

    def _compute_metrics(self, *args, **kwargs) -> None: ...

    def _start_profiling(self) -> None: ...

    def _stop_profiling(self) -> None: ...

    def _maybe_log_val_generations(self, **_) -> None: ...


def build(tokenizer) -> Trainer:
    """The trainer with verl's own defaults, as `main_ppo` would compose them."""
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=OVERRIDES)
    assert config.trainer.use_v1 is True, "verl's default trainer is another one"
    OmegaConf.set_struct(config, False)
    config.data.apply_chat_template_kwargs = ARGUMENTS
    trainer = Trainer(config)
    trainer.tokenizer, trainer.global_steps, trainer.kept = tokenizer, 0, {}
    trainer.reward_loop_manager = type("Rewards", (), {"reward_loop_worker_handles": ()})()
    trainer.steps_per_epoch = trainer.total_training_steps = STEPS
    trainer._init_dump_executor()
    questions = [[{"role": "user", "content": f"What is 6*7? e{i}"}] for i in range(3)]
    trainer.val_dataloader = [
        {"raw_prompt": objects(questions), "index": np.arange(3), "data_source": ["demo"] * 3}
    ]
    return trainer


def stored(split: str) -> list[tuple[int, TraceRecord]]:
    """(step, trace) of a split."""
    with sqlite3.connect(FOLDER / "trackio" / "verl-v1.db") as db:
        query = "select step, messages, metadata, spans from traces where key = ?"
        rows = db.execute(query, (f"{split}/trajectories",))
        return [(s, TraceRecord(*(orjson.loads(p) for p in parts))) for s, *parts in rows]


def check(trainer: Trainer, written: dict[str, dict]) -> None:
    """Every row that verl's queue held equals its trace."""
    by_ids = {}
    for key, field in written.items():
        by_ids.setdefault((field["partition"], *field["input_ids"].tolist()), []).append((key, field))
    compared = 0
    for split, partition in (("rollout", "train"), ("eval-rollout", "val")):
        groups: dict[str, set] = {}
        for step, record in stored(split):
            track, meta = read_transcript(record).tokens, record.metadata
            candidates = [
                (key, field)
                for key, field in by_ids[(partition, *track.input_ids.tolist())]
                if field["step"] == step
            ]
            assert candidates, (split, step)
            key, field = candidates.pop()
            by_ids[(partition, *track.input_ids.tolist())].remove((key, field))
            n = len(field["responses"])
            np.testing.assert_array_equal(track.response_mask[-n:], field["response_mask"].bool().numpy())
            assert not track.response_mask[:-n].any()
            assert meta["reward"] == float(field["rm_scores"].sum()), (meta["reward"], field["rm_scores"])
            assert meta["ground_truth"] == "42"
            if split == "rollout":
                advantages, logprobs = trainer.kept[key]
                sampled = track.response_mask[-n:]
                np.testing.assert_allclose(
                    track.tracks["logprobs"][-n:][sampled], logprobs[sampled], atol=1e-3
                )
                np.testing.assert_allclose(
                    track.tracks["advantages"][-n:][sampled], advantages[sampled], atol=2e-3
                )
                assert meta["version_min"] == meta["version_max"] == step - 1 == meta["train_version"]
            groups.setdefault(f"{step}:{field['uid']}", set()).add(meta["group"])
            compared += 1
        assert all(len(group) == 1 for group in groups.values()), groups
    assert compared == len(written), (compared, len(written))
    print(
        f"verl v1: {compared} of {len(written)} rows equal in ids, masks, rewards, advantages, groups and step"
    )
    report("verl, default trainer", "verl_v1", "verl", rows=len(written), equal=compared)


def main() -> None:
    """Trains four steps with two validations, and checks."""
    start = time.time()
    assert getattr(PPOTrainer.__init__, "_rollout_traces", False), (
        "verl's plugin did not hook its default trainer"
    )
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    transfer_queue.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    try:
        tokenizer = tiny_tokenizer("qwen2_5")
        trainer = build(tokenizer)
        trainer._rollout_traces.hook.options.update(max_rollout_traces_per_step=10_000, selection="all")
        assert trainer.config.trainer.rollout_data_dir == NO_DUMP
        loops = Loops(trainer.config, tokenizer)
        with Watched(FOLDER / "trackio", "verl-v1") as watched:
            trainer.fit(loops)
            check_away(trainer, tokenizer)
        records = [record for split in ("rollout", "eval-rollout") for _, record in stored(split)]
        for split in ("rollout", "eval-rollout"):
            for step, record in stored(split):
                check_live(record, step, watched)
        print(f"verl v1: {check_spans(records)} spans around the server's and the tool's own times")
        assert not Path(NO_DUMP).exists()
        check(trainer, loops.written)
    finally:
        transfer_queue.close()
        ray.shutdown()
    print(f"verl v1: {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
