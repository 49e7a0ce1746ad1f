"""Realistic rollouts for tests and benchmarks: real chat templates, tools, thinking, groups, any padding.

Conversations are made up from a seed; their tokens come from a tokenizer's own chat template the way a
multi-turn trainer builds them: prompt with its generation prompt, sampled assistant text up to its end
marker, environment text, and so on. Every builder is deterministic.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SENTINEL = "quite unmistakable sentinel text"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
NAMES = ("Mia", "Tom", "Ada", "Kofi", "Lin", "Zoë", "Ravi", "José")
THINGS = ("apples", "marbles", "stamps", "coins", "books", "shells")
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


@functools.lru_cache(maxsize=16)
def tiny_tokenizer(template: str = "qwen3", vocab_size: int = 2000) -> Any:
    """A byte-level BPE tokenizer trained on this folder's sources, with one of trl's chat templates."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    here = Path(__file__).resolve()
    corpus = [here.read_text(), *(json.dumps(m) for s in range(40) for m in conversation(s).messages)]
    core.train_from_iterator(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    tokenizer.chat_template = (template_folder() / f"{template}.jinja").read_text()
    return tokenizer


def template_folder() -> Path:
    """Where trl keeps its chat templates; trl itself is not imported."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.origin is not None, "trl is not installed: pip install --no-deps trl"
    return Path(spec.origin).parent / "chat_templates"


@dataclass(frozen=True)
class Conversation:
    """A made-up conversation and what became of it.

    Attributes:
        messages: OpenAI-style messages.
        reward: between 0 and 1.
        stop_reason: `stop`, or `length` when the tokens should be cut.
    """

    messages: tuple[dict[str, Any], ...]
    reward: float = 0.0
    stop_reason: str = "stop"


def conversation(
    seed: int,
    *,
    n_calls: int = 1,
    n_retries: int = 0,
    ends_on_tool: bool = False,
    prompt_seed: int | None = None,
) -> Conversation:
    """A word problem solved with a calculator.

    Args:
        seed: what the assistant's answer is drawn from.
        n_calls: calculator calls before the answer.
        n_retries: further user turns that ask to look again, each answered.
        ends_on_tool: stop after the last tool result, as when the turn limit is reached.
        prompt_seed: what the question is drawn from; `seed` when not given.
    """
    rng = np.random.default_rng([prompt_seed if prompt_seed is not None else seed, 1])
    a, b, c = (int(v) for v in rng.integers(2, 90, 3))
    who, thing = NAMES[int(rng.integers(len(NAMES)))], THINGS[int(rng.integers(len(THINGS)))]
    answer_rng = np.random.default_rng([seed, 2])
    right = bool(answer_rng.random() < 0.6)
    truth = a + b * c
    answer = truth if right else truth + int(answer_rng.integers(1, 9))
    messages: list[dict[str, Any]] = [
        {
            "role": "system",
            "content": "You solve word problems. Use the calculator, then answer in \\boxed{}.",
        },
        {"role": "user", "content": f"{who} has {a} {thing} and gets {b} bags of {c} {thing}. How many now?"},
    ]
    for call in range(n_calls):
        expression = f"{a} + {b} * {c}" if call == 0 else f"{truth} - {call}"
        messages.append(
            {
                "role": "assistant",
                "content": f"<think>\n{who} starts with {a}; {b} bags of {c} come on top.\n</think>\n\nLet me compute.",
                "tool_calls": [
                    {
                        "id": f"call_{call}",
                        "type": "function",
                        "function": {"name": "calculator", "arguments": {"expression": expression}},
                    }
                ],
            }
        )
        messages.append(
            {
                "role": "tool",
                "name": "calculator",
                "tool_call_id": f"call_{call}",
                "content": str(truth - call) if right else "error: division by zero",
            }
        )
    if not ends_on_tool:
        messages.append(
            {"role": "assistant", "content": f"{who} now has \\boxed{{{answer}}} {thing}. ✓ 完成"}
        )
        for retry in range(n_retries):
            messages.append({"role": "user", "content": "Are you sure? Look again, please."})
            messages.append({"role": "assistant", "content": f"Yes, check {retry + 1}: \\boxed{{{answer}}}."})
    return Conversation(tuple(messages), reward=1.0 if right and not ends_on_tool else 0.0)


@dataclass(frozen=True)
class Rollout:
    """A conversation as tokens.

    Attributes:
        input_ids: int64 [n].
        sampled: bool [n]; the policy sampled the token.
        turn_ids: int64 [n]; number of the sampled turn, -1 outside.
        messages: what was rendered.
        reward: the reward.
        stop_reason: `stop` or `length`.
    """

    input_ids: np.ndarray
    sampled: np.ndarray
    turn_ids: np.ndarray
    messages: tuple[dict[str, Any], ...] = ()
    reward: float = 0.0
    stop_reason: str = "stop"

    def cut(self, n: int) -> Rollout:
        """The rollout's first n tokens, as when sampling ran into the length limit."""
        return Rollout(self.input_ids[:n], self.sampled[:n], self.turn_ids[:n], self.messages, 0.0, "length")


def render(tokenizer: Any, messages: Sequence[dict[str, Any]], *, prompt: bool, tools: Any = None) -> str:
    """The chat template's text of a conversation, with or without the generation prompt."""
    return tokenizer.apply_chat_template(
        list(messages), tools=tools, tokenize=False, add_generation_prompt=prompt
    )


def encode(tokenizer: Any, conv: Conversation, *, tools: Any = (CALCULATOR,)) -> Rollout:
    """Tokens of a conversation, segment by segment as a multi-turn trainer meets them."""
    tools = list(tools) if tools else None
    messages = list(conv.messages)
    first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    segments: list[tuple[str, bool]] = [
        (render(tokenizer, messages[:first], prompt=True, tools=tools), False)
    ]
    eos = tokenizer.eos_token
    index = first
    while index < len(messages):
        segments.append((_assistant_text(tokenizer, messages[:index], messages[index], tools, eos), True))
        following = index + 1
        while following < len(messages) and messages[following]["role"] != "assistant":
            following += 1
        environment = messages[index + 1 : following]
        if environment:
            segments.append(
                (_environment_text(tokenizer, environment, tools, eos, following < len(messages)), False)
            )
        index = following
    ids: list[int] = []
    sampled: list[bool] = []
    turns: list[int] = []
    turn = -1
    for text, is_sampled in segments:
        new = tokenizer.encode(text, add_special_tokens=False)
        turn += is_sampled
        ids += new
        sampled += [is_sampled] * len(new)
        turns += [turn if is_sampled else -1] * len(new)
    return Rollout(
        np.asarray(ids, np.int64),
        np.asarray(sampled, bool),
        np.asarray(turns, np.int64),
        tuple(messages),
        conv.reward,
        conv.stop_reason,
    )


def _assistant_text(tokenizer: Any, before: list, message: dict, tools: Any, eos: str) -> str:
    prompt = render(tokenizer, before, prompt=True, tools=tools)
    whole = render(tokenizer, [*before, message], prompt=False, tools=tools)
    if whole.startswith(prompt):
        text = whole[len(prompt) :]
    else:
        calls = "".join(
            "\n<tool_call>\n"
            + json.dumps({k: call["function"][k] for k in ("name", "arguments")}, ensure_ascii=False)
            + "\n</tool_call>"
            for call in message.get("tool_calls", ())
        )
        text = f"{message['content']}{calls}"
    return text.split(eos)[0] + eos


def _environment_text(tokenizer: Any, new: list, tools: Any, eos: str, goes_on: bool) -> str:
    base = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": SENTINEL}]
    whole = render(tokenizer, [*base, *new], prompt=goes_on, tools=tools)
    return whole.split(SENTINEL, 1)[1].split(eos, 1)[-1]


@dataclass(frozen=True)
class BatchPlan:
    """What a generated step looks like.

    Attributes:
        n_groups: prompts.
        group_size: rollouts a prompt.
        step: the trainer's step; versions lag it by up to two.
        padding: `right`, `left`, or `both` (each row starts at its own column).
        seed: what everything is drawn from.
        cut_share: share of rollouts cut by length.
        tool_end_share: share of rollouts that end on a tool result.
    """

    n_groups: int = 4
    group_size: int = 8
    step: int = 10
    padding: str = "right"
    seed: int = 0
    cut_share: float = 0.1
    tool_end_share: float = 0.1


@functools.lru_cache(maxsize=64)
def rollouts(tokenizer: Any, plan: BatchPlan) -> tuple[Rollout, ...]:
    """The rollouts of a plan, group by group; most tests ask for one of a few plans."""
    made = []
    for group in range(plan.n_groups):
        for sample in range(plan.group_size):
            seed = plan.seed * 100_003 + group * 997 + sample
            rng = np.random.default_rng([seed, 3])
            ends_on_tool = bool(rng.random() < plan.tool_end_share)
            conv = conversation(
                seed,
                n_calls=int(rng.integers(1, 3)),
                n_retries=int(rng.integers(0, 2)),
                ends_on_tool=ends_on_tool,
                prompt_seed=plan.seed * 1009 + group,
            )
            rollout = encode(tokenizer, conv)
            if rng.random() < plan.cut_share:
                rollout = rollout.cut(int(len(rollout.input_ids) * 0.8))
            made.append(rollout)
    return tuple(made)


def batch_arrays(tokenizer: Any, plan: BatchPlan = BatchPlan()) -> dict[str, Any]:
    """A generated step as canonical keys over numpy arrays [B, T] and lists of B."""
    rows = rollouts(tokenizer, plan)
    rng = np.random.default_rng([plan.seed, 4])
    B, T = len(rows), max(len(row.input_ids) for row in rows) + (0 if plan.padding == "right" else 5)
    arrays: dict[str, Any] = {
        "input_ids": np.full((B, T), tokenizer.pad_token_id, np.int64),
        "attention_mask": np.zeros((B, T), bool),
        "loss_mask": np.zeros((B, T), np.int64),
        "turn_ids": np.zeros((B, T), np.int64),
        "versions": np.zeros((B, T), np.int64),
        "logprobs": np.zeros((B, T), np.float32),
        "prox_logprobs": np.zeros((B, T), np.float32),
        "entropies": np.zeros((B, T), np.float32),
    }
    for b, row in enumerate(rows):
        n = len(row.input_ids)
        start = {"right": 0, "left": T - n, "both": int(rng.integers(0, T - n + 1))}[plan.padding]
        at = (b, slice(start, start + n))
        newest = plan.step - int(rng.integers(0, 2))
        versions = np.where(np.arange(n) < n * rng.random(), newest - 1, newest).clip(0)
        logprobs = -rng.exponential(0.35, n).astype(np.float32)
        arrays["input_ids"][at] = row.input_ids
        arrays["attention_mask"][at] = True
        arrays["loss_mask"][at] = row.sampled
        arrays["turn_ids"][at] = row.turn_ids
        arrays["versions"][at] = np.where(row.sampled, versions, -1)
        arrays["logprobs"][at] = np.where(row.sampled, logprobs, 0)
        drift = rng.normal(0, 0.01, n).astype(np.float32)
        arrays["prox_logprobs"][at] = np.where(row.sampled, np.minimum(logprobs + drift, 0), 0)
        arrays["entropies"][at] = np.where(row.sampled, rng.gamma(1.0, 0.3, n), 0)
    rewards = np.asarray([row.reward for row in rows], np.float32)
    formats = rng.random(B).astype(np.float32).round(2)
    total = (0.8 * rewards + 0.2 * formats).astype(np.float32)
    by_group = total.reshape(plan.n_groups, plan.group_size)
    spread = by_group.std(axis=1, keepdims=True)
    advantages = np.where(
        spread > 1e-6, (by_group - by_group.mean(axis=1, keepdims=True)) / (spread + 1e-6), 0
    )
    arrays |= {
        "rewards": total,
        "reward_components": {"correct": rewards, "format": formats},
        "sample_metrics": {
            "n_calls": np.asarray([sum("tool_calls" in m for m in row.messages) for row in rows], float)
        },
        "advantages": advantages.reshape(-1).astype(np.float32),
        "group_ids": np.repeat(np.arange(plan.n_groups), plan.group_size),
        "successes": [bool(reward > 0.5) for reward in rewards],
        "stop_reasons": [row.stop_reason for row in rows],
        "train_version": plan.step,
        "pad_id": tokenizer.pad_token_id,
    }
    return arrays


def rollout_batch(tokenizer: Any, plan: BatchPlan = BatchPlan()) -> Any:
    """A generated step as a `RolloutBatch` of CPU tensors."""
    import torch

    from rollout_traces.model.batch import RolloutBatch

    def as_tensor(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, dict):
            return {name: as_tensor(item) for name, item in value.items()}
        return value

    return RolloutBatch(**{key: as_tensor(value) for key, value in batch_arrays(tokenizer, plan).items()})
