"""TRL's `AsyncGRPOTrainer`, whose rollouts come from a worker through a queue.

    from rollout_traces.integrations import trl_async
    trl_async.attach(trainer, max_rollout_traces_per_step=32)

A sample is seen three times in the main process: taken from the queue (the only place with its version), packed
into a micro-batch, and trained on, perhaps a step later, since the data loader reads ahead. Its step is the one in
which it is trained on; a sample that was too stale is logged as discarded in the step at which it was dropped.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import TrainerCallback

from rollout_traces.integrations.base import Arguments, attach_when_built, contained, watched
from rollout_traces.integrations.trl_batch import TrlCallback, attach_callback
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.plain_values import columns_of

NAME = "trl_async"
MODULE = "trl.experimental.async_grpo.async_grpo_trainer"
STALE = "stale"
"""Discard reason of samples that were older than `max_staleness` when they left the queue."""


@dataclass(frozen=True)
class Taken:
    """Samples of one step.

    Attributes:
        samples: B of TRL's `RolloutSample`.
        train_version: the policy version being trained.
        discard_reason: why they were dropped; None: they were trained on.
    """

    samples: Sequence[Any]
    train_version: int | None = None
    discard_reason: str | None = None


def batches_from(taken: Taken, /) -> list[RolloutBatch]:
    """Samples as one right-padded batch; none where there are no samples.

    What TRL calls `completion_mask` is both what is in the loss and what the policy sampled. The conversation of a
    sample may have become several rows, so that its messages are not those of the row: roles come from the tokens.
    """
    samples = taken.samples
    if not samples:
        return []
    masks = [np.asarray(sample.completion_mask) > 0 for sample in samples]
    starts = [int(mask.argmax()) if mask.any() else len(mask) for mask in masks]
    ids = [np.asarray(sample.input_ids) for sample in samples]
    behind = [mask[start:] for mask, start in zip(masks, starts, strict=True)]
    named = [sample.metrics for sample in samples]
    return [
        RolloutBatch.from_prompt_response(
            [row[:start] for row, start in zip(ids, starts, strict=True)],
            [row[start:] for row, start in zip(ids, starts, strict=True)],
            loss_mask=behind,
            versions=[
                np.where(mask, sample.model_version, -1) for mask, sample in zip(behind, samples, strict=True)
            ],
            logprobs=[
                np.asarray(sample.old_log_probs, np.float32)[start:]
                for sample, start in zip(samples, starts, strict=True)
            ],
            advantages=[float(sample.advantage) for sample in samples],
            rewards=[metrics.get("reward") for metrics in named],
            reward_components=_columns(named, "rewards/"),
            sample_metrics=_columns(named, "tools/"),
            group_ids=[int(sample.group_id) for sample in samples],
            discard_reasons=[taken.discard_reason] * len(samples) if taken.discard_reason else None,
            train_version=taken.train_version,
        )
    ]


def attach(trainer: Any, *, logger: RolloutLogger | None = None, **options: Any) -> TrainerCallback:
    """Logs what a built trainer trains on.

    Args:
        trainer: an `AsyncGRPOTrainer`.
        logger: where to log; else one is made when the first rollouts come, on the Trackio run that TRL opened,
            or on one of its own.
        **options: arguments of that `RolloutLogger`; environment variables `ROLLOUT_TRACES_...` win.

    Returns:
        The callback that closes steps and flushes before TRL closes its run; it is already added, unless the
        trainer lacks what a hook needs.
    """
    return attach_callback(_TrlAsyncObserver, NAME, trainer, logger, options)


def install() -> None:
    """Makes every `AsyncGRPOTrainer` built from now on log."""
    attach_when_built(NAME, MODULE, "AsyncGRPOTrainer", attach)


class _TrlAsyncObserver(TrlCallback):
    """Follows samples from the queue to the step they are trained in.

    Attributes:
        pulled: samples that left the queue and are not packed yet, by the identity of their ids.
        packed: micro-batches that are packed and not trained on yet, in order.
    """

    def __init__(self, name: str, trainer: Any, *given: Any) -> None:
        super().__init__(name, trainer, *given)
        self.pulled: dict[int, Any] = {}
        self.packed: deque[list[Any]] = deque()

    def watch(self) -> None:
        """Wraps the making of the loader, and the step of a micro-batch."""
        super().watch()
        self.trainer.get_train_dataloader = self.around_loader(self.trainer.get_train_dataloader)
        self.trainer.training_step = watched(NAME, self.trainer.training_step, self.before_training)

    def around_loader(self, get_loader: Callable[..., Any]) -> Callable[..., Any]:
        """Watches the queue of the data set and the collator of the loader as they are made."""

        @functools.wraps(get_loader)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            accelerator = self.trainer.accelerator
            prepare = accelerator.prepare

            def prepare_watched(loader: Any, *others: Any, **options: Any) -> Any:
                contained(NAME)(self._watch)(loader)
                return prepare(loader, *others, **options)

            accelerator.prepare = prepare_watched
            try:
                return get_loader(*args, **kwargs)
            finally:
                accelerator.prepare = prepare

        return wrapped

    def before_training(self, given: Arguments) -> None:
        """Hands over the samples of the micro-batch that is trained on next."""
        if self.packed:
            self._log(self.packed.popleft(), None)

    def seen(self, sample: Any, dataset: Any) -> None:
        """Notes a sample that left the queue; one that the data set will drop is logged as discarded."""
        if dataset.model_version_fn() - sample.model_version > dataset.max_staleness:
            self._log([sample], STALE)
        else:
            self.pulled[id(sample.input_ids)] = sample

    def _watch(self, loader: Any) -> None:
        dataset = getattr(self.trainer, "_rollout_dataset", None)
        if dataset is None:
            return
        dataset.queue = _WatchedQueue(dataset.queue, dataset, self)
        dataset.report_to = []  # TRL would log a few of the same rollouts to the same run
        collate = loader.collate_fn

        @functools.wraps(collate, updated=())
        def watched(examples: Any) -> Any:
            contained(NAME)(self._on_packed)(examples)
            return collate(examples)

        loader.collate_fn = watched

    def _on_packed(self, examples: Sequence[Any]) -> None:
        self.packed.append(
            [
                self.pulled.pop(id(sample["input_ids"]))
                for rows in examples
                for row in rows
                for sample in row.samples
            ]
        )

    def _log(self, samples: Sequence[Any], discard_reason: str | None) -> None:
        taken = Taken(samples, int(self.trainer.model_version), discard_reason)
        step = int(self.trainer.state.global_step) + 1
        self.hook.log_rollouts(batches_from(taken), step=step, split="rollout")

    def _said_by_trainer(self) -> dict[str, Any]:
        return {
            **super()._said_by_trainer(),
            "tokenizer": self.trainer.processing_class,
            "chat_template_kwargs": getattr(self.trainer.args, "chat_template_kwargs", None),
        }


class _WatchedQueue:
    """A rollout queue whose samples are noted as they are taken."""

    def __init__(self, queue: Any, dataset: Any, observer: _TrlAsyncObserver) -> None:
        self._queue = queue
        self._dataset = dataset
        self._observer = observer

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """`queue.get`."""
        sample = self._queue.get(*args, **kwargs)
        contained(NAME)(self._observer.seen)(sample, self._dataset)
        return sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _columns(named: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, list[float | None]]:
    """Numbers below a prefix, one a sample; a sample that lacks one has None."""
    columns = columns_of(named)
    return {name.removeprefix(prefix): values for name, values in columns.items() if name.startswith(prefix)}
