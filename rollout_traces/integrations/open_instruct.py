"""open-instruct's generation results, with the queries and scores of their batch.

    from rollout_traces.integrations import open_instruct
    logger.log_rollouts(open_instruct.batches_from(batch, result, advantages, group_size=n), step=step)

where `save_rollouts_to_disk(..., batch, result, advantages, num_samples_per_prompt, ...)` is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollout_traces.model.batch import RolloutBatch


def batches_from(
    batch: Any,
    result: Any,
    advantages: Sequence[float] | None = None,
    *,
    group_size: int,
    mask_tool_use: bool = True,
) -> list[RolloutBatch]:
    """open-instruct's batch as one right-padded batch.

    Args:
        batch: `queries` (B prompts, token ids), `scores`, `ground_truths`, `datasets`, and perhaps `model_steps`.
        result: `responses`, `masks` (1 where the policy sampled), `finish_reasons`, `logprobs`, `model_step`.
        advantages: B values.
        group_size: `num_samples_per_prompt`.
        mask_tool_use: open-instruct's setting; without it tool tokens are in the loss too.

    Raises:
        BatchError: a row's lists do not fit.
    """
    masks = result.masks or [[1] * len(row) for row in result.responses]
    steps = getattr(batch, "model_steps", None) or [result.model_step] * len(masks)
    return [
        RolloutBatch.from_prompt_response(
            batch.queries,
            result.responses,
            loss_mask=masks if mask_tool_use else [[1] * len(row) for row in result.responses],
            response_mask=masks,
            logprobs=result.logprobs or None,
            versions=[
                [step if value else -1 for value in mask] for step, mask in zip(steps, masks, strict=True)
            ],
            advantages=None if advantages is None else [float(value) for value in advantages],
            rewards=None if batch.scores is None else [float(score) for score in batch.scores],
            group_ids=[row // group_size for row in range(len(result.responses))],
            sources=[str(name) for name in batch.datasets] if batch.datasets is not None else None,
            ground_truths=batch.ground_truths,
            stop_reasons=result.finish_reasons,
        )
    ]
