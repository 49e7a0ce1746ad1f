"""ART's real trajectories, tokenisation and packing; compared with what was stored.

Real: `Trajectory`, `History`, `TrajectoryGroup`, `tokenize_trajectory_groups`, `packed_tensors_from_tokenized_results`.
Standing in: the inference server, whose choices carry tokens and logprobs as vLLM's do, and the update.
"""

from __future__ import annotations

import random

from adapter_rows import Comparison, Row

# isort: split
# What is imported above sets where Trackio writes.
import torch
from art.preprocessing.pack import packed_tensors_from_tokenized_results
from art.preprocessing.tokenize import tokenize_trajectory_groups
from art.trajectories import History, Trajectory, TrajectoryGroup
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

from rollout_traces.integrations import art as integration
from tests.generator import tiny_tokenizer

STEPS, GROUPS, GROUP, LENGTH = 6, 32, 4, 512
WORDS = [
    "six",
    "seven",
    "the answer is 42",
    "I do not know",
    "maybe \N{SNOWMAN} it is",
    "<b>42</b>",
    "x = y + 1\n\nso",
]


def choice(tokenizer, rng: random.Random) -> Choice:
    """A sampled message with its token ids and logprobs, as vLLM's server returns them to ART."""
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 6)))
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    content = [
        ChatCompletionTokenLogprob(
            token=f"token_id:{i}", bytes=[], logprob=-rng.random() * 3, top_logprobs=[]
        )
        for i in ids
    ]
    return Choice(
        index=0,
        finish_reason="stop",
        message=ChatCompletionMessage(role="assistant", content=text),
        logprobs=ChoiceLogprobs(content=content, refusal=None),
    )


def trajectory(tokenizer, rng: random.Random, question: str, step: int) -> Trajectory:
    """One to three turns, some with a second history of their own."""
    turns = [{"role": "user", "content": question}, choice(tokenizer, rng)]
    for _ in range(rng.randrange(0, 3)):
        turns += [{"role": "user", "content": rng.choice(WORDS)}, choice(tokenizer, rng)]
    others = []
    if rng.random() < 0.2:
        turn = {"role": "user", "content": f"{question} In short?"}
        others.append(History(messages_and_choices=[turn, choice(tokenizer, rng)]))
    return Trajectory(
        messages_and_choices=turns,
        additional_histories=others,
        reward=rng.choice([0.0, 0.25, 1.0]),
        metrics={"turns": len(turns) // 2, "right": rng.random() < 0.5},
        initial_policy_version=step,
        final_policy_version=step,
    )


def one_step(tokenizer, rng: random.Random, step: int):
    """A step's groups, their results, and what ART trains on, a row a result."""
    groups = [
        TrajectoryGroup([trajectory(tokenizer, rng, f"What is 6*{step}{g}?", step) for _ in range(GROUP)])
        for g in range(GROUPS)
    ]
    results = list(
        tokenize_trajectory_groups(
            tokenizer, groups, allow_training_without_logprobs=False, scale_rewards=True
        )
    )
    packed = packed_tensors_from_tokenized_results(results, LENGTH, pack_results=False)
    return groups, results, packed


def rows_of_step(groups, results, packed, step: int) -> list[Row]:
    """The rows of the packed tensors, which ART shuffles: each is found by its result's tokens."""
    group_of = {id(trajectory): g for g, group in enumerate(groups) for trajectory in group}
    mean = {g: sum(t.reward for t in group) / len(group) for g, group in enumerate(groups)}
    tokens = packed["tokens"].tolist()
    left = set(range(len(tokens)))
    rows = []
    for result in results:
        n, g = len(result.token_ids), group_of[id(result.trajectory)]
        rewards = [t.reward for t in groups[g]]
        deviation = (sum((r - mean[g]) ** 2 for r in rewards) / len(rewards)) ** 0.5
        advantage = (result.trajectory.reward - mean[g]) / (deviation + 1e-6)
        at = next(
            k
            for k in left
            if tokens[k][:n] == result.token_ids
            and packed["parent_ids"][k, 0].item() == result.prompt_id
            and packed["logprobs"][k, :n].nan_to_num().tolist()
            == torch.tensor(result.logprobs).nan_to_num().tolist()
        )
        left.remove(at)
        mask = packed["assistant_mask"][at, :n].tolist()
        rows.append(
            Row(
                ids=tokens[at][:n],
                trained=mask,
                reward=result.trajectory.reward,
                group=g,
                episode=id(result.trajectory),
                tracks={
                    "logprobs": packed["logprobs"][at, :n].tolist(),
                    "versions": [step] * n,
                },
                metadata={"sample/turns": float(result.trajectory.metrics["turns"]), "advantage": advantage},
            )
        )
    assert not left
    return rows


def main() -> None:
    """Tokenises and compares."""
    rng, tokenizer = random.Random(0), tiny_tokenizer("qwen2_5")
    comparison = Comparison("ART", "openpipe-art", tokenizer)
    for step in range(STEPS):
        made = comparison.step(
            step,
            lambda step=step: one_step(tokenizer, rng, step),
            lambda made: integration.batches_from(made[1]),
        )
        comparison.add(step, rows_of_step(*made, step))
    comparison.finish()


if __name__ == "__main__":
    main()
