"""TRL's `GRPOTrainer`, and `RLOOTrainer`, which shares its batch.

    from rollout_traces.integrations import trl
    trl.attach(trainer, max_rollout_traces_per_step=32)

TRL's batch is left-padded prompts and right-padded completions. Rewards are not in it: they are what
`_calculate_rewards` returned in the same call, and so are prompts, completions and logged extras. (`trainer._logs`
merges reward functions of one name and forgets all but a generation batch.) Training rollouts sampled at
`state.global_step == k` belong to the scalars that TRL logs at k + 1; evaluation is logged at k.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainerCallback

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
from rollout_traces.logger.rollout_logger import RolloutLogger

DEFAULT_CAP = 32
_logging: ContextVar[int | None] = ContextVar("rollout_traces_trl_logging", default=None)
"""Global step of the trainer whose `log` is running."""
GROUND_TRUTH_COLUMNS = ("answer", "ground_truth", "solution", "target")


@dataclass(frozen=True)
class ScoredCompletions:
    """What one call of `_generate_and_score_completions` leaves behind, for this rank's B rows.

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
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def batches_from(scored: ScoredCompletions, /) -> list[RolloutBatch]:
    """TRL's prompts [B, P] and completions [B, C] as one batch [B, P + C].

    Raises:
        BatchError: a key is missing, as when TRL's batch changes.
    """
    import torch

    output = scored.output
    for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"):
        if key not in output:
            raise BatchError(f"TRL's batch: key {key!r} is missing. Seen {', '.join(sorted(output))}.")
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


def attach(trainer: Any, *, logger: RolloutLogger | None = None, **options: Any) -> TrainerCallback:
    """Logs what a built trainer samples.

    Args:
        trainer: a `GRPOTrainer` or a relative.
        logger: where to log; else one is made when the first rollouts come, on the Trackio run that TRL
            opened, or on one of its own.
        **options: arguments of that `RolloutLogger`; environment variables `ROLLOUT_TRACES_...` win.

    Returns:
        The callback that flushes before TRL closes its run; it is already added, unless the trainer lacks
        what a hook needs.
    """
    integration = integration_named("trl")
    warn_if_unsupported(integration)
    if getattr(trainer, "_rollout_traces", None) is not None:
        trainer._rollout_traces.hook.give(logger, HookSettings.from_environment().over(options))
        return trainer._rollout_traces
    observer = _TrlObserver(trainer, logger, {"max_rollout_traces_per_step": DEFAULT_CAP, **options})
    if not observer.hook.is_on or not binds(integration, trainer):
        return observer
    trainer._rollout_traces = observer
    trainer._generate = observer.remember_lengths(trainer._generate)
    trainer._calculate_rewards = observer.remember_rewards(trainer._calculate_rewards)
    trainer.log = observer.around_log(trainer.log)
    trainer._generate_and_score_completions = observer.hand_over(trainer._generate_and_score_completions)
    trainer.callback_handler.callbacks.insert(0, observer)
    return observer


def install() -> None:
    """Makes every `GRPOTrainer` built from now on log, as `rollout-traces run` does."""
    if has_hook_points(integration_named("trl"), "trl.trainer.grpo_trainer"):
        from trl.trainer.grpo_trainer import GRPOTrainer

        _attach_when_built(GRPOTrainer)


def install_rloo() -> None:
    """Makes every `RLOOTrainer` built from now on log."""
    if has_hook_points(integration_named("trl"), "trl.trainer.rloo_trainer"):
        from trl.trainer.rloo_trainer import RLOOTrainer

        _attach_when_built(RLOOTrainer)


def _attach_when_built(trainer_class: Any) -> None:
    original = trainer_class.__init__
    if getattr(original, "_rollout_traces", False):
        return

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        contained("trl")(attach)(self)

    build._rollout_traces = True  # type: ignore[attr-defined]
    trainer_class.__init__ = build


@dataclass(frozen=True)
class _Generated:
    """One completion before it is padded: its length, why it stopped, 1 where the policy sampled."""

    length: int
    stop_reason: str
    sampled: Sequence[int]


@dataclass(frozen=True)
class _Rewarded:
    """What `_calculate_rewards` was given and returned, for this rank's B rows.

    Attributes:
        names: F reward functions' names, made unique.
        rewards_B_F: one value a row and function; NaN where a function gave none.
        prompts: B prompts, texts or lists of messages.
        completions: B completions, texts or lists of messages.
        extras: column that a reward function logged -> B values.
    """

    names: Sequence[str]
    rewards_B_F: Any
    prompts: Sequence[Any]
    completions: Sequence[Any]
    extras: Mapping[str, Sequence[Any]]


class _TrlObserver(TrainerCallback):
    """Sees every call, hands it over, closes each step, and flushes before TRL finishes its run."""

    def __init__(self, trainer: Any, logger: RolloutLogger | None, options: Mapping[str, Any]) -> None:
        self.trainer = trainer
        self.hook = HookLogger(
            "trl", logger, HookSettings.from_environment().over(options), self._said_by_trainer
        )
        self.generated: list[_Generated] = []
        self.rewarded: _Rewarded | None = None
        self._groups: dict[str, tuple[int, int]] = {}

    def remember_lengths(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `_generate`, whose lists still tell a truncated completion from a masked one."""

        @functools.wraps(generate)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = generate(*args, **kwargs)
            self.generated = contained("trl")(self._lengths)(result) or []
            return result

        return wrapped

    def remember_rewards(self, calculate: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `_calculate_rewards`, which has every row's rewards by function, prompts and completions."""

        @functools.wraps(calculate)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            rewards = calculate(*args, **kwargs)
            self.rewarded = contained("trl")(self._rewarded)(arguments_of(calculate, args, kwargs), rewards)
            return rewards

        return wrapped

    def hand_over(self, score: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `_generate_and_score_completions`."""

        @functools.wraps(score)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.generated, self.rewarded = [], None
            output = score(*args, **kwargs)
            contained("trl")(self._log)(arguments_of(score, args, kwargs), output)
            return output

        return wrapped

    def around_log(self, log: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `log`, whose completions table would take a step of Trackio's own counting."""

        @functools.wraps(log)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            token = _logging.set(int(self.trainer.state.global_step))
            try:
                return log(*args, **kwargs)
            finally:
                _logging.reset(token)

        return wrapped

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Makes TRL's own scalars and tables carry the global step that the rollouts carry."""
        self.hook.start_training()
        contained("trl")(_align_steps)(self.trainer)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Closes the step that TRL has just counted."""
        contained("trl")(self.hook.close_step)(int(state.global_step), "rollout")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Closes the evaluation, which TRL logs at the step it is at."""
        contained("trl")(self.hook.close_step)(int(state.global_step), "eval-rollout")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stores what is left; TRL closes its Trackio run right after."""
        self.hook.close()

    def _lengths(self, result: Sequence[Any]) -> list[_Generated]:
        ends = {*_as_list(self.trainer.eos_token_ids), self.trainer._tokenizer.pad_token_id}
        masks = result[2] if _are_masks(result[2]) else [[1] * len(ids) for ids in result[1]]
        return [
            _Generated(len(ids), "stop" if len(ids) and ids[-1] in ends else "length", mask)
            for ids, mask in zip(result[1], masks, strict=True)
        ]

    def _rewarded(self, given: Arguments, rewards: Any) -> _Rewarded:
        prompts, completions = given["prompts"], given["completions"]
        n, rank = len(prompts), self.trainer.accelerator.process_index
        return _Rewarded(
            names=_unique(self.trainer.reward_func_names),
            rewards_B_F=rewards[rank * n : (rank + 1) * n].detach().float().cpu().numpy(),
            prompts=list(prompts),
            completions=list(completions),
            extras={
                name: list(values)
                for name, values in getattr(self.trainer, "_pending_extra_logs", {}).items()
                if len(values) == n
            },
        )

    def _log(self, given: Arguments, output: Mapping[str, Any]) -> None:
        trainer, inputs = self.trainer, given["inputs"]
        sampled_at = int(trainer.state.global_step)
        training = trainer.model.training
        step, split = (sampled_at + 1, "rollout") if training else (sampled_at, "eval-rollout")
        scored = self._scored(inputs, output, (step, split))
        self.hook.log_rollouts(batches_from(scored), step=step, split=split)

    def _take_groups(self, place: tuple[int, str], n_groups: int) -> int:
        """The first of so many group ids of a step and split; calls of the same one go on where the last ended."""
        step, split = place
        before, taken = self._groups.get(split, (step, 0))
        first = taken if before == step else 0
        self._groups[split] = (step, first + n_groups)
        return first

    def _scored(
        self,
        inputs: Sequence[Mapping[str, Any]],
        output: Mapping[str, Any],
        place: tuple[int, str],
    ) -> ScoredCompletions:
        trainer = self.trainer
        n = len(inputs)
        world, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        group_size = trainer.num_generations if place[1] == "rollout" else trainer.num_generations_eval
        columns = {name: [row.get(name) for row in inputs] for name in inputs[0] if name != "prompt"}
        known = len(self.generated) == n
        rewarded = self.rewarded
        if rewarded is None or len(rewarded.prompts) != n:
            raise BatchError(
                f"TRL: `_calculate_rewards` saw {0 if rewarded is None else len(rewarded.prompts)} rows. "
                f"Expected the batch's {n}."
            )
        first_group = self._take_groups(place, -(-n * world // group_size))
        return ScoredCompletions(
            output=output,
            completion_lengths=[row.length for row in self.generated] if known else None,
            sampled=[row.sampled for row in self.generated] if known else None,
            stop_reasons=[row.stop_reason for row in self.generated] if known else None,
            rewards={name: rewarded.rewards_B_F[:, f].tolist() for f, name in enumerate(rewarded.names)},
            reward_weights=_as_list(trainer.reward_weights),
            group_ids=[first_group + (rank * n + row) // group_size for row in range(n)],
            global_step=int(trainer.state.global_step),
            messages=self._messages(rewarded),
            columns={**columns, **rewarded.extras},
        )

    def _messages(self, rewarded: _Rewarded) -> list[list[Mapping[str, Any]]] | None:
        """TRL's structured conversations; wrong under a `rollout_func`, absent for plain text."""
        if getattr(self.trainer, "rollout_func", None) is not None:
            return None
        if not all(isinstance(part, list) for part in (*rewarded.prompts, *rewarded.completions)):
            return None
        return [
            [*prompt, *completion]
            for prompt, completion in zip(rewarded.prompts, rewarded.completions, strict=True)
        ]

    def _template(self) -> str | None:
        """The chat template that the trainer prompts with, where it is not the tokenizer's own."""
        own = getattr(self.trainer._tokenizer, "chat_template", None)
        processor = getattr(self.trainer, "processing_class", None)
        prompting = getattr(self.trainer, "chat_template", None) or getattr(processor, "chat_template", None)
        return prompting if isinstance(prompting, str) and prompting != own else None

    def _said_by_trainer(self) -> dict[str, Any]:
        args = self.trainer.args
        return {
            "project": getattr(args, "project", None) or "huggingface",
            "name": getattr(args, "run_name", None),
            "tokenizer": self.trainer._tokenizer,
            "chat_template": self._template(),
            "chat_template_kwargs": getattr(self.trainer, "chat_template_kwargs", None),
        }


def _unique(names: Sequence[str]) -> list[str]:
    """Names in order; the second of one name is `name_2`, so that two lambdas stay two reward functions."""
    seen: Counter[str] = Counter()
    unique: list[str] = []
    for name in map(str, names):
        seen[name] += 1
        candidate = name if seen[name] == 1 else f"{name}_{seen[name]}"
        while candidate in unique:
            seen[name] += 1
            candidate = f"{name}_{seen[name]}"
        unique.append(candidate)
    return unique


def _are_masks(values: Any) -> bool:
    """Whether it is lists of 0 and 1, as `GRPOTrainer` gives where tools are used; `RLOOTrainer` gives texts there."""
    return isinstance(values, Sequence) and all(
        isinstance(row, Sequence) and all(value in (0, 1) for value in row) for row in values
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


def _align_steps(trainer: Any) -> None:
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


def _as_list(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)
