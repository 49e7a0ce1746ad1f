"""NeMo-RL's log of a training step: what `Logger.log_batched_dict_as_jsonl` is given.

from rollout_traces.integrations import nemo_rl
logger.log_rollouts(nemo_rl.batches_from(log_data, group_size=n_generations), step=step)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollout_traces.errors import BatchError
from rollout_traces.integrations.base import check_keys
from rollout_traces.model.batch import RolloutBatch

TRACKS = {"generation_logprobs": "logprobs", "prev_logprobs": "prox_logprobs", "advantages": "advantages"}
"""NeMo-RL's [B, T] values -> ours."""


def batches_from(native: Mapping[str, Any], /, *, group_size: int | None = None) -> list[RolloutBatch]:
    """NeMo-RL's log data as one batch.

    Args:
        native: `token_ids`, `token_loss_mask` [B, T], right-padded, `input_lengths`, `rewards`,
            `sample_loss_mask` [B], and perhaps `advantages`, `generation_logprobs`, `prev_logprobs`,
            `agent_ref`. With dynamic sampling `rewards` speaks of rollouts that were left out as well;
            `filtered_rewards` are those of the rows, and are taken.
        group_size: rollouts of a prompt, which follow each other (`grpo.num_generations_per_prompt`); without
            it every rollout is a group.

    Raises:
        BatchError: a key is missing, or the rows are no whole number of groups.
    """
    check_keys("NeMo-RL's log data:", native, ("token_ids", "token_loss_mask", "input_lengths", "rewards"))
    ids = np.asarray(native["token_ids"])
    lengths = np.asarray(native["input_lengths"])
    if group_size is not None and len(ids) % group_size:
        raise BatchError(f"NeMo-RL: {len(ids)} rows. Expected a multiple of group_size = {group_size}.")
    attended = np.arange(ids.shape[1])[None] < lengths[:, None]
    sampled = (np.asarray(native["token_loss_mask"]) > 0) & attended
    in_loss = np.asarray(native.get("sample_loss_mask", np.ones(len(ids)))) > 0
    tracks: dict[str, Any] = {
        ours: np.asarray(native[theirs], np.float32)
        for theirs, ours in TRACKS.items()
        if native.get(theirs) is not None
    }
    agents = native.get("agent_ref")
    rewards = native.get("filtered_rewards")
    if rewards is None:
        rewards = native["rewards"]
    if len(rewards) != len(ids):
        raise BatchError(f"NeMo-RL: {len(rewards)} rewards. Expected {len(ids)}, one a row.")
    return [
        RolloutBatch(
            input_ids=ids,
            attention_mask=attended,
            loss_mask=sampled & in_loss[:, None],
            response_mask=sampled,
            rewards=[float(reward) for reward in rewards],
            group_ids=[row // (group_size or 1) for row in range(len(ids))],
            sources=None if agents is None else [_name(agent) for agent in agents],
            **tracks,
        )
    ]


def _name(agent: Any) -> str:
    return str(agent.get("name", agent)) if isinstance(agent, Mapping) else str(agent)
