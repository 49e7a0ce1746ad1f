"""SkyRL's `GeneratorOutput`: prompts and responses as lists of token ids, with a loss mask over the responses.

    from rollout_traces.integrations import skyrl
    logger.log_rollouts(skyrl.batches_from(generator_output, uids=uids), step=global_step)

where `generator.generate(input_batch)` returns, or in a callback that has the batch (`metadata["uids"]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollout_traces.integrations.base import check_keys
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.plain_values import columns_of


def batches_from(native: Mapping[str, Any], /, *, uids: Sequence[Any] | None = None) -> list[RolloutBatch]:
    """SkyRL's output as one right-padded batch.

    Args:
        native: `prompt_token_ids`, `response_ids`, `rewards` (one a row, or one a response token), `loss_masks`,
            and perhaps `stop_reasons`, `rollout_logprobs`, `trajectory_ids`, `trajectory_generation_times`,
            `is_last_step` and `env_metrics` (a mapping a row). With `is_last_step` a row is a turn; the reward of
            each is that of its trajectory's last turn, the only one that SkyRL then trains on.
        uids: B values, equal for rows of one prompt; else the instances of `trajectory_ids`; else every rollout is a
            group.

    Raises:
        BatchError: a key is missing, or a row's lists do not fit.
    """
    check_keys("SkyRL's output:", native, ("prompt_token_ids", "response_ids", "rewards", "loss_masks"))
    rewards = native["rewards"]
    per_token = any(hasattr(reward, "__len__") for reward in rewards)
    ids = native.get("trajectory_ids")
    n_rows = len(native["response_ids"])
    groups = uids if uids is not None else range(n_rows) if ids is None else [one.instance_id for one in ids]
    times = native.get("trajectory_generation_times")
    totals = [float(sum(reward)) for reward in rewards] if per_token else [float(r) for r in rewards]
    last = native.get("is_last_step")
    return [
        RolloutBatch.from_prompt_response(
            native["prompt_token_ids"],
            native["response_ids"],
            loss_mask=native["loss_masks"],
            logprobs=native.get("rollout_logprobs"),
            rewards=totals if last is None else _of_last_turns(totals, last),
            sample_metrics=_metrics(native.get("env_metrics"), n_rows),
            token_rewards=rewards if per_token else None,
            group_ids=list(groups),
            episode_ids=None if ids is None else [f"{one.instance_id}_{one.repetition_id}" for one in ids],
            stop_reasons=native.get("stop_reasons"),
            timings=[{"generation": float(time)} for time in times]
            if times is not None and len(times) == n_rows
            else None,
        )
    ]


def _of_last_turns(rewards: Sequence[float], is_last: Sequence[bool]) -> list[float]:
    """Each turn's reward is that of the next turn that is the last of a trajectory."""
    found, latest = [], 0.0
    for reward, last in zip(reversed(rewards), reversed(is_last), strict=True):
        latest = reward if last else latest
        found.append(latest)
    return found[::-1]


def _metrics(rows: Sequence[Mapping[str, Any]] | None, n_rows: int) -> dict[str, list[float]]:
    """Numbers that an environment measured, NaN where it did not."""
    if rows is None or len(rows) != n_rows:
        return {}
    numbers = [{name: float(value) for name, value in row.items() if _is_number(value)} for row in rows]
    return columns_of(numbers, float("nan"))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
