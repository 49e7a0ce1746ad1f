"""Supervised warm-up: imitate demonstrations, some of them sloppy, until about half the problems are solved."""

from __future__ import annotations

import json
import random

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from .learner import token_logprobs
from .sampler import Sampler
from .task import TOOLS, Episode, Problem, make_problem

BATCH_SIZE = 12
SLOPPY_SHARE = 0.3
SLOPPY_WAYS = ("guess", "no_box", "broken_call", "wrong_operator", "ramble", "dither")


def tokenizer_texts(seed: int) -> list[str]:
    """Return text to train the tokenizer on: demonstrations, role names and the tool's definition."""
    rng = random.Random(seed)
    conversations = [demonstrate(make_problem(rng), rng) for _ in range(1000)]
    texts = [f"{message['role']}\n{message['content']}" for messages in conversations for message in messages]
    return [*texts, json.dumps(TOOLS)]


def demonstrate(problem: Problem, rng: random.Random) -> list[dict[str, str]]:
    """Write one conversation that solves ``problem``, or tries to: a share of solvers are sloppy."""
    episode = Episode(problem)
    messages = episode.opening()
    sloppy = rng.choice(SLOPPY_WAYS) if rng.random() < SLOPPY_SHARE else ""
    stop = None
    while stop is None:
        text = _turn(problem, messages, len(episode.boxed), sloppy, rng)
        messages.append({"role": "assistant", "content": text})
        reply, stop = episode.reply(text)
        if reply:
            messages.append(reply)
    return messages


def _turn(
    problem: Problem, messages: list[dict[str, str]], question: int, sloppy: str, rng: random.Random
) -> str:
    """Write the next assistant turn."""
    thought, expression = problem.thoughts[question], problem.expressions[question]
    last = messages[-1]
    if last["role"] == "tool" and not (sloppy == "dither" and rng.random() < 0.8):
        answer = str(rng.randint(2, 99)) if last["content"].startswith("error") else last["content"]
        return f"The answer is {answer}." if sloppy == "no_box" else f"The answer is \\boxed{{{answer}}}."
    if last["role"] == "tool":
        thought = "Let me check."
    if sloppy == "guess":
        return f"<think>\n{thought}\n</think>\nThe answer is \\boxed{{{rng.randint(2, 99)}}}."
    if sloppy == "ramble":
        thought = " ".join([thought] * rng.randint(2, 9))
    if sloppy == "wrong_operator":
        expression = expression.translate(str.maketrans("+-*/", rng.choice(["-+++", "**+-"])))
    arguments = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    if sloppy == "broken_call":
        arguments = arguments[: -rng.randint(1, 3)]
    return f"<think>\n{thought}\n</think>\n<tool_call>\n{arguments}\n</tool_call>"


def warm_up(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: list[Problem],
    seed: int,
    max_steps: int,
    stop_at: float = 0.4,
    measure_from: int = 200,
    measure_every: int = 20,
) -> float:
    """Train on fresh demonstrations until ``stop_at`` of the rollouts of ``problems`` succeed.

    Returns:
        The share that succeeded when it stopped.
    """
    rng = random.Random(seed)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [  # Muon for the matrices: copying is learned in half the steps that AdamW takes
        torch.optim.Muon(matrices, lr=0.01, weight_decay=0.0),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    ramps = [torch.optim.lr_scheduler.LinearLR(each, 1 / 30, total_iters=30) for each in optimizers]
    batches: list[list[dict[str, list[int]]]] = []
    success = 0.0
    for step in range(1, max_steps + 1):
        if not batches:  # rows of like length together: less padding
            rows = [encode(tokenizer, demonstrate(make_problem(rng), rng)) for _ in range(16 * BATCH_SIZE)]
            rows.sort(key=lambda row: len(row["input_ids"]))
            batches = [rows[i : i + BATCH_SIZE] for i in range(0, len(rows), BATCH_SIZE)]
            rng.shuffle(batches)
        imitate(model, tokenizer, batches.pop())
        for stepper in [*optimizers, *ramps]:
            stepper.step()
        model.zero_grad()
        if (step >= measure_from and step % measure_every == 0) or step == max_steps:
            success = measure_success(model, tokenizer, problems, seed)
            print(f"warm-up {step:4d}  success {success:.2f}", flush=True)
            if success >= stop_at:
                break
    return success


def encode(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """Render a conversation with the chat template, as token ids and a mask of the assistant's tokens."""
    return tokenizer.apply_chat_template(
        messages, tools=TOOLS, return_dict=True, return_assistant_tokens_mask=True
    )


def imitate(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: list[dict[str, list[int]]]
) -> None:
    """Compute the clipped gradient of the loss on the assistant's tokens."""
    unpadded = {"input_ids": [row["input_ids"] for row in rows]}
    ids = tokenizer.pad(unpadded, padding_side="right", return_tensors="pt")["input_ids"]
    written = torch.zeros_like(ids, dtype=torch.bool)
    for index, row in enumerate(rows):
        written[index, : len(row["input_ids"])] = torch.tensor(row["assistant_masks"], dtype=torch.bool)
    logprobs = token_logprobs(model, ids.to(model.device), written.to(model.device))
    (-logprobs.sum() / written.sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def measure_success(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: list[Problem], seed: int
) -> float:
    """Sample two rollouts for each problem and return the share that succeeded."""
    sampler = Sampler(tokenizer, group_size=2, seed=seed)
    for problem in problems:
        sampler.start(problem)
    groups = sampler.collect(model, version=0, n_groups=len(problems))
    return sum(rollout.episode.success for group in groups for rollout in group) / (2 * len(groups))
