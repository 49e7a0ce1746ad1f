"""The common part of TRL's hooks: a batch, left-padded prompts and right-padded completions, as a canonical one; steps, scalars and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers import TrainerCallback

from rollout_traces.integrations.base import check_keys, contained, inside
from rollout_traces.integrations.hook_logger import HookLogger, attach_once
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.spans import Span

GROUND_TRUTH_COLUMNS = ("answer", "ground_truth", "solution", "target")


@dataclass(frozen=True)
class ScoredCompletions:
    """The result of one call of `_generate_and_score_completions`, for this rank's B rows.

    Attributes:
        output: the tensors it returned.
        completion_lengths: tokens of each completion; None takes them from `completion_mask`, which hides
            truncated completions when TRL masks them.
        sampled: B lists, 1 where a completion's token was sampled and 0 where a tool wrote it; None takes
            them from `tool_mask`.
        stop_reasons: `stop` or `length` of each row; None = unknown.
        rewards: reward function -> B floats.
        reward_weights: weight of each reward function, in order.
        group_ids: B group numbers.
        global_step: the trainer's `state.global_step`.
        messages: B conversations as TRL structured them, or None.
        spans: when each row was sampled, called tools and was scored.
        columns: data set columns and extra log columns -> B values.
    """

    output: Mapping[str, Any]
    completion_lengths: Sequence[int] | None = None
    sampled: Sequence[Sequence[int]] | None = None
    stop_reasons: Sequence[str] | None = None
    rewards: Mapping[str, Sequence[float]] = field(default_factory=dict)
    reward_weights: Sequence[float] = ()
    group_ids: Sequence[int] | None = None
    global_step: int = 0
    messages: Sequence[Any] | None = None
    spans: Sequence[Sequence[Span]] = ()
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def batches_from(scored: ScoredCompletions, /) -> list[RolloutBatch]:
    """TRL's prompts [B, P] and completions [B, C] as one batch [B, P + C].

    Raises:
        BatchError: a key is missing, as when TRL's batch changes.
    """
    import torch

    output = scored.output
    check_keys("TRL's batch: key", output, ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"))
    prompt_mask, completion_mask = output["prompt_mask"].bool(), output["completion_mask"].bool()
    present = completion_mask
    if scored.completion_lengths is not None:
        lengths = torch.as_tensor(list(scored.completion_lengths), device=completion_mask.device)
        positions = torch.arange(completion_mask.shape[1], device=completion_mask.device)
        present = positions[None] < lengths[:, None]
    trained = completion_mask & output["tool_mask"].bool() if "tool_mask" in output else completion_mask
    sampled = trained if "tool_mask" in output else present
    if scored.sampled is not None:
        rows = [torch.as_tensor(list(row), dtype=torch.bool) for row in scored.sampled]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        sampled = present & torch.nn.functional.pad(padded, (0, present.shape[1] - padded.shape[1])).to(
            present.device
        )

    def after_prompt(completion: Any, fill: float | bool) -> Any:
        before = torch.full_like(output["prompt_ids"], fill, dtype=completion.dtype)
        return torch.cat([before, completion], dim=1)

    response_mask = after_prompt(sampled, False)
    tracks = {
        canonical: after_prompt(output[key].float(), float("nan"))
        for key, canonical in _logprob_keys(output).items()
    }
    reward = _weighted(scored.rewards, scored.reward_weights)
    return [
        RolloutBatch(
            input_ids=torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1),
            attention_mask=torch.cat([prompt_mask, present], dim=1),
            loss_mask=after_prompt(trained, False),
            response_mask=response_mask,
            versions=torch.where(response_mask, scored.global_step, -1),
            advantages=output.get("advantages"),
            rewards=reward,
            reward_components=dict(scored.rewards) if len(scored.rewards) > 1 else {},
            group_ids=scored.group_ids,
            stop_reasons=scored.stop_reasons,
            messages=scored.messages,
            timings=[list(spans) for spans in scored.spans] if any(scored.spans) else None,
            ground_truths=next(
                (scored.columns[name] for name in GROUND_TRUTH_COLUMNS if name in scored.columns), None
            ),
            extras=_extras(scored.columns),
            train_version=scored.global_step,
            **tracks,
        )
    ]


def _extras(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]] | None:
    """Scalar columns of a row to show with it; lists and images stay out."""
    shown = {
        name: values
        for name, values in columns.items()
        if name not in GROUND_TRUTH_COLUMNS
        and all(value is None or isinstance(value, (str, int, float, bool)) for value in values)
    }
    return (
        [dict(zip(shown, row, strict=True)) for row in zip(*shown.values(), strict=True)] if shown else None
    )


def _logprob_keys(output: Mapping[str, Any]) -> dict[str, str]:
    """TRL's logprob keys -> ours. What the trainer recomputes is prox; an engine's own is the rollout's."""
    keys = {
        "sampling_per_token_logps": "logprobs",
        "old_per_token_logps": "prox_logprobs",
        "ref_per_token_logps": "ref_logprobs",
    }
    return {key: canonical for key, canonical in keys.items() if output.get(key) is not None}


def _weighted(rewards: Mapping[str, Sequence[float]], weights: Sequence[float]) -> list[float | None] | None:
    """Weighted sum over reward functions, those that gave none left out; None where all did."""
    if not rewards:
        return None
    factors = list(weights) if len(weights) == len(rewards) else [1.0] * len(rewards)
    totals: list[float | None] = []
    for row in zip(*rewards.values(), strict=True):
        known = [
            w * value for w, value in zip(factors, row, strict=True) if value is not None and value == value
        ]
        totals.append(sum(known) if known else None)
    return totals


DEFAULT_CAP = 32
"""`max_rollout_traces_per_step` where a script attaches and says none."""


class TrlCallback(TrainerCallback):
    """Closes each step of a TRL trainer, and flushes before TRL finishes its run.

    Args:
        name: the integration's name.
        logger: where to log; None: one is made when the first rollouts come.
        options: arguments of that `RolloutLogger`.
    """

    def __init__(
        self, name: str, trainer: Any, logger: RolloutLogger | None, options: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.trainer = trainer
        wanted = {"max_rollout_traces_per_step": DEFAULT_CAP, **options}
        self.hook = HookLogger(name, logger, wanted, self._said_by_trainer)

    def watch(self) -> None:
        """Wraps the methods of the trainer by which its rollouts are seen, and is told of its steps."""
        self.trainer.log = inside(self.trainer.log, partial(at_global_step, self.trainer))
        self.trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Makes TRL's own scalars and tables carry the global step that the rollouts carry."""
        self.hook.start_training()
        contained(self.name)(align_steps)(self.trainer)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Closes the step that TRL has just counted."""
        contained(self.name)(self.hook.close_step)(int(state.global_step), "rollout")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stores what is left; TRL closes its Trackio run right after."""
        self.hook.close()

    def _said_by_trainer(self) -> dict[str, Any]:
        args = self.trainer.args
        return {
            "project": getattr(args, "project", None) or "huggingface",
            "name": getattr(args, "run_name", None),
        }


def attach_callback(
    kind: type[TrlCallback],
    name: str,
    trainer: Any,
    logger: RolloutLogger | None,
    options: Mapping[str, Any],
) -> TrlCallback:
    """Attaches a callback to a trainer, or gives what a script says to the one that it has.

    Returns:
        The callback; it is already added, unless nothing was asked for or the trainer lacks what a hook needs.
    """
    return attach_once(name, trainer, logger, options, kind) or kind(name, trainer, logger, options)


_logging: ContextVar[int | None] = ContextVar("rollout_traces_trl_logging", default=None)
"""Global step of the trainer whose `log` is running."""


@contextmanager
def at_global_step(trainer: Any) -> Iterator[None]:
    """A trainer's `log` runs inside, whose completions table would take a step of Trackio's own counting."""
    token = _logging.set(int(trainer.state.global_step))
    try:
        yield
    finally:
        _logging.reset(token)


def align_steps(trainer: Any) -> None:
    """Makes what the trainer and its Trackio callback log without a step carry the global step."""
    for callback in trainer.callback_handler.callbacks:
        if type(callback).__name__ == "TrackioCallback" and not isinstance(callback._trackio, _StepAligned):
            callback._trackio = _StepAligned(callback._trackio)
    for module in {sys.modules.get(kind.__module__) for kind in type(trainer).__mro__}:
        trackio = getattr(module, "trackio", None)
        if trackio is not None and not isinstance(trackio, _StepAligned):
            module.trackio = _StepAligned(trackio)  # type: ignore[union-attr]


class _StepAligned:
    """Trackio as TRL calls it; what TRL logs without a step is logged at its global step.

    Trackio numbers such calls itself; rollouts carry the trainer's own step.
    """

    def __init__(self, trackio: Any) -> None:
        self._module = trackio

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """`trackio.log` at the global step among the metrics, else at that of the trainer that is logging."""
        if step is None:
            step = int(metrics["train/global_step"]) if "train/global_step" in metrics else _logging.get()
        self._module.log(dict(metrics), step=step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
