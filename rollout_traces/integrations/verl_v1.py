"""verl's default trainer since 0.9, `verl.trainer.ppo.v1`, whose batches are keys of a transfer queue.

    ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP=32 python -m verl.trainer.main_ppo ...

Rollouts are fetched where verl would dump them (`_log_rollout_data`), before it clears its queue; a validation
batch where it clears the queue. verl asks for the dump only when `trainer.rollout_data_dir` is set; where it is
not, the folder is set to a name that means "no dump".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.integrations.base import Arguments, arguments_of, attach_when_built, check_keys, contained
from rollout_traces.integrations.hook_logger import attach_once
from rollout_traces.integrations.verl_observer import (
    NOTED,
    DumpObserver,
    ground_truths_of,
    merged_rows,
    noted_columns,
    now_within,
    split_extras,
)
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.plain_values import columns_of

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
    alone: the first is our response mask, the second our loss mask. Versions are given of rows that
    were sampled by one.

    Raises:
        BatchError: a field is missing.
    """
    fields = fetched.fields
    check_keys("verl's queue: field", fields, ("prompts", "responses", "response_mask"))
    rows = {name: _rows(values) for name, values in fields.items()}
    masks = [np.asarray(row) > 0 for row in rows["response_mask"]]
    sampled = [np.asarray(row) > 0 for row in rows["loss_mask"]] if "loss_mask" in rows else masks
    tracks = {ours: rows[theirs] for theirs, ours in RESPONSE_FIELDS.items() if theirs in rows}
    extras = [item if isinstance(item, Mapping) else {} for item in rows.get("extra_fields", [])]
    numbers, words = split_extras(columns_of([item.get("reward_extra_info") or {} for item in extras]))
    if "num_turns" in rows:
        numbers["num_turns"] = np.asarray([float(value) for value in rows["num_turns"]])
    noted = noted_columns([item.get(NOTED) for item in extras])
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
            extras=merged_rows(words, noted.get("extras")),
            timings=noted.get("timings"),
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
    attach_once("verl_v1", trainer, logger, options, _VerlV1Observer)


def install() -> None:
    """Makes every trainer of `verl.trainer.ppo.v1` built from now on log."""
    if attach_when_built("verl_v1", MODULE, "PPOTrainer", attach) is None:
        return
    trainer_base: Any = sys.modules[MODULE]
    if not isinstance(trainer_base.tq, _QueueSeenInValidation):
        trainer_base.tq = _QueueSeenInValidation(trainer_base.tq)


class _QueueSeenInValidation:
    """verl's `transfer_queue` module; a validation batch is looked at before it is cleared."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def kv_clear(self, *args: Any, **kwargs: Any) -> Any:
        """`transfer_queue.kv_clear`, after a validating trainer's rows were fetched."""
        observer = now_within("verl_v1")
        if isinstance(observer, _VerlV1Observer):
            given = arguments_of(self._queue.kv_clear, args, kwargs)
            contained("verl_v1")(observer.on_validation)(given)
        return self._queue.kv_clear(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _VerlV1Observer(DumpObserver):
    """Sees a trainer's keys go by, and fetches their rows."""

    def on_rollouts(self, given: Arguments) -> None:
        """Hands a step's rollouts over: verl calls this once a step, after the update."""
        batch = given["batch"]
        self._log(batch.keys, batch.tags, batch.partition_id, "rollout")

    def on_validation(self, given: Arguments) -> None:
        """Hands over the validation rows that are about to be cleared."""
        keys, partition = given["keys"], given["partition_id"]
        known = _queue().kv_list(partition).get(partition, {})
        tags = [known.get(key, {}) for key in keys]
        self._log(keys, tags, partition, "eval-rollout")

    def _log(
        self, keys: Sequence[str], tags: Sequence[Mapping[str, Any]], partition: str, split: str
    ) -> None:
        present = [b for b, tag in enumerate(tags) if not tag.get("is_padding") and not tag.get("is_prompt")]
        keys = [keys[b] for b in present]
        data = _queue().kv_batch_get(keys=keys, partition_id=partition, select_fields=list(FIELDS))
        version = self.step - 1 if split == "rollout" else None
        fetched = Fetched(keys, [tags[b] for b in present], dict(data.items()), version)
        self.hook.log_rollouts(batches_from(fetched), step=self.step, split=split)


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


def _versions(tags: Sequence[Mapping[str, Any]], sampled: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The version of every sampled token; -1 elsewhere, and in rows whose weights changed inside or are unknown."""
    steps = [(tag.get("min_global_steps"), tag.get("max_global_steps")) for tag in tags]
    known = [int(low) if low is not None and low == high else -1 for low, high in steps]
    if max(known, default=-1) < 0:
        return None
    return [np.where(mask, version, -1) for version, mask in zip(known, sampled, strict=True)]
