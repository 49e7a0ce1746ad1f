"""tinker-cookbook's trajectory groups: a transition a turn, merged into rows as its own training data is.

    from rollout_traces.integrations import tinker
    logger.log_rollouts(tinker.batches_from(trajectory_groups_P, advantages_P), step=i_batch)

where `assemble_training_data(trajectory_groups_P, advantages_P, ...)` is called, or `prepare_minibatch`, which computes
the advantages itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.model_calls import ModelCall, batch_of_rows, merge_calls

MASKED = "parse_error_masked"
"""The metric of a transition that takes its turn out of the loss."""


def batches_from(native: Sequence[Any], /, advantages: Sequence[Any] | None = None) -> list[RolloutBatch]:
    """tinker's groups as one batch a group.

    Args:
        native: groups with `trajectories_G`, `final_rewards_G` and `metrics_G`. A transition has `ob.chunks` (text
            chunks with `tokens`; images have none and leave a gap), `ac.tokens`, `ac.maybe_logprobs`, `reward`,
            `metrics`.
        advantages: a group's advantages [G] each, as `compute_advantages` returns them; None: unknown.

    Returns:
        One batch a group. A trajectory whose context was rewritten is several rows of one episode, each with the
        trajectory's whole reward.
    """
    return [
        _batch(group, f"group-{number}", None if advantages is None else advantages[number])
        for number, group in enumerate(native)
        if group.trajectories_G
    ]


def _batch(group: Any, name: str, advantages: Any) -> RolloutBatch:
    rows, episodes, rewards, reasons = [], [], [], []
    for number, trajectory in enumerate(group.trajectories_G):
        advantage = None if advantages is None else float(advantages[number])
        merged = merge_calls([_call(transition, advantage) for transition in trajectory.transitions])
        total = sum(transition.reward for transition in trajectory.transitions)
        rows += merged
        episodes += [f"{name}-{number}"] * len(merged)
        rewards += [float(total + group.final_rewards_G[number])] * len(merged)
        reasons += [_stop_reason(trajectory)] * len(merged)
    return batch_of_rows(
        rows, rewards=rewards, group_ids=[name] * len(rows), episode_ids=episodes, stop_reasons=reasons
    )


def _call(transition: Any, advantage: float | None) -> ModelCall:
    prompt = [token for chunk in transition.ob.chunks for token in getattr(chunk, "tokens", ())]
    masked = transition.metrics.get(MASKED, 0) >= 1
    return ModelCall(
        prompt,
        transition.ac.tokens,
        transition.ac.maybe_logprobs,
        trained=not masked,
        advantages=0.0 if masked and advantage is not None else advantage,
    )


def _stop_reason(trajectory: Any) -> str | None:
    if trajectory.stop_reason is not None:
        return str(trajectory.stop_reason)
    reason = getattr(trajectory.transitions[-1].ac, "stop_reason", None) if trajectory.transitions else None
    return None if reason is None else str(reason)
