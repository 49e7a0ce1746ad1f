"""verl's `DataProto`, left-padded prompts beside right-padded responses, as a canonical batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollout_traces.errors import BatchError
from rollout_traces.integrations.verl_followed import NOTED, noted_columns
from rollout_traces.model.batch import RolloutBatch

RESPONSE_TRACKS = {
    "rollout_log_probs": "logprobs",
    "old_log_probs": "prox_logprobs",
    "ref_log_prob": "ref_logprobs",
    "advantages": "advantages",
    "values": "values",
    "entropys": "entropies",
    "token_level_scores": "token_rewards",
}
"""verl's [B, R] keys -> ours."""


@dataclass(frozen=True)
class ScoredDataProto:
    """A `DataProto` after its rewards were computed.

    Attributes:
        data: the `DataProto` of B rows.
        reward_extras: name -> B values that the reward function gave beside the reward.
        train_version: the policy version being trained.
        token_scores: float [B, R] where the batch does not hold `token_level_scores` yet, as in validation.
    """

    data: Any
    reward_extras: Mapping[str, Any] = field(default_factory=dict)
    train_version: int | None = None
    token_scores: Any = None


def batches_from(scored: ScoredDataProto, /) -> list[RolloutBatch]:
    """verl's prompts [B, P] and responses [B, R] as one batch [B, P + R].

    Versions are given where a row's `min_global_steps` equals its `max_global_steps` for all rows; where the
    weights changed inside a row verl does not say at which token, and both stand in the sample metrics.

    Raises:
        BatchError: a key is missing.
    """
    import torch

    tensors, others = scored.data.batch, scored.data.non_tensor_batch
    for key in ("input_ids", "attention_mask", "prompts", "response_mask"):
        if key not in tensors:
            raise BatchError(
                f"verl's batch: key {key!r} is missing. Seen {', '.join(sorted(tensors.keys()))}."
            )
    n_prompt = tensors["prompts"].shape[1]

    def after_prompt(response: Any) -> Any:
        return torch.nn.functional.pad(response, (n_prompt, 0))

    response_mask = after_prompt(tensors["response_mask"].bool())
    tracks = {
        canonical: after_prompt(tensors[key].float())
        for key, canonical in RESPONSE_TRACKS.items()
        if key in tensors
    }
    if scored.token_scores is not None:
        tracks["token_rewards"] = after_prompt(scored.token_scores.float())
    numbers, words = split_extras(scored.reward_extras)
    steps = {
        name: _numbers(others[name]) for name in ("min_global_steps", "max_global_steps") if name in others
    }
    if "__num_turns__" in others:
        numbers["num_turns"] = _numbers(others["__num_turns__"])
    noted = noted_columns(others.get(NOTED, ()))
    return [
        RolloutBatch(
            input_ids=tensors["input_ids"],
            attention_mask=tensors["attention_mask"],
            loss_mask=response_mask,
            response_mask=response_mask,
            versions=_versions(response_mask, steps),
            rewards=None if "token_rewards" not in tracks else tracks["token_rewards"].sum(-1),
            sample_metrics={**numbers, **steps},
            group_ids=list(others["uid"]) if "uid" in others else list(range(len(response_mask))),
            sources=None if "data_source" not in others else list(others["data_source"]),
            ground_truths=ground_truths_of(others.get("reward_model")),
            extras=merged_rows(words, noted.get("extras")),
            timings=noted.get("timings"),
            train_version=scored.train_version,
            **tracks,
        )
    ]


def _versions(response_mask: Any, steps: Mapping[str, np.ndarray]) -> Any:
    import torch

    if len(steps) < 2 or not np.array_equal(steps["min_global_steps"], steps["max_global_steps"]):
        return None
    rows = torch.as_tensor(steps["min_global_steps"].astype(np.int64), device=response_mask.device)
    return torch.where(response_mask, rows[:, None], -1)


def ground_truths_of(reward_models: Sequence[Any] | None) -> list[Any] | None:
    """What the reward model was given to compare with, a value a row."""
    if reward_models is None:
        return None
    return [item.get("ground_truth") if isinstance(item, Mapping) else None for item in reward_models]


def merged_rows(
    first: Sequence[Mapping[str, Any]] | None, second: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]] | None:
    """Two columns of a mapping a row as one; None where neither is there."""
    if first is None or second is None:
        return [dict(row) for row in first or second or ()] or None
    return [{**one, **other} for one, other in zip(first, second, strict=True)]


def _numbers(values: Any) -> np.ndarray:
    return np.asarray([np.nan if value is None else value for value in values], np.float64)


def split_extras(extras: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]] | None]:
    """Columns of numbers by name, and the other columns as a mapping a row."""
    numbers: dict[str, np.ndarray] = {}
    words: dict[str, list[Any]] = {}
    for name, values in extras.items():
        try:
            numbers[str(name)] = _numbers(values)
        except (TypeError, ValueError):
            words[str(name)] = list(values)
    rows = (
        [dict(zip(words, row, strict=True)) for row in zip(*words.values(), strict=True)] if words else None
    )
    return numbers, rows
