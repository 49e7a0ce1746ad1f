"""ART's `TokenizedResult`s: whole sequences with a mask over the assistant's tokens.

    from rollout_traces.integrations import art
    logger.log_rollouts(art.batches_from(results), step=step)

where `tokenize_trajectory_groups(...)` has been run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rollout_traces.errors import BatchError
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.plain_values import columns_of


def batches_from(native: Iterable[Any], /) -> list[RolloutBatch]:
    """ART's results as one right-padded batch.

    Args:
        native: B results with `token_ids`, `assistant_mask`, `logprobs` (NaN where there is none) of equal length,
            `advantage`, `prompt_id` (the group) and `trajectory` with `reward` and `metrics`, and perhaps
            `initial_policy_version` and `final_policy_version`. Results of one trajectory (its additional
            histories) are an episode.

    Raises:
        BatchError: a result's lists are of different lengths.
    """
    results = list(native)
    if not results:
        return []
    for number, result in enumerate(results):
        lengths = [len(getattr(result, key)) for key in ("token_ids", "assistant_mask", "logprobs")]
        if len(set(lengths)) > 1:
            raise BatchError(
                f"ART: result {number} has {lengths[0]} token_ids, {lengths[1]} values of assistant_mask and "
                f"{lengths[2]} logprobs. Expected as many of each."
            )
    trajectories: dict[int, str] = {}
    for result in results:
        trajectories.setdefault(id(result.trajectory), f"trajectory-{len(trajectories)}")
    metrics = [getattr(result.trajectory, "metrics", None) or {} for result in results]
    return [
        RolloutBatch.from_prompt_response(
            [[]] * len(results),
            [result.token_ids for result in results],
            loss_mask=[result.assistant_mask for result in results],
            response_mask=[result.assistant_mask for result in results],
            logprobs=[result.logprobs for result in results],
            versions=_versions(results),
            advantages=[float(result.advantage) for result in results],
            rewards=[float(result.trajectory.reward) for result in results],
            sample_metrics={name: list(map(_number, values)) for name, values in columns_of(metrics).items()},
            group_ids=[result.prompt_id for result in results],
            episode_ids=[trajectories[id(result.trajectory)] for result in results],
        )
    ]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")


def _versions(results: Sequence[Any]) -> list[list[int]] | None:
    """One version a row; None where any saw several or none, since ART does not say at which token."""
    rows = []
    for result in results:
        first = getattr(result.trajectory, "initial_policy_version", None)
        last = getattr(result.trajectory, "final_policy_version", None)
        if first is None or first != last:
            return None
        rows.append([int(first) if value else -1 for value in result.assistant_mask])
    return rows
