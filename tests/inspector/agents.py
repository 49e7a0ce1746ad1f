"""A step of an agent whose episodes reach the trainer as several rows: a sub-agent, a branch, a retry, a compaction."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generator import Conversation, Rollout, encode

TASK = "Find the year in which the bridge of {place} was opened, with its source."
ANSWER = "The bridge of {place} was opened in {year}, says the city archive."
PLACES = ("Porto", "Sydney", "Prague", "Bergen", "Kyoto", "Lima")
ROWS = ("lead", "researcher", "branch", "retry", "compacted")
PARENTS = (None, 0, 0, 0, 0)
"""The row that each of them left, by position."""


def episode_conversations(place: str, year: int) -> list[list[dict[str, Any]]]:
    """The five conversations of one episode, in the order of `ROWS`."""
    task, answer = TASK.format(place=place), ANSWER.format(place=place, year=year)
    system = {"role": "system", "content": "You lead a team. Hand research to a researcher, then answer."}
    asked = {"role": "user", "content": f"How old is the bridge of {place}?"}
    call = {"id": "call_0", "type": "function", "function": {"name": "research", "arguments": {"task": task}}}
    hands_over = {"role": "assistant", "content": "I hand this to the researcher.", "tool_calls": [call]}
    result = {"role": "tool", "name": "research", "tool_call_id": "call_0", "content": answer}
    return [
        [system, asked, hands_over, result, _says(f"It is {2026 - year} years old.")],
        [
            {"role": "system", "content": "You are a researcher."},
            {"role": "user", "content": task},
            _says(answer),
        ],
        [system, asked, hands_over, result, _says("I am not sure of that.")],
        [system, asked, _says(f"About a hundred years, I believe. {place} is old.")],
        [
            system,
            {"role": "user", "content": f"So far: the bridge of {place} opened in {year}. Go on."},
            _says("Done."),
        ],
    ]


def _says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def agent_batch(tokenizer: Any, step: int, n_episodes: int = 3, *, clock: bool = False) -> Any:
    """A step of episodes of five rows each, two episodes a group.

    Args:
        tokenizer: a tokenizer with a chat template.
        step: the step.
        n_episodes: episodes.
        clock: log when rows began, and how long they took.
    """
    from rollout_traces.model.batch import RolloutBatch

    rows: list[Rollout] = []
    columns: dict[str, list[Any]] = {
        name: [] for name in ("episode", "sample", "parent", "group", "reward", "kind")
    }
    for number in range(n_episodes):
        reward = float((number + step) % 2)
        talks = episode_conversations(PLACES[(number // 2 + step) % len(PLACES)], 1880 + 7 * number)
        for at, messages in enumerate(talks):
            rows.append(encode(tokenizer, Conversation(tuple(messages)), tools=None))
            parent = PARENTS[at]
            values = (f"e{step}-{number}", f"{number}/{ROWS[at]}", None, number // 2, reward, ROWS[at])
            for name, value in zip(columns, values, strict=True):
                columns[name].append(value)
            columns["parent"][-1] = None if parent is None else f"{number}/{ROWS[parent]}"
    starts = [float(3 * (row % 5) + 20 * (row // 5)) for row in range(len(rows))]
    timings = [
        {"generation": 2.5 + row % 3, **({"start": starts[row]} if clock else {})} for row in range(len(rows))
    ]
    n = max(len(row.input_ids) for row in rows)
    arrays = {
        name: np.zeros((len(rows), n), np.int64) for name in ("input_ids", "attention_mask", "loss_mask")
    }
    logprobs = np.zeros((len(rows), n), np.float32)
    rng = np.random.default_rng(step)
    for at, row in enumerate(rows):
        size = len(row.input_ids)
        trained = columns["kind"][at] != "retry"
        arrays["input_ids"][at, :size] = row.input_ids
        arrays["attention_mask"][at, :size] = 1
        arrays["loss_mask"][at, :size] = row.sampled * trained
        logprobs[at, :size] = np.where(row.sampled, -rng.exponential(0.4, size), 0)
    response = np.zeros_like(arrays["loss_mask"])
    for at, row in enumerate(rows):
        response[at, : len(row.input_ids)] = row.sampled
    rewards = np.asarray(columns["reward"], np.float32)
    return RolloutBatch(
        **arrays,
        response_mask=response,
        logprobs=logprobs,
        rewards=rewards,
        advantages=(rewards - rewards.mean()).astype(np.float32),
        group_ids=columns["group"],
        episode_ids=columns["episode"],
        sample_ids=columns["sample"],
        parents=columns["parent"],
        extras=[{"agent": "researcher" if kind == "researcher" else "lead"} for kind in columns["kind"]],
        timings=timings,
        discard_reasons=["superseded" if kind == "retry" else None for kind in columns["kind"]],
        pad_id=tokenizer.pad_token_id,
    )
