"""The common part of the hooks of verl's trainers: the dump, the validation, the fit, and a `DataProto` as a canonical batch.

verl's agent loops have stages and spans while they run. verl loads its plugin in every process that imports it, so also
in the workers that run them. What was noted of a rollout goes back to the trainer with it, under `NOTED` of its
`extra_fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import numpy as np
import orjson

from rollout_traces.integrations.base import Arguments, arguments_of, check_keys, contained, inside, wrap_once
from rollout_traces.integrations.followed import Followed, announce, begin, current, prompt_text
from rollout_traces.integrations.hook_logger import HookLogger
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.spans import Span

NO_DUMP = "rollout-traces:no-dump"
"""A `rollout_data_dir` that names no folder: verl calls its dump, which then writes nothing."""
_within: ContextVar[tuple[VerlObserver, str] | None] = ContextVar("rollout_traces_verl_within", default=None)


class VerlObserver:
    """Sees a trainer's batches go by.

    Args:
        name: the integration's name.
        trainer: one of verl's.
        logger: where to log; None: one is made when the first rollouts come.
        options: arguments of that `RolloutLogger`.
    """

    def __init__(
        self, name: str, trainer: Any, logger: RolloutLogger | None, options: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.trainer = trainer
        self.hook = HookLogger(name, logger, options, lambda: run_settings_of(trainer))

    @property
    def step(self) -> int:
        """The step that verl is at."""
        return int(self.trainer.global_steps)

    def watch(self) -> None:
        """Wraps the methods of the trainer by which its rollouts are seen."""
        self.trainer._validate = inside(self.trainer._validate, partial(self.within, "eval-rollout"))
        self.trainer.fit = inside(self.trainer.fit, self.fitting)

    def announce(self) -> None:
        """Lets the agent loops of this node be seen in flight, before verl samples first."""
        announce(self.hook.ready_for_live())

    @contextmanager
    def within(self, split: str) -> Iterator[None]:
        """Marks the trainer that trains or validates inside, and closes the step."""
        token = _within.set((self, split))
        try:
            yield
        finally:
            _within.reset(token)
            contained(self.name)(self.hook.close_step)(self.step, split)

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """The training runs inside: what is left is stored when it ends, however it ends."""
        self.hook.start_training()
        contained(self.name)(self.announce)()
        try:
            yield
        finally:
            self.hook.close()


class DumpObserver(VerlObserver):
    """Sees the training batches of a trainer that dumps them."""

    def watch(self) -> None:
        """Wraps the dump as well, and asks for it."""
        super().watch()
        self.trainer._log_rollout_data = self.around_dump(self.trainer._log_rollout_data)
        self.ask_for_dumps()

    def on_rollouts(self, given: Arguments) -> None:
        """Hands a training batch over.

        Args:
            given: the arguments of `_log_rollout_data`.
        """
        raise NotImplementedError

    def ask_for_dumps(self) -> None:
        """Makes verl call `_log_rollout_data` also where no dump was asked for."""
        from omegaconf import open_dict

        config = self.trainer.config.trainer
        if not config.get("rollout_data_dir", None):
            with open_dict(config):
                config.rollout_data_dir = NO_DUMP

    def around_dump(self, dump: Callable[..., Any]) -> Callable[..., Any]:
        """Hands training rollouts over, closes the step, and lets verl dump where a folder was asked for."""

        @wraps(dump)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            contained(self.name)(self._hand_over)(arguments_of(dump, args, kwargs))
            given = (*args, *kwargs.values())
            if any(isinstance(value, str) and value == NO_DUMP for value in given):
                return None
            return dump(*args, **kwargs)

        return wrapped

    def _hand_over(self, given: Arguments) -> None:
        self.on_rollouts(given)
        self.hook.close_step(self.step, "rollout")


def now_within(name: str, split: str = "eval-rollout") -> VerlObserver | None:
    """The observer of an integration whose trainer is validating, or at a training step, now."""
    observer, now = _within.get() or (None, "")
    return observer if observer is not None and (observer.name, now) == (name, split) else None


def run_settings_of(trainer: Any) -> dict[str, Any]:
    """Arguments of a `RolloutLogger` that verl's own config names: project, run, tokenizer, template."""
    from omegaconf import OmegaConf

    whole = trainer.config
    config = whole.trainer
    kwargs = OmegaConf.select(whole, "data.apply_chat_template_kwargs")
    return {
        "project": config.get("project_name", None) or "verl",
        "name": config.get("experiment_name", None),
        "tokenizer": trainer.tokenizer,
        "chat_template": OmegaConf.select(whole, "actor_rollout_ref.model.custom_chat_template"),
        "chat_template_kwargs": OmegaConf.to_container(kwargs, resolve=True)
        if OmegaConf.is_config(kwargs)
        else kwargs,
    }


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
    check_keys("verl's batch: key", tensors, ("input_ids", "attention_mask", "prompts", "response_mask"))
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
    """Picks the ground truths that the reward model was given, a value a row."""
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


NOTED = "rollout_traces"
"""The key of `extra_fields` with a rollout's spans and its id while it was in flight: a text, which every transport takes."""


def install() -> None:
    """Follows every agent loop that this process runs from now on."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    wrap_once(AgentLoopWorker, "_run_agent_loop", _followed)
    wrap_once(AgentLoopWorker, "_compute_score", _scored)


def install_tools() -> None:
    """Follows the tools that verl's tool agent loop calls."""
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

    wrap_once(ToolAgentLoop, "_call_tool", _called)


def noted_columns(rows: Sequence[Any]) -> dict[str, Any]:
    """`timings` and `extras` of rows, of what verl brought back under `NOTED` of each."""
    noted = [orjson.loads(row) if isinstance(row, str) else {} for row in rows]
    found: dict[str, Any] = {}
    if any(row.get("spans") for row in noted):
        found["timings"] = [row.get("spans") for row in noted]
    if any(row.get("live") for row in noted):
        found["extras"] = [{"live": row["live"]} if row.get("live") else {} for row in noted]
    return found


def _followed(run: Callable[..., Any]) -> Callable[..., Any]:
    """`_run_agent_loop`: a rollout from its beginning to where it is handed on."""

    async def wrapped(self: Any, sampling_params: Any, trajectory: Any, **kwargs: Any) -> Any:
        followed = contained("verl")(_begin)(self, trajectory, kwargs)
        if followed is None:
            return await run(self, sampling_params, trajectory, **kwargs)
        with followed.running():
            result = await run(self, sampling_params, trajectory, **kwargs)
        followed.live.stage("done")
        return result

    return wrapped


def _begin(worker: Any, trajectory: Mapping[str, Any], given: Mapping[str, Any]) -> Followed:
    wrap_once(worker.llm_client, "generate", _sampled)
    known = {
        "step": trajectory.get("step"),
        "split": "eval-rollout" if trajectory.get("validate") else "rollout",
        "source": given.get("data_source"),
        "group": given.get("uid"),
    }
    return Followed(begin(prompt_text(list(given["raw_prompt"])), **known), worker.tokenizer)


def _sampled(generate: Callable[..., Any]) -> Callable[..., Any]:
    """The client's `generate`, which says when a rollout that is followed samples."""

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        followed = current.get()
        if followed is None:
            return await generate(*args, **kwargs)
        with followed.sampling() as span:
            output = await generate(*args, **kwargs)
            contained("verl")(_describe)(span, output)
        contained("verl")(followed.sampled)(output.token_ids)
        return output

    return wrapped


def _describe(span: Span, output: Any) -> None:
    """The version that a turn began with, where the server says."""
    version = (getattr(output, "extra_fields", None) or {}).get("min_global_steps")
    if version is not None:
        span["version"] = int(version)


def _called(call: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(self: Any, tool_call: Any, *args: Any, **kwargs: Any) -> Any:
        followed = current.get()
        with nullcontext() if followed is None else followed.tool(str(getattr(tool_call, "name", ""))):
            return await call(self, tool_call, *args, **kwargs)

    return wrapped


def _scored(score: Callable[..., Any]) -> Callable[..., Any]:
    """`_compute_score`, behind which a rollout is handed on; a loop that gave its own reward is not scored there."""

    async def wrapped(self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        followed = current.get()
        if followed is None:
            return await score(self, outputs, *args, **kwargs)
        scores = self.reward_loop_worker_handles is not None and not _has_reward(outputs)
        with followed.scoring() if scores else nullcontext():
            result = await score(self, outputs, *args, **kwargs)
        contained("verl")(_hand_on)(followed, outputs)
        return result

    return wrapped


def _has_reward(outputs: Any) -> bool:
    return bool(outputs) and getattr(outputs[-1], "reward_score", None) is not None


def _hand_on(followed: Followed, outputs: Sequence[Any]) -> None:
    for output in outputs:
        noted = {"spans": followed.noted, "live": followed.live.id}
        output.extra_fields[NOTED] = orjson.dumps(noted).decode()
