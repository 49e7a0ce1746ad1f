"""SkyRL's real gym generator and its training batch; compared with what was stored.

Real: `SkyRLGymGenerator.generate` (also a row a turn), environments of `skyrl_gym`, `postprocess_generator_output`,
`convert_prompts_responses_to_batch_tensors`. Standing in: the inference engine, which writes tokens at random; vLLM and
flash-attn, which need a GPU, are empty modules. Its config needs `typing_extensions`' TypedDict below Python 3.12.
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import stand_ins  # noqa: F401
from adapter_rows import Comparison, Row

# isort: split
# What is imported above lets SkyRL be imported.
import skyrl_gym
from skyrl.train.config.config import GeneratorConfig, SamplingParams, SkyRLGymConfig
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl_gym.envs.base_text_env import BaseTextEnv

from rollout_traces.integrations import skyrl as integration
from tests.generator import tiny_tokenizer

STEPS, PROMPTS, SAMPLES = 6, 24, 4
WORDS = ["six", "seven", "the answer is 42", "I do not know", "maybe it is", "x = y + 1"]


class Turns(BaseTextEnv):
    """One to three turns with observations between them."""

    def __init__(self, env_config=None, extras=None) -> None:
        super().__init__()
        self.rng, self.n_turns = extras["rng"], extras["rng"].randrange(1, 4)

    def step(self, action: str):
        self.n_turns -= 1
        done = self.n_turns == 0
        observed = [] if done else [{"role": "user", "content": self.rng.choice(WORDS)}]
        reward = self.rng.choice([0.0, 0.25, 1.0])
        return {"observations": observed, "reward": reward, "done": done, "metadata": {}}

    def get_metrics(self):
        return {"left": float(self.n_turns)}


class Engine:
    """Writes tokens at random, as `InferenceEngineInterface` returns them."""

    model_name = "none"

    def __init__(self, tokenizer, rng: random.Random) -> None:
        self.tokenizer, self.rng = tokenizer, rng

    async def generate(self, input_batch, model=None):
        stop = self.rng.choice(["stop", "stop", "length"])
        ids = self.tokenizer.encode(" ".join(self.rng.choice(WORDS) for _ in range(self.rng.randrange(1, 6))))
        if stop == "stop":
            ids.append(self.tokenizer.eos_token_id)
        return {
            "responses": [self.tokenizer.decode(ids, skip_special_tokens=True)],
            "response_ids": [ids],
            "stop_reasons": [stop],
            "response_logprobs": [[-self.rng.random() * 3 for _ in ids]],
        }

    async def finish_session(self, session_id) -> None: ...


def one_step(generator: SkyRLGymGenerator, rng: random.Random, step: int):
    """A step's output and the uids of its rows, as SkyRL's trainer has them."""
    prompts = [p for p in range(PROMPTS) for _ in range(SAMPLES)]
    ids = [TrajectoryID(f"{step}-{p}", n % SAMPLES) for n, p in enumerate(prompts)]
    output = asyncio.run(
        generator.generate(
            {
                "prompts": [[{"role": "user", "content": f"What is 6*{step}{p}?"}] for p in prompts],
                "env_classes": ["turns"] * len(prompts),
                "env_extras": [{"rng": rng} for _ in prompts],
                "sampling_params": None,
                "trajectory_ids": ids,
                "batch_metadata": None,
            },
            disable_tqdm=True,
        )
    )
    given = output["trajectory_ids"] or ids
    return output, [one.instance_id for one in given], given


def rows_of_step(generator, output, uids, ids, tokenizer) -> list[Row]:
    """The rows of the tensors that SkyRL trains on."""
    by_turn = output["is_last_step"] is not None
    config = SimpleNamespace(
        generator=SimpleNamespace(
            step_wise_trajectories=by_turn, merge_stepwise_output=False, n_samples_per_prompt=SAMPLES
        ),
        trainer=SimpleNamespace(algorithm=SimpleNamespace(zero_variance_filter=False)),
    )
    trainer = SimpleNamespace(cfg=config, all_metrics={})
    output, _ = RayPPOTrainer.postprocess_generator_output(trainer, dict(output), uids)
    sequences, attention, _, rewards, masks, logprobs, _ = convert_prompts_responses_to_batch_tensors(
        tokenizer,
        output["prompt_token_ids"],
        output["response_ids"],
        output["rewards"],
        output["loss_masks"],
        output["rollout_logprobs"],
    )
    last = output["is_last_step"] or [True] * len(sequences)
    rows = []
    for b, tokens in enumerate(sequences):
        real = attention[b].bool()
        before = [0] * (len(tokens) - masks.shape[1])
        of_trajectory = next(n for n in range(b, len(last)) if last[n])
        values = {
            name: [track for track, there in zip([*before, *tensor[b].tolist()], real, strict=True) if there]
            for name, tensor in (("logprobs", logprobs), ("mask", masks), ("token_rewards", rewards))
        }
        rows.append(
            Row(
                ids=tokens[real].tolist(),
                trained=values.pop("mask"),
                reward=rewards[of_trajectory].sum().item(),
                group=uids[b],
                # Without a row a turn, SkyRL's output names no trajectories.
                episode=(ids[b].instance_id, ids[b].repetition_id) if by_turn else None,
                tracks=values,
                metadata={"stop_reason": output["stop_reasons"][b]},
            )
        )
    return rows


def main() -> None:
    """Samples and compares, every other step with a row a turn."""
    rng, tokenizer = random.Random(0), tiny_tokenizer("qwen2_5")
    skyrl_gym.register(id="turns", entry_point=Turns)
    comparison = Comparison("SkyRL", "skyrl", tokenizer)
    for step in range(STEPS):
        config = GeneratorConfig(
            max_turns=4,
            max_input_length=10_000,
            sampling_params=SamplingParams(logprobs=1),
            step_wise_trajectories=step % 2 == 1,
        )
        gym = SkyRLGymConfig(max_env_workers=0)
        generator = SkyRLGymGenerator(config, gym, Engine(tokenizer, rng), tokenizer)
        made = comparison.step(
            step,
            lambda generator=generator, step=step: one_step(generator, rng, step),
            lambda made: integration.batches_from(made[0], uids=made[1]),
        )
        comparison.add(step, rows_of_step(generator, *made, tokenizer))
    comparison.finish()


if __name__ == "__main__":
    main()
