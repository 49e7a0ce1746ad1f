"""The same rollouts in every trainer's layout come out as the same host batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rollout_traces.capture.host_copy import capture
from rollout_traces.integrations import areal, openrlhf, slime, trl, verl_v1
from rollout_traces.integrations import verl as verl_integration

PAD = 0
ROWS: list[dict[str, Any]] = [
    {"prompt": [5, 6], "response": [7, 8, 9, 2], "mask": [1, 0, 1, 1], "reward": 1.0},
    {"prompt": [3, 4, 5, 6], "response": [7, 2], "mask": [1, 1], "reward": 0.0},
    {"prompt": [4, 6, 6], "response": [9, 9, 2], "mask": [1, 1, 1], "reward": 0.5},
]
"""Prompts and responses of differing lengths; a 0 in the mask is a tool's token."""
P, R = 4, 4
VERSION = 3


def padded(values: list, width: int, fill: Any, *, side: str) -> list:
    rest = [fill] * (width - len(values))
    return [*rest, *values] if side == "left" else [*values, *rest]


def column(name: str, width: int, side: str, fill: Any = PAD) -> torch.Tensor:
    return torch.tensor([padded(row[name], width, fill, side=side) for row in ROWS])


def ones(name: str, width: int, side: str) -> torch.Tensor:
    return torch.tensor([padded([1] * len(row[name]), width, 0, side=side) for row in ROWS])


def logprobs_of(row: dict[str, Any]) -> list[float]:
    return [-0.25 * (position + 1) if sampled else 0.0 for position, sampled in enumerate(row["mask"])]


def in_trl() -> list:
    """Prompts left, completions right; `tool_mask` pads with 1."""
    logprobs = [padded(logprobs_of(row), R, 0.0, side="right") for row in ROWS]
    output = {
        "prompt_ids": column("prompt", P, "left"),
        "prompt_mask": ones("prompt", P, "left"),
        "completion_ids": column("response", R, "right"),
        "completion_mask": ones("response", R, "right"),
        "tool_mask": column("mask", R, "right", 1),
        "sampling_per_token_logps": torch.tensor(logprobs),
    }
    rewards = {"right": [row["reward"] for row in ROWS]}
    return trl.batches_from(trl.ScoredCompletions(output, rewards=rewards, global_step=VERSION))


def in_verl() -> list:
    """Prompts left, responses right, one tensor of both."""
    scores = torch.zeros(len(ROWS), R)
    for b, row in enumerate(ROWS):
        scores[b, len(row["response"]) - 1] = row["reward"]
    tensors = {
        "prompts": column("prompt", P, "left"),
        "input_ids": torch.cat([column("prompt", P, "left"), column("response", R, "right")], 1),
        "attention_mask": torch.cat([ones("prompt", P, "left"), ones("response", R, "right")], 1),
        "response_mask": column("mask", R, "right"),
        "rollout_log_probs": torch.tensor([padded(logprobs_of(row), R, 0.0, side="right") for row in ROWS]),
        "token_level_scores": scores,
    }
    steps = np.full(len(ROWS), VERSION, object)
    data = SimpleNamespace(
        batch=tensors, non_tensor_batch={"min_global_steps": steps, "max_global_steps": steps}
    )
    return verl_integration.batches_from(verl_integration.ScoredDataProto(data))


def in_verl_v1() -> list:
    """Ragged rows of a queue, versions in the tags."""
    scores = [[0.0] * (len(row["response"]) - 1) + [row["reward"]] for row in ROWS]
    return verl_v1.batches_from(
        verl_v1.Fetched(
            keys=[f"u{b}_0_0" for b in range(len(ROWS))],
            tags=[{"min_global_steps": VERSION, "max_global_steps": VERSION}] * len(ROWS),
            fields={
                "prompts": ragged([row["prompt"] for row in ROWS]),
                "responses": ragged([row["response"] for row in ROWS]),
                "response_mask": ragged([row["mask"] for row in ROWS]),
                "rollout_log_probs": ragged([logprobs_of(row) for row in ROWS]),
                "rm_scores": ragged(scores),
                "uid": ["a", "b", "c"],
            },
        )
    )


def ragged(rows: list[list]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def whole(row: dict[str, Any], values: list, before: Any) -> list:
    return [before] * len(row["prompt"]) + list(values)


def in_areal() -> list:
    """Whole sequences, right, zero in every key."""
    width = P + R

    def right(values_of: Any, fill: Any = 0) -> torch.Tensor:
        return torch.tensor([padded(values_of(row), width, fill, side="right") for row in ROWS])

    return areal.batches_from(
        [
            {
                "input_ids": right(lambda row: [*row["prompt"], *row["response"]]),
                "attention_mask": right(lambda row: [1] * len(row["prompt"] + row["response"])).bool(),
                "loss_mask": right(lambda row: whole(row, row["mask"], 0)),
                "versions": right(lambda row: whole(row, [VERSION if m else -1 for m in row["mask"]], -1)),
                "logprobs": right(lambda row: whole(row, logprobs_of(row), 0.0), 0.0),
                "rewards": torch.tensor([row["reward"] for row in ROWS]),
            }
        ]
    )


def in_slime() -> list:
    """Lists without padding, masks and logprobs over the response alone."""
    return slime.batches_from(
        [
            SimpleNamespace(
                tokens=[*row["prompt"], *row["response"]],
                response_length=len(row["response"]),
                loss_mask=row["mask"],
                rollout_log_probs=logprobs_of(row),
                reward=row["reward"],
                weight_versions=[str(VERSION)],
            )
            for row in ROWS
        ]
    )


def in_openrlhf(side: str) -> list:
    """Whole sequences on either side; masks and logprobs one shorter, in the frame of the logits."""
    width = P + R

    def sequences(values_of: Any, fill: Any = 0) -> torch.Tensor:
        return torch.tensor([padded(values_of(row), width, fill, side=side) for row in ROWS])

    experience = SimpleNamespace(
        sequences=sequences(lambda row: [*row["prompt"], *row["response"]]),
        attention_mask=sequences(lambda row: [1] * len(row["prompt"] + row["response"])),
        action_mask=sequences(lambda row: whole(row, row["mask"], 0))[:, 1:],
        rollout_log_probs=sequences(lambda row: whole(row, logprobs_of(row), 0.0), 0.0)[:, 1:],
        rewards=torch.tensor([row["reward"] for row in ROWS]),
    )
    return openrlhf.batches_from([experience])


LAYOUTS = {
    "TRL": in_trl,
    "verl": in_verl,
    "verl v1": in_verl_v1,
    "AReaL": in_areal,
    "slime": in_slime,
    "OpenRLHF, left": lambda: in_openrlhf("left"),
    "OpenRLHF, right": lambda: in_openrlhf("right"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_tokens_masks_logprobs_versions_and_rewards(layout):
    host = capture(LAYOUTS[layout](), step=0, split="rollout")
    for b, row in enumerate(ROWS):
        where = host.row(b)
        mask = whole(row, row["mask"], 0)
        assert host.input_ids[where].tolist() == [*row["prompt"], *row["response"]]
        assert host.loss_mask[where].astype(int).tolist() == mask
        assert host.response_mask[where].astype(int).tolist() == mask
        sampled = np.flatnonzero(mask)
        wanted = np.asarray(whole(row, logprobs_of(row), 0.0))[sampled]
        np.testing.assert_allclose(host.tracks["logprobs"][where][sampled], wanted, atol=1e-6)
        if "versions" in host.tracks:
            assert host.tracks["versions"][where].tolist() == [VERSION if m else -1 for m in mask]
        assert host.row_floats["rewards"][b] == row["reward"]
    assert ("versions" in host.tracks) == (not layout.startswith("OpenRLHF"))
