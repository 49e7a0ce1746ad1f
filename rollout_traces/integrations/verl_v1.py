"""verl's default trainer since 0.9, `verl.trainer.ppo.v1`, whose batches are keys of a transfer queue.

    ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP=32 python -m verl.trainer.main_ppo ...

Rollouts are fetched where verl would dump them (`_log_rollout_data`), before it clears its queue; a validation
batch where it clears the queue. verl asks for the dump only when `trainer.rollout_data_dir` is set; where it is
not, the folder is set to a name that means "no dump".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.batch import RolloutBatch
from rollout_traces.errors import BatchError
from rollout_traces.integrations.base import (
    Arguments,
    arguments_of,
    binds,
    contained,
    has_hook_points,
    integration_named,
    warn_if_unsupported,
)
from rollout_traces.integrations.hook_logger import HookLogger
from rollout_traces.integrations.settings import HookSettings
from rollout_traces.integrations.verl import NO_DUMP, ground_truths_of, run_settings_of, split_extras
from rollout_traces.logger.rollout_logger import RolloutLogger

MODULE = "verl.trainer.ppo.v1.trainer_base"
RESPONSE_FIELDS = {
    "rollout_log_probs": "logprobs",
    "old_log_probs": "prox_logprobs",
    "ref_log_prob": "ref_logprobs",
    "advantages": "advantages",
    "values": "values",
    "entropy": "entropies",
    "rm_scores": "token_rewards",
    "rollout_is_weights": "loss_weights",
}
"""The queue's fields of one value a response token -> ours."""
ROW_FIELDS = ("uid", "data_source", "reward_model", "num_turns", "extra_fields")
FIELDS = ("prompts", "responses", "response_mask", "loss_mask", *RESPONSE_FIELDS, *ROW_FIELDS)
_validating: ContextVar[Any] = ContextVar("rollout_traces_verl_v1_validating", default=None)


@dataclass(frozen=True)
class Fetched:
    """B rows of verl's transfer queue.

    Attributes:
        keys: B keys, `{uid}_{session}_{index}`: an agent loop with several outputs makes several rows.
        tags: B mappings with `min_global_steps` and `max_global_steps`, the weights' versions.
        fields: name -> B ragged rows; fields that verl did not store are missing.
        train_version: the policy version being trained.
    """

    keys: Sequence[str]
    tags: Sequence[Mapping[str, Any]]
    fields: Mapping[str, Any]
    train_version: int | None = None


def batches_from(fetched: Fetched, /) -> list[RolloutBatch]:
    """The queue's rows as one right-padded batch.

    verl stores a rollout's own mask as `loss_mask`, and a correction that rejects tokens rewrites `response_mask`
    alone: the first is our response mask, the second our loss mask. Versions are given where every row was
    sampled by one.

    Raises:
        BatchError: a field is missing.
    """
    fields = fetched.fields
    for key in ("prompts", "responses", "response_mask"):
        if key not in fields:
            raise BatchError(f"verl's queue: field {key!r} is missing. Seen {', '.join(sorted(fields))}.")
    rows = {name: _rows(values) for name, values in fields.items()}
    masks = [np.asarray(row) > 0 for row in rows["response_mask"]]
    sampled = [np.asarray(row) > 0 for row in rows["loss_mask"]] if "loss_mask" in rows else masks
    tracks = {ours: rows[theirs] for theirs, ours in RESPONSE_FIELDS.items() if theirs in rows}
    extras = [item if isinstance(item, Mapping) else {} for item in rows.get("extra_fields", [])]
    numbers, words = split_extras(_columns([item.get("reward_extra_info") or {} for item in extras]))
    if "num_turns" in rows:
        numbers["num_turns"] = np.asarray([float(value) for value in rows["num_turns"]])
    return [
        RolloutBatch.from_prompt_response(
            rows["prompts"],
            rows["responses"],
            loss_mask=masks,
            response_mask=sampled,
            versions=_versions(fetched.tags, sampled),
            rewards=[float(np.sum(row)) for row in rows["rm_scores"]] if "rm_scores" in rows else None,
            sample_metrics=numbers,
            group_ids=rows["uid"] if "uid" in rows else [key.rsplit("_", 2)[0] for key in fetched.keys],
            sample_ids=list(fetched.keys),
            episode_ids=[key.rpartition("_")[0] for key in fetched.keys],
            sources=rows.get("data_source"),
            ground_truths=ground_truths_of(rows.get("reward_model")),
            extras=words,
            train_version=fetched.train_version,
            **tracks,
        )
    ]


def attach(trainer: Any, *, logger: RolloutLogger | None = None, **options: Any) -> None:
    """Logs what a built trainer samples, in training and in validation.

    Args:
        trainer: a trainer of `verl.trainer.ppo.v1`.
        logger: where to log; else one is made when the first rollouts come.
        **options: arguments of that `RolloutLogger`; environment variables `ROLLOUT_TRACES_...` win.
    """
    integration = integration_named("verl_v1")
    warn_if_unsupported(integration)
    settings = HookSettings.from_environment().over(options)
    if getattr(trainer, "_rollout_traces", None) is not None:
        trainer._rollout_traces.hook.give(logger, settings)
        return
    if not binds(integration, trainer):
        return
    observer = _VerlV1Observer(trainer, logger, settings)
    if not observer.hook.is_on:
        return
    trainer._rollout_traces = observer
    trainer._log_rollout_data = observer.around_dump(trainer._log_rollout_data)
    trainer._validate = observer.around_validation(trainer._validate)
    trainer.fit = observer.around_fit(trainer.fit)
    observer.ask_for_dumps()


def install() -> None:
    """Makes every trainer of `verl.trainer.ppo.v1` built from now on log."""
    if not has_hook_points(integration_named("verl_v1"), MODULE):
        return
    from verl.trainer.ppo.v1 import trainer_base

    original = trainer_base.PPOTrainer.__init__
    if getattr(original, "_rollout_traces", False):
        return

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        contained("verl_v1")(attach)(self)

    build._rollout_traces = True  # type: ignore[attr-defined]
    trainer_base.PPOTrainer.__init__ = build
    trainer_base.tq = _QueueSeenInValidation(trainer_base.tq)


class _QueueSeenInValidation:
    """verl's `transfer_queue` module; a validation batch is looked at before it is cleared."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def kv_clear(self, *args: Any, **kwargs: Any) -> Any:
        """`transfer_queue.kv_clear`, after a validating trainer's rows were fetched."""
        observer = _validating.get()
        if observer is not None:
            given = arguments_of(self._queue.kv_clear, args, kwargs)
            contained("verl_v1")(observer.on_validation)(given)
        return self._queue.kv_clear(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _VerlV1Observer:
    """Sees a trainer's keys go by, and fetches their rows."""

    def __init__(self, trainer: Any, logger: RolloutLogger | None, options: Mapping[str, Any]) -> None:
        self.trainer = trainer
        self.hook = HookLogger("verl_v1", logger, options, lambda: run_settings_of(trainer))

    def ask_for_dumps(self) -> None:
        """Makes verl call `_log_rollout_data` also where no dump was asked for."""
        from omegaconf import open_dict

        config = self.trainer.config.trainer
        if not config.get("rollout_data_dir", None):
            with open_dict(config):
                config.rollout_data_dir = NO_DUMP

    def around_dump(self, dump: Callable[..., Any]) -> Callable[..., Any]:
        """Hands training rollouts over, and lets verl dump where a folder was asked for."""

        @functools.wraps(dump)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            given = arguments_of(dump, args, kwargs)
            contained("verl_v1")(self.on_rollouts)(given)
            return None if given.get("rollout_data_dir") == NO_DUMP else dump(*args, **kwargs)

        return wrapped

    def around_validation(self, validate: Callable[..., Any]) -> Callable[..., Any]:
        """Marks the trainer whose validation batches are about to be cleared, and closes the evaluation."""

        @functools.wraps(validate)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            token = _validating.set(self)
            try:
                return validate(*args, **kwargs)
            finally:
                _validating.reset(token)
                contained("verl_v1")(self.hook.close_step)(int(self.trainer.global_steps), "eval-rollout")

        return wrapped

    def around_fit(self, fit: Callable[..., Any]) -> Callable[..., Any]:
        """Stores what is left when training ends, however it ends."""

        @functools.wraps(fit)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.hook.start_training()
            try:
                return fit(*args, **kwargs)
            finally:
                self.hook.close()

        return wrapped

    def on_rollouts(self, given: Arguments) -> None:
        """Hands a step's rollouts over and closes the step: verl calls this once a step, after the update."""
        step, batch = int(self.trainer.global_steps), given["batch"]
        self._log(batch.keys, batch.tags, batch.partition_id, (step, "rollout"))
        self.hook.close_step(step, "rollout")

    def on_validation(self, given: Arguments) -> None:
        """Hands over the validation rows that are about to be cleared."""
        keys, partition = given["keys"], given["partition_id"]
        known = _queue().kv_list(partition).get(partition, {})
        tags = [known.get(key, {}) for key in keys]
        self._log(keys, tags, partition, (int(self.trainer.global_steps), "eval-rollout"))

    def _log(
        self, keys: Sequence[str], tags: Sequence[Mapping[str, Any]], partition: str, place: tuple[int, str]
    ) -> None:
        step, split = place
        present = [b for b, tag in enumerate(tags) if not tag.get("is_padding") and not tag.get("is_prompt")]
        keys = [keys[b] for b in present]
        data = _queue().kv_batch_get(keys=keys, partition_id=partition, select_fields=list(FIELDS))
        version = step - 1 if split == "rollout" else None
        fetched = Fetched(keys, [tags[b] for b in present], dict(data.items()), version)
        self.hook.log_rollouts(batches_from(fetched), step=step, split=split)


def _queue() -> Any:
    import transfer_queue

    return transfer_queue


def _rows(values: Any) -> list[Any]:
    """A field's rows: those of ragged or padded tensors as arrays, whatever else as it is."""
    import torch

    if isinstance(values, torch.Tensor):
        return [
            row.float().numpy() if row.is_floating_point() else row.numpy()
            for row in values.detach().cpu().unbind()
        ]
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def _versions(tags: Sequence[Mapping[str, Any]], sampled: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The version of every sampled token, -1 elsewhere; None where weights changed inside a row or are unknown."""
    steps = [(tag.get("min_global_steps"), tag.get("max_global_steps")) for tag in tags]
    if not all(low is not None and low == high for low, high in steps):
        return None
    return [np.where(mask, int(low), -1) for (low, _), mask in zip(steps, sampled, strict=True)]  # type: ignore[arg-type]
