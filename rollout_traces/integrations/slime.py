"""slime's `Sample`s: whole token lists, with a loss mask over the response alone.

    from rollout_traces.integrations import slime
    logger.log_rollouts(slime.batches_from(samples, reward_key=args.reward_key), step=rollout_id)

in the function that `--custom-rollout-log-function-path` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollout_traces.model.batch import RolloutBatch
from rollout_traces.sources.base import TRAIN
from rollout_traces.sources.formats.slime import row_of
from rollout_traces.sources.rows import batch_of


def batches_from(native: Sequence[Any], /, *, reward_key: str | None = None) -> list[RolloutBatch]:
    """slime's samples as one right-padded batch.

    A reward may be a mapping. Its numbers are components and its texts extras; the reward is the value that
    `reward_key` names, as in `Sample.get_reward_value`.

    Args:
        native: B `Sample`s with `tokens`, `response_length`, and perhaps `loss_mask` and `rollout_log_probs`
            (one value a response token), `reward`, `group_index`, `weight_versions`, `status`, `label`,
            `remove_sample` (it is discarded, its loss mask zero), `rollout_id` (samples of one are an episode).
        reward_key: slime's `args.reward_key`.

    Returns:
        One batch [B, T].

    Raises:
        BatchError: a sample's lists do not fit its response length.
    """
    samples = ({**vars(sample), "prompt": None} for sample in native)
    rows = [row_of(sample, 0, TRAIN, n, reward_key) for n, sample in enumerate(samples)]
    return [batch_of(rows, decodes_tokens=True)] if rows else []
