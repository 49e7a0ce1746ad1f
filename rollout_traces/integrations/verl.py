"""verl's `RayPPOTrainer` (`trainer.use_v1=false`), hooked through verl's own plugin mechanism.

    ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP=32 python -m verl.trainer.main_ppo trainer.use_v1=false ...

A `DataProto` holds left-padded prompts beside right-padded responses, with rows in any order and a `uid` per
prompt. Its trainer dumps rollouts when `trainer.rollout_data_dir` is set; where it is not, it is set to a name
that stands for no folder, so that the same call comes here and writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rollout_traces.integrations import agent_lightning
from rollout_traces.integrations.base import Arguments, attach_when_built, contained, wrap_once
from rollout_traces.integrations.hook_logger import attach_once
from rollout_traces.integrations.verl_observer import DumpObserver, ScoredDataProto, batches_from, now_within
from rollout_traces.logger.rollout_logger import RolloutLogger

MODULE = "verl.trainer.ppo.ray_trainer"
__all__ = ["ScoredDataProto", "attach", "batches_from", "install"]


def attach(trainer: Any, *, logger: RolloutLogger | None = None, **options: Any) -> None:
    """Logs what a built trainer samples, in training and in validation.

    Args:
        trainer: a `RayPPOTrainer`.
        logger: where to log; else one is made when the first rollouts come, on the Trackio run that verl
            opened, or on one of its own.
        **options: arguments of that `RolloutLogger`; environment variables `ROLLOUT_TRACES_...` win.
    """
    if any(kind.__module__.startswith("agentlightning.") for kind in type(trainer).__mro__):
        agent_lightning.attach(trainer, logger=logger, **options)
        return
    attach_once("verl", trainer, logger, options, _VerlObserver)


def install() -> None:
    """Makes every `RayPPOTrainer` built from now on log."""
    if attach_when_built("verl", MODULE, "RayPPOTrainer", attach) is not None:
        wrap_once(sys.modules[MODULE], "extract_reward", _seen_in_validation)


class _VerlObserver(DumpObserver):
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
    def wrapped(batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = extract_reward(batch, *args, **kwargs)
        observer = now_within("verl")
        if isinstance(observer, _VerlObserver):
            contained("verl")(observer.on_validation)(batch, *result)
        return result

    return wrapped
