"""rLLM's episodes: trajectories of steps, a model call each, merged into rows.

    from rollout_traces.integrations import rllm
    logger.log_rollouts(rllm.batches_from(episodes), step=step)

where the trainer has the `Episode`s of a batch (`EpisodeLogger` is given the same).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.model_calls import MergedRow, ModelCall, batch_of_rows, merge_calls
from rollout_traces.model.plain_values import columns_of


def batches_from(native: Sequence[Any], /) -> list[RolloutBatch]:
    """rLLM's episodes as one batch.

    Args:
        native: episodes with `id` (`task:rollout`), `is_correct`, `termination_reason` and `trajectories`: `name`,
            `reward`, `steps` with `prompt_ids`, `response_ids`, `logprobs`, and perhaps `weight_version` and
            `advantage` (a number, or one a response token), which rLLM fills where it computes advantages. Numbers
            among an episode's `metrics` and a trajectory's `signals` are the rows' own.

    Returns:
        One batch, or none where no step has tokens. Rows of one task and trajectory name are a group; all rows of
        an episode share its id.
    """
    rows: list[MergedRow] = []
    known: list[dict[str, Any]] = []
    metrics: list[dict[str, float]] = []
    for episode in native:
        task = str(episode.id).partition(":")[0]
        reason = getattr(episode, "termination_reason", None)
        for trajectory in episode.trajectories:
            merged = merge_calls([_call(step) for step in trajectory.steps if step.response_ids])
            rows += merged
            of_row = {
                "group_ids": f"{task}:{trajectory.name}",
                "episode_ids": str(episode.id),
                "rewards": None if trajectory.reward is None else float(trajectory.reward),
                "successes": bool(episode.is_correct),
                "stop_reasons": None if reason is None else str(getattr(reason, "value", reason)),
                "sources": str(trajectory.name),
            }
            known += [of_row] * len(merged)
            own = {
                **(getattr(episode, "metrics", None) or {}),
                **(getattr(trajectory, "signals", None) or {}),
            }
            metrics += [{k: float(v) for k, v in own.items() if isinstance(v, (int, float))}] * len(merged)
    return [batch_of_rows(rows, sample_metrics=columns_of(metrics), **columns_of(known))] if rows else []


def _call(step: Any) -> ModelCall:
    advantage = getattr(step, "advantage", None)
    return ModelCall(
        step.prompt_ids,
        step.response_ids,
        step.logprobs or None,
        version=getattr(step, "weight_version", None),
        advantages=float(advantage) if isinstance(advantage, (int, float)) else advantage,
    )
