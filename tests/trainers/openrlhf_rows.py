"""OpenRLHF's real experiences, from a response to advantages; compared with what was stored.

Real: `SamplesGenerator._process_response_into_experience`, `RemoteExperienceMaker.make_experience_batch` with its merged
micro batches, `compute_advantages_and_returns`. Standing in: vLLM's engines, which write tokens at random, and the
models' forward passes; vLLM, flash-attn and DeepSpeed, which need a GPU, are empty modules.
"""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace as Settings

import stand_ins  # noqa: F401
from adapter_rows import Comparison, Row

# isort: split
# What is imported above lets OpenRLHF be imported.
import torch
from openrlhf.trainer.ppo_utils import experience_maker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from rollout_traces.integrations import openrlhf as integration
from tests.generator import tiny_tokenizer

STEPS, PROMPTS, SAMPLES, LONGEST = 6, 24, 4, 90
ESTIMATORS = ("rloo", "reinforce_baseline", "group_norm")
ARGUMENTS = Settings(
    algo=Settings(
        advantage=Settings(gamma=1.0, lambd=1.0, no_std_norm=False, is_correction_level="token"),
        kl=Settings(use_loss=True, estimator="k1"),
    ),
    rollout=Settings(n_samples_per_prompt=SAMPLES, micro_batch_size=8),
    train=Settings(dynamic_batch_enable=False, colocate_all=False, colocate_actor_ref=False),
    ds=Settings(ring_attn_size=1, tensor_parallel_size=1),
    reward=Settings(clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None),
)


class Models:
    """In the place of the actor's group and the reference's: a logprob a predicted token, at random."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def async_run_method_batch(self, method_name: str, *, action_mask, **tensors):
        return [[-torch.rand(mask.shape, generator=self.generator) * 3 * mask] for mask in action_mask]


class Plain:
    """Ray's two functions on values that are there."""

    put = staticmethod(lambda value: value)
    get = staticmethod(lambda value: value)


def response(tokenizer, rng: random.Random, prompt: str) -> dict:
    """What a rollout worker returns: tokens, the ranges of one to three turns in them, their logprobs."""
    tokens, ranges = tokenizer.encode(prompt, add_special_tokens=False), []
    for turn in range(rng.randrange(1, 4)):
        if turn:
            tokens += [rng.randrange(300, 1500) for _ in range(rng.randrange(1, 6))]
        start = len(tokens)
        tokens += [rng.randrange(300, 1500) for _ in range(rng.randrange(1, 25))]
        ranges.append((start, len(tokens)))
    sampled = {t for start, end in ranges for t in range(start, end)}
    return {
        "observation_tokens": tokens,
        "action_ranges": ranges,
        "rollout_log_probs": [-rng.random() * 3 if t in sampled else 0.0 for t in range(len(tokens))],
        "reward": rng.choice([0.0, 0.25, 1.0]),
        "prompt": prompt,
        "label": f"label of {prompt}",
        "truncated": rng.random() < 0.1,
        "extra_logs": {"format": torch.tensor([rng.random()])},
    }


def one_step(maker, generator, tokenizer, rng: random.Random, step: int):
    """A step's responses, and the experiences that OpenRLHF makes of them."""
    # Every fourth prompt is there twice: two groups for OpenRLHF, though the prompts are equal.
    prompts = [f"What is 6*{step}{p // 2 * 2 if p % 8 == 1 else p}?" for p in range(PROMPTS)]
    responses = [response(tokenizer, rng, prompt) for prompt in prompts for _ in range(SAMPLES)]
    samples = [
        generator._process_response_into_experience(copy.deepcopy(one), max_len=LONGEST) for one in responses
    ]
    experiences = maker.make_experience_batch(samples)
    return responses, experiences


def rows_of_step(responses, experiences) -> list[Row]:
    """The responses, cut as OpenRLHF cuts them, with the values that it trains on, an action earlier than its token."""
    rows = []
    places = [(one, b) for one in experiences for b in range(len(one.sequences))]
    for n, (given, (made, b)) in enumerate(zip(responses, places, strict=True)):
        ids = given["observation_tokens"][:LONGEST]
        trained = [any(start <= t < end for start, end in given["action_ranges"]) for t in range(len(ids))]
        rows.append(
            Row(
                ids=ids,
                trained=trained,
                reward=given["reward"],
                group=n // SAMPLES,
                tracks={
                    "logprobs": given["rollout_log_probs"][:LONGEST],
                    "prox_logprobs": [0.0, *made.action_log_probs[b].tolist()][: len(ids)],
                    "advantages": [0.0, *made.advantages[b].tolist()][: len(ids)],
                },
                metadata={
                    "stop_reason": "length" if given["truncated"] else "stop",
                    "ground_truth": given["label"],
                    "sample/format": given["extra_logs"]["format"].item(),
                },
            )
        )
    return rows


def main() -> None:
    """Makes experiences and compares, with another estimator of advantages every step."""
    rng, tokenizer = random.Random(0), tiny_tokenizer("qwen2_5")
    experience_maker.ray = Plain
    generator = SamplesGenerator(Settings(args=ARGUMENTS), None, None, tokenizer, [])
    comparison = Comparison("OpenRLHF", "openrlhf", tokenizer)
    for step in range(STEPS):
        ARGUMENTS.algo.advantage.estimator = ESTIMATORS[step % len(ESTIMATORS)]
        maker = experience_maker.RemoteExperienceMaker(
            Models(step), None, None, None, Settings(value=0.0), Settings(args=ARGUMENTS), tokenizer
        )
        made = comparison.step(
            step,
            lambda maker=maker, step=step: one_step(maker, generator, tokenizer, rng, step),
            lambda made: integration.batches_from(made[1], group_size=SAMPLES),
        )
        comparison.add(step, rows_of_step(*made))
    comparison.finish()


if __name__ == "__main__":
    main()
