"""slime's `Sample`s: whole token lists, with a loss mask over the response alone.

    from rollout_traces.integrations import slime
    logger.log_rollouts(slime.batches_from(samples, reward_key=args.reward_key), step=rollout_id)

in the function that `--custom-rollout-log-function-path` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.errors import BatchError
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.plain_values import columns_of

STOP_REASONS = {"completed": "stop", "truncated": "length", "aborted": "abort"}


def batches_from(native: Sequence[Any], /, *, reward_key: str | None = None) -> list[RolloutBatch]:
    """slime's samples as one right-padded batch.

    A reward may be a mapping. Its numbers are components and its texts extras; the reward is the value that
    `reward_key` names, as in `Sample.get_reward_value`, and unknown without a key.

    Args:
        native: B `Sample`s with `tokens`, `response_length`, and perhaps `loss_mask` and `rollout_log_probs`
            (one value a response token), `reward`, `group_index`, `weight_versions`, `status`, `label`,
            `remove_sample` (its loss mask is taken as zero), `rollout_id` (samples of one are an episode).
        reward_key: slime's `args.reward_key`.

    Returns:
        One batch [B, T].

    Raises:
        BatchError: a sample's lists do not fit its response length.
    """
    samples = list(native)
    if not samples:
        return []
    for sample in samples:
        if not 0 <= int(sample.response_length) <= len(sample.tokens):
            raise BatchError(
                f"slime: sample {getattr(sample, 'index', None)}: response_length is {sample.response_length}. "
                f"Expected 0 to the {len(sample.tokens)} of its tokens."
            )
    lengths = [int(sample.response_length) for sample in samples]
    starts = [len(sample.tokens) - n for sample, n in zip(samples, lengths, strict=True)]
    sampled = [
        np.asarray(_of_response(sample, "loss_mask", default=[1] * n)) > 0
        for sample, n in zip(samples, lengths, strict=True)
    ]
    logprobs = [_of_response(sample, "rollout_log_probs", default=None) for sample in samples]
    rewards = _rewards(samples, reward_key)
    return [
        RolloutBatch.from_prompt_response(
            [sample.tokens[:start] for sample, start in zip(samples, starts, strict=True)],
            [sample.tokens[start:] for sample, start in zip(samples, starts, strict=True)],
            loss_mask=[
                mask & (not getattr(sample, "remove_sample", False))
                for sample, mask in zip(samples, sampled, strict=True)
            ],
            response_mask=sampled,
            logprobs=None if all(values is None for values in logprobs) else logprobs,
            versions=_versions(samples, sampled),
            rewards=rewards.totals,
            reward_components=rewards.components,
            extras=_extras(samples, rewards.texts),
            group_ids=_column(samples, "group_index") or list(range(len(samples))),
            sample_ids=_column(samples, "index"),
            episode_ids=_episodes(samples),
            stop_reasons=[_stop_reason(sample) for sample in samples],
            ground_truths=_column(samples, "label"),
        )
    ]


def _of_response(sample: Any, key: str, *, default: Any) -> Any:
    values = getattr(sample, key, None)
    if values is None:
        return default
    if len(values) != int(sample.response_length):
        raise BatchError(
            f"slime: sample {getattr(sample, 'index', None)}: {key} has {len(values)} values. Expected "
            f"response_length = {sample.response_length}, one a response token."
        )
    return values


@dataclass(frozen=True)
class _Rewards:
    """Rewards of B samples.

    Attributes:
        totals: the reward of each; None = unknown.
        components: name -> B floats, NaN = unknown.
        texts: what a reward held beside numbers, a mapping a sample; None where no reward did.
    """

    totals: list[float | None]
    components: dict[str, list[float]]
    texts: list[dict[str, str]] | None


def _rewards(samples: Sequence[Any], reward_key: str | None) -> _Rewards:
    rewards = [getattr(sample, "reward", None) for sample in samples]
    named = [reward if isinstance(reward, Mapping) else {} for reward in rewards]
    numbers = {name: list(map(_number, values)) for name, values in columns_of(named).items()}
    texts = [
        {
            str(name): str(value)
            for name, value in reward.items()
            if _number(value) is None and value is not None
        }
        for reward in named
    ]
    return _Rewards(
        totals=[
            _number(reward.get(reward_key) if isinstance(reward, Mapping) else reward) for reward in rewards
        ],
        components={
            name: [np.nan if value is None else value for value in values]
            for name, values in numbers.items()
            if any(value is not None for value in values)
        },
        texts=texts if any(texts) else None,
    )


def _number(value: Any) -> float | None:
    try:
        return None if value is None or isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None


def _versions(samples: Sequence[Any], sampled: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The version of a sample's tokens; -1 where it names several or none, since slime does not say at which token."""
    named = [set(map(str, getattr(sample, "weight_versions", None) or ())) for sample in samples]
    known = [int(one) if len(row) == 1 and (one := next(iter(row))).isdigit() else -1 for row in named]
    if max(known) < 0:
        return None
    return [np.where(mask, version, -1) for mask, version in zip(sampled, known, strict=True)]


def _extras(samples: Sequence[Any], texts: list[dict[str, str]] | None) -> list[dict[str, Any]] | None:
    """Collects what rewards held beside numbers, the sample's own metadata, and its versions where there are several."""
    found: list[dict[str, Any]] = []
    for at, sample in enumerate(samples):
        metadata = getattr(sample, "metadata", None)
        own = metadata if isinstance(metadata, Mapping) else {}
        extras = {str(name): value for name, value in own.items() if isinstance(value, (str, int, float))}
        versions = dict.fromkeys(map(str, getattr(sample, "weight_versions", None) or ()))
        if len(versions) > 1:
            extras["weight_versions"] = ", ".join(versions)
        found.append({**(texts[at] if texts else {}), **extras})
    return found if any(found) else None


def _episodes(samples: Sequence[Any]) -> list[str | None] | None:
    ids = _column(samples, "rollout_id")
    return None if ids is None else [None if value is None else str(value) for value in ids]


def _stop_reason(sample: Any) -> str | None:
    status = getattr(sample, "status", None)
    name = str(getattr(status, "value", status)).lower() if status is not None else None
    return STOP_REASONS.get(name or "", name)


def _column(samples: Sequence[Any], key: str) -> list[Any] | None:
    values = [getattr(sample, key, None) for sample in samples]
    return None if all(value is None for value in values) else values
