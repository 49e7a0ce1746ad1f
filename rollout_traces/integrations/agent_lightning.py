"""Agent Lightning's trainer, a subclass of verl's `RayPPOTrainer` that calls none of the methods hooked there.

    ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP=32 VERL_USE_EXTERNAL_MODULES=rollout_traces.integrations.verl_plugin ...

It computes its data metrics twice a step: over every row once advantages are there, and again over the rows that
are left after long prompts and the remainder of the last mini-batch were dropped. Both calls are watched. Its
validation keeps no batch: rollouts are read from its daemon, where it computes their metrics.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollout_traces.integrations import verl_observer
from rollout_traces.integrations.base import Arguments, inside, watched, wrap_once
from rollout_traces.integrations.hook_logger import attach_once
from rollout_traces.integrations.verl_observer import VerlObserver, now_within
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.model_calls import MergedRow, ModelCall, batch_of_rows, merge_calls

NAME = "agent_lightning"
TOO_LONG = "prompt_too_long"
"""Discard reason of rows that Agent Lightning drops since their prompt was cut."""
REMAINDER = "not_in_a_mini_batch"
"""Discard reason of rows that it drops to fill its mini-batches."""


@dataclass(frozen=True)
class Processed:
    """A step's rows.

    Attributes:
        data: the `DataProto` of all rows, advantages computed.
        trained: the `DataProto` of the rows that were trained on; None: all of them.
        train_version: the policy version being trained.
    """

    data: Any
    trained: Any = None
    train_version: int | None = None


def batches_from(processed: Processed, /) -> list[RolloutBatch]:
    """A step's rows as one batch; the rows of a rollout are an episode.

    Raises:
        BatchError: a key is missing.
    """
    data = processed.data
    [batch] = verl_observer.batches_from(
        verl_observer.ScoredDataProto(data, train_version=processed.train_version)
    )
    others = data.non_tensor_batch
    rollouts = [str(rollout) for rollout in others["rollout_id_list"]]
    turns = others.get("turn_index_list")
    groups = others["uid"] if "uid" in others else others["data_id_list"]
    return [
        dataclasses.replace(
            batch,
            group_ids=[str(group) for group in groups],
            episode_ids=rollouts,
            sample_ids=rollouts
            if turns is None
            else [f"{rollout}:{turn}" for rollout, turn in zip(rollouts, turns, strict=True)],
            discard_reasons=_discard_reasons(processed),
        )
    ]


def batches_of_rollouts(
    rollouts: Mapping[str, Any], samples: Mapping[str, Mapping[str, Any]], /, fill: float | None = None
) -> list[RolloutBatch]:
    """Finished rollouts of a daemon as one batch: the calls of a rollout are merged into rows.

    Args:
        rollouts: rollout id -> a rollout with `triplets` and `final_reward`.
        samples: rollout id -> the data set's row.
        fill: the reward of rollouts that have none; None: unknown.
    """
    rows: list[MergedRow] = []
    owners: list[str] = []
    for identity, rollout in rollouts.items():
        mine = merge_calls([_call(triplet) for triplet in rollout.triplets or ()])
        rows += mine
        owners += [identity] * len(mine)
    if not rows:
        return []
    of_row = [samples.get(identity, {}) for identity in owners]
    return [
        batch_of_rows(
            rows,
            rewards=[_reward(rollouts[identity], fill) for identity in owners],
            group_ids=[str(sample.get("data_id", i)) for i, sample in zip(owners, of_row, strict=True)],
            sources=[sample.get("data_source") for sample in of_row],
            episode_ids=owners,
        )
    ]


def attach(trainer: Any, *, logger: RolloutLogger | None = None, **options: Any) -> None:
    """Logs what a built trainer samples, in training and in validation.

    Args:
        trainer: an `AgentLightningTrainer`.
        logger: where to log; else one is made when the first rollouts come.
        **options: arguments of that `RolloutLogger`; environment variables `ROLLOUT_TRACES_...` win.
    """
    attach_once(NAME, trainer, logger, options, _AgentLightningObserver)


class _AgentLightningObserver(VerlObserver):
    """Sees the rows of each step, first all of them, then those that are trained on."""

    everything: Any = None

    def watch(self) -> None:
        """Wraps the step as well, and what computes metrics."""
        super().watch()
        _watch_modules()
        self.trainer._train_step = inside(self.trainer._train_step, partial(self.within, "rollout"))

    @contextmanager
    def within(self, split: str) -> Iterator[None]:
        """As of every observer of verl; a step begins without rows."""
        self.everything = None
        with super().within(split):
            yield

    def on_metrics(self, data: Any) -> None:
        """Keeps all rows at the first call of a step, and hands them over at the second."""
        if self.everything is None:
            self.everything = data
            return
        processed = Processed(self.everything, data, self.step - 1)
        self.hook.log_rollouts(batches_from(processed), step=self.step, split="rollout")

    def on_validation(self, daemon: Any) -> None:
        """Hands over what a validation has finished."""
        finished = daemon._completed_rollouts_v0
        fill = getattr(daemon, "reward_fillna_value", None)
        batches = batches_of_rollouts(finished, daemon._task_id_to_original_sample, fill)
        if batches:
            self.hook.log_rollouts(batches, step=self.step, split="eval-rollout")


def _watch_modules() -> None:
    from agentlightning.verl import daemon, trainer

    wrap_once(trainer, "compute_data_metrics", partial(watched, NAME, before=_seen_in_training))
    wrap_once(daemon.AgentModeDaemon, "get_test_metrics", partial(watched, NAME, before=_seen_in_validation))


def _seen_in_training(given: Arguments) -> None:
    observer = now_within(NAME, "rollout")
    if isinstance(observer, _AgentLightningObserver):
        observer.on_metrics(given.get("batch"))


def _seen_in_validation(given: Arguments) -> None:
    observer = now_within(NAME)
    if isinstance(observer, _AgentLightningObserver):
        observer.on_validation(given["self"])


def _discard_reasons(processed: Processed) -> list[str | None] | None:
    if processed.trained is None:
        return None
    left = Counter(_identities(processed.trained))
    too_long = processed.data.batch["is_drop_mask"].tolist()
    reasons: list[str | None] = []
    for identity, is_long in zip(_identities(processed.data), too_long, strict=True):
        reasons.append(TOO_LONG if is_long else REMAINDER if left[identity] == 0 else None)
        left[identity] -= not is_long
    return reasons


def _identities(data: Any) -> Iterator[tuple[Any, ...]]:
    """Gives what distinguishes each row from the others: its rollout, its turn and its tokens."""
    others = data.non_tensor_batch
    turns = others.get("turn_index_list", [None] * len(others["rollout_id_list"]))
    ids = data.batch["input_ids"].cpu().numpy()
    for rollout, turn, row in zip(others["rollout_id_list"], turns, ids, strict=True):
        yield str(rollout), None if turn is None else int(turn), row.tobytes()


def _reward(rollout: Any, fill: float | None) -> float | None:
    return fill if rollout.final_reward is None else rollout.final_reward


def _call(triplet: Any) -> ModelCall:
    prompt, response = triplet.prompt or {}, triplet.response or {}
    ids = response.get("token_ids") or []
    given = [_logprob(item) for item in response.get("logprobs") or ()]
    known = [value for value in given if value is not None]
    return ModelCall(prompt.get("token_ids") or [], ids, known if ids and len(known) == len(ids) else None)


def _logprob(item: Any) -> float | None:
    """A number, or the entry of an OpenAI response that holds one."""
    value = item.get("logprob") if isinstance(item, Mapping) else item
    return float(value) if isinstance(value, (int, float)) else None
