"""verl's `RayPPOTrainer` (`trainer.use_v1=false`), hooked through verl's own plugin mechanism.

    ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP=32 python -m verl.trainer.main_ppo trainer.use_v1=false ...

A `DataProto` holds left-padded prompts beside right-padded responses, with rows in any order and a `uid` per
prompt. Its trainer dumps rollouts when `trainer.rollout_data_dir` is set; where it is not, it is set to a name
that stands for no folder, so that the same call comes here and writes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollout_traces.batch import RolloutBatch
from rollout_traces.errors import BatchError
from rollout_traces.integrations.base import (
    Arguments,
    attach_when_built,
    contained,
    has_hook_points,
    integration_named,
)
from rollout_traces.integrations.verl_observer import (
    NO_DUMP,
    VerlObserver,
    observe,
    run_settings_of,
    validating,
)
from rollout_traces.logger.rollout_logger import RolloutLogger

__all__ = ["NO_DUMP", "ScoredDataProto", "attach", "batches_from", "install", "run_settings_of"]

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
            extras=words,
            train_version=scored.train_version,
            **tracks,
        )
    ]


def attach(trainer: Any, *, logger: RolloutLogger | None = None, **options: Any) -> None:
    """Logs what a built trainer samples, in training and in validation.

    Args:
        trainer: a `RayPPOTrainer`.
        logger: where to log; else one is made when the first rollouts come, on the Trackio run that verl
            opened, or on one of its own.
        **options: arguments of that `RolloutLogger`; environment variables `ROLLOUT_TRACES_...` win.
    """
    if any(kind.__module__.startswith("agentlightning.") for kind in type(trainer).__mro__):
        from rollout_traces.integrations import agent_lightning

        agent_lightning.attach(trainer, logger=logger, **options)
        return
    observer = observe(_VerlObserver, "verl", trainer, logger, options)
    if observer is not None:
        trainer._log_rollout_data = observer.around_dump(trainer._log_rollout_data)
        observer.ask_for_dumps()


def install() -> None:
    """Makes every `RayPPOTrainer` built from now on log."""
    if not has_hook_points(integration_named("verl"), "verl.trainer.ppo.ray_trainer"):
        return
    from verl.trainer.ppo import ray_trainer

    if not getattr(ray_trainer.extract_reward, "_rollout_traces", False):
        ray_trainer.extract_reward = _seen_in_validation(ray_trainer.extract_reward)
    attach_when_built(ray_trainer.RayPPOTrainer, "verl", attach)


class _VerlObserver(VerlObserver):
    """Sees a `RayPPOTrainer`'s batches go by."""

    def on_rollouts(self, given: Arguments) -> None:
        """Hands a training batch over."""
        extras = given.get("reward_extra_infos_dict") or {}
        self._log(ScoredDataProto(given["batch"], extras, train_version=self.step - 1), "rollout")

    def on_validation(self, data: Any, scores: Any, extras: Mapping[str, Any]) -> None:
        """Hands a validation batch over."""
        self._log(ScoredDataProto(data, extras, token_scores=scores), "eval-rollout")

    def _log(self, scored: ScoredDataProto, split: str) -> None:
        self.hook.log_rollouts(batches_from(scored), step=self.step, split=split)


def _seen_in_validation(extract_reward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(extract_reward)
    def wrapped(batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = extract_reward(batch, *args, **kwargs)
        observer = validating("verl")
        if isinstance(observer, _VerlObserver):
            contained("verl")(observer.on_validation)(batch, *result)
        return result

    wrapped._rollout_traces = True  # type: ignore[attr-defined]
    return wrapped


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
