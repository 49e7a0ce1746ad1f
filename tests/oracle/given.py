"""Steps drawn at random: every dtype, padding, part layout and lack, as trainers hand them over.

The tables of the second opinion (`tests.oracle.rows`, `metrics`, `flags`) are computed from these plain values.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

FLOAT_TRACKS = (
    "logprobs",
    "prox_logprobs",
    "new_logprobs",
    "ref_logprobs",
    "advantages",
    "values",
    "entropies",
    "token_rewards",
    "loss_weights",
)
REASONS = ("stop", "eos", "length", "max_tokens", "Max-New-Tokens", "end_turn", "abort", "tool limit", None)
DISCARDS = (None, None, None, "max_async", "zero_advantage", "too_long")
NEARLY_EQUAL = (1.0, 1.0, 1.0000004, 1.0000016, 1.0000024)
"""Rewards of which some are equal by the rule for ties and some are not."""
STATUSES = ("ok", "ok", "ok", "timeout", "error", None)


@dataclass
class GivenStep:
    """A step as it is handed over.

    Attributes:
        calls: each a list of mappings of canonical keys, the parts of one call.
        settings: what the run declares, by field of `RunSettings`.
        split: `rollout` or `eval-rollout`.
        seed: what it was drawn from.
    """

    calls: list[list[dict[str, Any]]]
    settings: dict[str, Any] = field(default_factory=dict)
    split: str = "rollout"
    seed: int = 0


def draw_step(seed: int, *, n_calls: int | None = None, long_rows: bool = False) -> GivenStep:
    """A random step.

    Args:
        seed: what it is drawn from.
        n_calls: calls it comes in; at random when None.
        long_rows: lets some rollouts be long enough to loop.
    """
    rng = random.Random(seed)
    columns = {name for name in _COLUMNS if rng.random() < 0.75}
    if "versions" in columns and rng.random() < 0.8:
        columns.add("train_version")
    group_offset, calls = 0, []
    shared = {"train_version": rng.randint(3, 6), "pool": rng.randint(2, 30)}
    names = rng.sample(["correct", "format", "brevity"], rng.randint(1, 3))
    for _ in range(n_calls if n_calls is not None else rng.choice([1, 1, 1, 2, 3])):
        call = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            part = _part(rng, columns, shared, names, group_offset, long_rows)
            group_offset += 100
            call.append(part)
        calls.append(call)
    settings: dict[str, Any] = {}
    if rng.random() < 0.7:
        settings |= {"clip_low": 0.2, "clip_high": rng.choice([0.2, 0.28])}
    if rng.random() < 0.4:
        settings["reward_range"] = (0.0, 1.0)
    if rng.random() < 0.4:
        settings["success_threshold"] = 0.5
    if rng.random() < 0.3:
        settings["component_weights"] = {name: rng.choice([0.5, 1.0, 2.0]) for name in names[:2]}
    if rng.random() < 0.5:
        settings["importance_cap"] = rng.choice([1.5, 2.0])
    if rng.random() < 0.5:
        settings["importance_band"] = (0.5, 2.0)
    if rng.random() < 0.3:
        settings["samples_per_prompt"] = 4
    return GivenStep(calls, settings, rng.choice(["rollout", "rollout", "eval-rollout"]), seed)


_COLUMNS = (
    "response_mask",
    "versions",
    "turn_ids",
    *FLOAT_TRACKS,
    "rewards",
    "raw_rewards",
    "reward_components",
    "sample_metrics",
    "prompt_keys",
    "sources",
    "engine_ids",
    "parsed_answers",
    "ground_truths",
    "successes",
    "reward_statuses",
    "stop_reasons",
    "discard_reasons",
    "extras",
    "timings",
    "episode_ids",
)


def _part(
    rng: random.Random,
    columns: set[str],
    shared: dict[str, Any],
    names: list[str],
    first: int,
    long_rows: bool,
) -> dict[str, Any]:
    n_groups, size = rng.randint(1, 3), rng.choice([1, 2, 3, 4])
    groups = [first + g for g in range(n_groups) for _ in range(size)]
    B, T = len(groups), rng.randint(3, 24) + (400 if long_rows and rng.random() < 0.5 else 0)
    mine = {name for name in sorted(columns) if rng.random() < 0.85}
    attention = [_attention(rng, T) for _ in range(B)]
    sampled = [_sampled(rng, T) for _ in range(B)]
    ids = _ids(rng, groups, attention, sampled, shared["pool"], long_rows)
    loss = [[int(s and rng.random() < 0.9) for s in row] for row in sampled]
    if rng.random() < 0.15:
        loss[rng.randrange(B)] = [0] * T
    part: dict[str, Any] = {
        "input_ids": _array(rng, ids, rng.choice(["int64", "int32"])),
        "attention_mask": _array(rng, attention, rng.choice(["bool", "int64", "float32", "uint8"])),
        "loss_mask": _array(rng, loss, rng.choice(["bool", "int64", "float32", "int32"])),
        "group_ids": groups,
    }
    if "response_mask" in mine:
        part["response_mask"] = _array(rng, sampled, rng.choice(["bool", "int64", "float32"]))
    if "versions" in mine:
        newest = shared["train_version"] + rng.choice([0, 0, 0, 1])
        versions = [[rng.randint(newest - 3, newest) if s else -1 for s in row] for row in sampled]
        part["versions"] = _array(rng, versions, rng.choice(["int64", "int32"]))
    if "turn_ids" in mine:
        part["turn_ids"] = _array(rng, [_turns(rng, row) for row in sampled], "int64")
    if "train_version" in columns:
        part["train_version"] = shared["train_version"]
    for name in FLOAT_TRACKS:
        if name in mine:
            part[name] = _track(rng, name, B, T)
    part |= _row_values(rng, mine, B, names)
    if "episode_ids" in mine and rng.random() < 0.5:
        part["episode_ids"] = [f"{first}-{b // 2}" if rng.random() < 0.9 else None for b in range(B)]
        part["parents"] = [rng.choice([None, None, "root"]) for _ in range(B)]
    return part


def _row_values(rng: random.Random, mine: set[str], B: int, names: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    components = {name: [rng.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(B)] for name in names}
    additive = rng.random() < 0.5
    rewards: list[Any] = [
        sum(components[name][b] for name in names)
        if additive
        else rng.choice([0.0, 0.0, 0.5, 1.0, 1.0, 1.0000001])
        for b in range(B)
    ]
    if rng.random() < 0.15:
        rewards = [rng.choice(NEARLY_EQUAL) for _ in range(B)]
    if rng.random() < 0.1:
        rewards[: B // 2] = [1e6 + reward for reward in rewards[: B // 2]]
    if rng.random() < 0.2:
        rewards[rng.randrange(B)] = rng.choice([None, math.nan, math.inf])
    if "rewards" in mine:
        given["rewards"] = (
            rewards if None in rewards else _array(rng, rewards, rng.choice(["float32", "float64"]))
        )
    if "raw_rewards" in mine:
        given["raw_rewards"] = [reward if reward is None else reward * 2 for reward in rewards]
    if "reward_components" in mine:
        values: dict[str, Any] = {name: list(column) for name, column in components.items()}
        if rng.random() < 0.15:
            values[names[0]][rng.randrange(B)] = rng.choice([None, math.nan])
        given["reward_components"] = values
    if "sample_metrics" in mine:
        given["sample_metrics"] = {
            name: [rng.choice([0.0, 1.0, 2.0, 7.5, None if rng.random() < 0.2 else 3.0]) for _ in range(B)]
            for name in ("calls", "depth")[: rng.randint(1, 2)]
        }
    lists = {
        "prompt_keys": lambda b: f"prompt {rng.randint(0, 5)}",
        "sources": lambda b: rng.choice(["math", "code"]),
        "engine_ids": lambda b: rng.choice(["engine-0", "engine-1", None]),
        "parsed_answers": lambda b: rng.choice(["4", "5", 4, None, "x" * 300]),
        "ground_truths": lambda b: rng.choice(["4", 5, None, "y" * 250]),
        "successes": lambda b: rng.choice([True, False, None, 1, 0]),
        "reward_statuses": lambda b: rng.choice(STATUSES),
        "stop_reasons": lambda b: rng.choice(REASONS),
        "discard_reasons": lambda b: rng.choice(DISCARDS),
        "extras": lambda b: rng.choice(
            [{"difficulty": 2, "topic": "algebra"}, {"difficulty": 0.5}, {}, None]
        ),
        "timings": lambda b: rng.choice(
            [{"generate": 1.5, "reward": 0.25}, {"generate": 2}, None, _spans(rng, b)]
        ),
    }
    for name, draw in lists.items():
        if name in mine:
            given[name] = [draw(b) for b in range(B)]
    return given


def _attention(rng: random.Random, T: int) -> list[int]:
    left, right = rng.choice([(0, 0), (0, 2), (2, 0), (1, 1), (0, T // 2)])
    row = [int(left <= t < T - right) for t in range(T)]
    if rng.random() < 0.1 and T > 4:
        row[T // 2] = 0
    return [0] * T if rng.random() < 0.02 else row


def _sampled(rng: random.Random, T: int) -> list[int]:
    start = rng.randint(0, T)
    row = [int(t >= start) for t in range(T)]
    for _ in range(rng.choice([0, 0, 1, 2])):
        at = rng.randint(0, T - 1)
        row[at : at + 2] = [0] * len(row[at : at + 2])
    return row


def _turns(rng: random.Random, sampled: list[int]) -> list[int]:
    turn, found = 0, []
    for t, is_sampled in enumerate(sampled):
        if is_sampled and t and (not sampled[t - 1] or rng.random() < 0.1):
            turn += 1
        found.append(turn if is_sampled else -1)
    return found


def _ids(
    rng: random.Random, groups: list[int], attention: Any, sampled: Any, pool: int, long_rows: bool
) -> list[list[int]]:
    rows: list[list[int]] = []
    for b, group in enumerate(groups):
        T = len(attention[b])
        prompt = random.Random(group)
        row = [rng.randint(0, pool) if s else prompt.randint(0, 1000) for s in sampled[b]]
        if rows and rng.random() < 0.2 and groups[b - 1] == group:
            row = list(rows[-1])
            attention[b][:], sampled[b][:] = attention[b - 1], sampled[b - 1]
        elif long_rows and T > 300 and rng.random() < 0.5:
            period = rng.choice([1, 3, 17, 64, 70])
            row = [t % period for t in range(T)]
        rows.append(row)
    return rows


def _track(rng: random.Random, name: str, B: int, T: int) -> Any:
    if name == "advantages" and rng.random() < 0.4:
        values: Any = [rng.choice([0.0, 0.0, 1.0, -1.0, 0.5]) for _ in range(B)]
        return _array(rng, values, rng.choice(["float32", "float64"]))
    scale = 1 if name in ("entropies", "loss_weights") else -1
    center = {"values": 0.5, "token_rewards": 0.0}.get(name)
    rows = [
        [
            rng.randint(-64, 64) / 64 + center if center is not None else scale * rng.randint(0, 256) / 128
            for _ in range(T)
        ]
        for _ in range(B)
    ]
    if name == "advantages":
        rows = [[rng.choice([0.0, 1.0, -1.0, 0.25])] * T for _ in range(B)]
    if rng.random() < 0.15:
        rows[rng.randrange(B)][rng.randrange(T)] = rng.choice([math.nan, -math.inf, math.nan, 80000.0])
    return _array(rng, rows, rng.choice(["float32", "float64", "float16", "bfloat16"]))


def _array(rng: random.Random, values: Any, dtype: str) -> Any:
    """A tensor, an array or a list."""
    if dtype == "bfloat16":
        return torch.tensor(values, dtype=torch.bfloat16)
    kind = rng.choice(["numpy", "torch", "list"])
    with np.errstate(over="ignore"):
        array = np.asarray(values, dtype)
    if kind == "torch":
        return torch.from_numpy(array)
    return array.tolist() if kind == "list" and dtype in ("int64", "float64", "bool") else array


def plain(values: Any) -> Any:
    """What was given as Python numbers, in lists."""
    if isinstance(values, torch.Tensor):
        values = values.double().numpy() if values.is_floating_point() else values.numpy()
    return values.tolist() if isinstance(values, np.ndarray) else values


def _spans(rng: random.Random, b: int) -> list[dict[str, Any]]:
    """Spans of a row in whole sixteenths of a second, with one that is none; a judge scores it alone."""
    at, spans = 1000.0 + rng.randrange(10**9), []
    for turn in range(rng.randint(1, 3)):
        spans.append({"kind": "generate", "start": at, "end": at + rng.randint(0, 40) / 16, "turn": turn})
        at += 4
    spans.append({"kind": "score", "start": at, "end": at + 0.5 + b, "name": "judge"})
    return [*spans, {"kind": "tool", "start": at, "end": at - 1}]
