"""AReaL's `PPOTrainer`, hooked without a fork.

    from rollout_traces.integrations import areal
    areal.attach(trainer, max_rollout_traces_per_step=32)

or `stats_logger.trackio.max_rollout_traces_per_step: 32` in the config with `rollout-traces run`. What a batch
is, and how its handles are resolved: `stats.trajectories`.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_traces.capture.hand_over import RolloutHandle
from rollout_traces.integrations import areal_followed
from rollout_traces.integrations.base import (
    Arguments,
    attach_when_built,
    contained,
    has_hook_points,
    integration_named,
    watched,
    wrap_once,
)
from rollout_traces.integrations.followed import announce
from rollout_traces.integrations.hook_logger import HookLogger, attach_once
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.batch import ListElement, RolloutBatch
from rollout_traces.model.text import fresh_name
from rollout_traces.settings.logger_options import LoggerOptions, default_of, kind_of, read_environment
from rollout_traces.stats.trajectories import JOINED_KEYS, batch_of, batches_from, only, resolve

__all__ = ["attach", "batches_from", "extend_config", "install", "resolve", "template_of"]

THEIRS = ("project", "name", "space_id")
"""Fields that upstream's `TrackioConfig` has: AReaL opens the run with them."""


def _config_field(name: str, hint: Any) -> tuple[Any, Any]:
    """An option's type as OmegaConf can check it, and its default."""
    kind = kind_of(hint)
    if kind in (dict, list):
        return Any, None
    plain = kind if kind in (int, float, bool, str) else Any
    optional = types.NoneType in typing.get_args(hint)
    return plain | None if optional else plain, default_of(name)


CONFIG_FIELDS: dict[str, tuple[Any, Any]] = {
    name: _config_field(name, hint)
    for name, hint in typing.get_type_hints(LoggerOptions).items()
    if name not in THEIRS
}
"""Every option of a logger that is not `THEIRS`, with type and default."""
JOIN_ADVANTAGES = "join_advantages"
ADDED_FIELDS = {**CONFIG_FIELDS, JOIN_ADVANTAGES: (bool, False)}
"""Fields that `TrackioConfig` gets where upstream's does not have them, with type and default."""

TEMPLATE_NAMES = ("tokenizer", "enable_thinking", "chat_template_kwargs")
"""Attributes or arguments by which a workflow says how it renders prompts."""


@dataclass(frozen=True)
class ArealSettings:
    """Settings of AReaL's hook alone; `ROLLOUT_TRACES_JOIN_ADVANTAGES` or a key of `stats_logger.trackio`.

    Attributes:
        join_advantages: whether `advantages` and `prox_logp` are fetched from `compute_advantages`.
    """

    join_advantages: bool = False

    @classmethod
    def of(cls, trainer: Any) -> ArealSettings:
        """The environment's value, else the config's.

        Raises:
            ConfigError: a variable cannot be understood; the text names it.
        """
        trackio = getattr(trainer.config.stats_logger, "trackio", None)
        return cls(
            **{JOIN_ADVANTAGES: bool(getattr(trackio, JOIN_ADVANTAGES, False)), **read_environment(cls)}
        )


def attach(
    trainer: Any, *, logger: RolloutLogger | None = None, join_advantages: bool = False, **options: Any
) -> None:
    """Logs what a built trainer samples, in training and in evaluation.

    Args:
        trainer: a `PPOTrainer`.
        logger: where to log; else one is made when the first rollouts come, on the Trackio run that AReaL's
            `StatsLogger` opened, or on one of its own.
        join_advantages: also fetch `advantages` and `prox_logp` from `compute_advantages`.
        **options: arguments of that `RolloutLogger`. Environment variables `ROLLOUT_TRACES_...` win over
            them, they over the config's `stats_logger.trackio`.
    """
    observer = attach_once("areal", trainer, logger, options, _ArealObserver)
    if (
        observer is not None
        and observer.hook.is_on
        and (join_advantages or ArealSettings.of(trainer).join_advantages)
    ):
        observer.join_advantages()


def install() -> None:
    """Makes every `PPOTrainer` from now on log, as `rollout-traces run` does.

    One that is built is attached to then, and, where a subclass leaves the constructor out, when it trains.
    """
    trainer = attach_when_built("areal", "areal.trainer.rl_trainer", "PPOTrainer", attach)
    if trainer is not None:
        wrap_once(trainer, "train", _attached_before)


def _attached_before(train: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        contained("areal")(attach)(self)
        return train(self, *args, **kwargs)

    return wrapped


def extend_config() -> None:
    """Adds our keys to AReaL's `TrackioConfig`, whose structured config refuses unknown ones."""
    if not has_hook_points(integration_named("areal"), "areal.api.cli_args"):
        return
    from areal.api.cli_args import TrackioConfig

    known = {item.name for item in dataclasses.fields(TrackioConfig)}
    added = {name: spec for name, spec in ADDED_FIELDS.items() if name not in known}
    if not added:
        return
    for item in dataclasses.fields(TrackioConfig):
        setattr(TrackioConfig, item.name, item)
    for name, (kind, default) in added.items():
        TrackioConfig.__annotations__[name] = kind
        setattr(TrackioConfig, name, default)
    for generated in ("__init__", "__repr__", "__eq__", "__match_args__"):
        if generated in vars(TrackioConfig):
            delattr(TrackioConfig, generated)
    dataclasses.dataclass(TrackioConfig)


@dataclass(frozen=True)
class _GivenPart:
    """A dict that was handed over: its place among those that are there, its rows, whether with tokens."""

    index: int
    n_rows: int
    has_tokens: bool


@dataclass(frozen=True)
class _Handed:
    """A batch that was handed over."""

    handle: RolloutHandle
    parts: Sequence[_GivenPart]


class _ArealObserver:
    """Sees a trainer's batches go by.

    Attributes:
        trainer: the `PPOTrainer`.
        hook: where to log.
        shares_run: AReaL's own Trackio run is open, and has the scalars.
        joins: `compute_advantages` is watched.
        handed: the latest training rollouts.
        open_steps: steps and splits whose rollouts were logged since AReaL's last commit.
        expected: the global step being worked on.
        earliest: the first step that the commit that is running can be logged at.
        template: the workflow's chat template and its arguments; None until one was seen.
    """

    def __init__(
        self, name: str, trainer: Any, logger: RolloutLogger | None, given: Mapping[str, Any]
    ) -> None:
        trackio = getattr(trainer.config.stats_logger, "trackio", None)
        from_config = {
            name: value
            for name, (_, default) in CONFIG_FIELDS.items()
            if (value := getattr(trackio, name, default)) not in (None, default)
        }
        self.trainer = trainer
        self.hook = HookLogger(name, logger, {**from_config, **given}, self._said_by_trainer)
        self.shares_run = trackio is not None and trackio.mode != "disabled"
        self.joins = False
        self.handed: _Handed | None = None
        self.open_steps: set[tuple[int, str]] = set()
        recovered = getattr(trainer, "recover_info", None)
        self.expected = 0 if recovered is None else int(recovered.last_step_info.next().global_step)
        self.earliest = 0
        self.template: dict[str, Any] | None = None

    def watch(self) -> None:
        """Wraps the methods of the trainer by which its rollouts, steps and scalars are seen."""
        actor, stats_logger = self.trainer.actor, self.trainer.stats_logger
        actor.prepare_batch = watched("areal", actor.prepare_batch, self.before_sampling, self.on_rollouts)
        evaluation = getattr(self.trainer, "eval_rollout", None)
        if evaluation is not None:
            evaluation.wait = watched("areal", evaluation.wait, after=self.on_evaluation)
        stats_logger.commit = watched("areal", stats_logger.commit, self.before_commit, self.on_commit)
        stats_logger.close = watched("areal", stats_logger.close, self.before_close)
        if hasattr(stats_logger, "log_rollout_traces"):
            stats_logger.log_rollout_traces = _logged_here
        contained("areal")(areal_followed.install)()

    def join_advantages(self) -> None:
        """Has `compute_advantages` watched from now on."""
        if not self.joins:
            self.joins = True
            actor = self.trainer.actor
            actor.compute_advantages = watched("areal", actor.compute_advantages, after=self.on_advantages)

    def before_sampling(self, given: Arguments) -> None:
        """Lets what is sampled be seen in flight, once the logger can be made: its template is the workflow's."""
        workflow = given.get("workflow")
        if self.template is None and isinstance(workflow, str) and not _is_imported(workflow):
            return
        self._learn_template(given)
        if self._writes():
            announce(self.hook.ready_for_live())

    def on_rollouts(self, given: Arguments, batch: Any) -> None:
        """Hands training rollouts over, with the template of the workflow that rendered their prompts."""
        contained("areal")(self._learn_template)(given)
        self.handed = None
        self.handed = self._hand_over(batch, "rollout")

    def on_evaluation(self, given: Arguments, batch: Any) -> None:
        """Hands evaluation rollouts over; AReaL itself throws them away."""
        self._hand_over(batch, "eval-rollout")

    def before_commit(self, given: Arguments) -> None:
        """Notes the first step that this commit can be logged at."""
        self.earliest = 0
        self.earliest = self._after_last()

    def before_close(self, given: Arguments) -> None:
        """Stores what is left before AReaL closes its Trackio run."""
        self.hook.close()

    def on_advantages(self, given: Arguments, batch: Any) -> None:
        """Joins what `compute_advantages` made: its frame is rolled left by one token."""
        if self.handed is None or not self._writes():
            return
        present = [trajectory for trajectory in batch if trajectory is not None]
        wanted = [part.index for part in self.handed.parts if part.has_tokens]
        keys = (*JOINED_KEYS, "loss_mask")
        fetched = resolve([only(present[index], keys) for index in wanted], max_bytes=None)
        made = dict(zip(wanted, fetched, strict=True))
        columns = {
            ours: [_joined(part, made, theirs) for part in self.handed.parts]
            for theirs, ours in JOINED_KEYS.items()
            if all(theirs in trajectory for trajectory in fetched)
        }
        self.handed.handle.join(**columns)

    def on_commit(self, given: Arguments, result: Any) -> None:
        """Goes to the next step, and logs the scalars where AReaL's own Trackio is switched off."""
        step = int(given["global_step"])
        self.expected = step + 1
        while self.open_steps:
            self.hook.close_step(*self.open_steps.pop())
        self._log_scalars(given["data"], max(step, self.earliest))

    def _hand_over(self, batch: Any, split: str) -> _Handed | None:
        """Hands a batch over; a dict that cannot be understood is warned about and does not take its siblings."""
        if not batch or not self._writes():
            return None
        call, parts = fresh_name(), []
        places = [place for place, trajectory in enumerate(batch) if trajectory is not None]
        batches: list[RolloutBatch] = []
        for index, (place, trajectory) in enumerate(zip(places, resolve(batch), strict=True)):
            part = contained("areal")(_followed_batch_of)(trajectory)
            if part is not None:
                part = dataclasses.replace(part, train_version=self._version_trained(split))
                batches.append(part.as_group(ListElement(call, place)))
                parts.append(_GivenPart(index, part.n_rows, "input_ids" in trajectory))
        if not batches:
            return None
        step = max(self.expected, self._after_last())  # as AReaL logs; rollouts come before their commit
        awaited = ("advantages",) if self.joins and split == "rollout" else ()
        handle = self.hook.log_rollouts(batches, step=step, split=split, await_join=awaited)
        self.open_steps.add((step, split))
        return _Handed(handle, parts)

    def _version_trained(self, split: str) -> int:
        """The policy version that rollouts are compared with; AReaL sets the new one before it evaluates."""
        return self.expected + (split == "eval-rollout")

    def _after_last(self) -> int:
        """The first step that AReaL has not logged at."""
        return int(getattr(self.trainer.stats_logger, "_last_commit_step", -1)) + 1

    def _learn_template(self, given: Arguments) -> None:
        if self.template is None:
            self.template = {}
            self.template = template_of(
                given.get("workflow"), given.get("workflow_kwargs") or {}, self.trainer.tokenizer
            )

    def _log_scalars(self, data: Any, log_step: int) -> None:
        if self.hook.logger is None or self.shares_run:
            return
        for index, item in enumerate([data] if isinstance(data, Mapping) else data):
            shown = {key: value for key, value in item.items() if not key.endswith("__count")}
            self.hook.logger.log_scalars(shown, step=log_step + index)

    def _writes(self) -> bool:
        """Only the data-parallel head writes, and of several only the first rank."""
        import torch.distributed as dist

        first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
        return first and self.trainer.actor.is_data_parallel_head()

    def _said_by_trainer(self) -> dict[str, Any]:
        stats = self.trainer.config.stats_logger
        trackio = getattr(stats, "trackio", None)
        defaults = {
            "project": getattr(trackio, "project", None) or stats.experiment_name,
            "name": getattr(trackio, "name", None) or stats.trial_name,
            "space_id": getattr(trackio, "space_id", None),
            "tokenizer": self.trainer.tokenizer,
            **(self.template or {}),
        }
        return {key: value for key, value in defaults.items() if value is not None}


def template_of(workflow: Any, workflow_kwargs: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The chat template and its arguments with which a workflow renders prompts, as `RolloutLogger` takes them.

    Args:
        workflow: an instance, a class, or the import path of either.
        workflow_kwargs: what a class is built with.
        tokenizer: the trainer's, whose template needs no saying.
    """
    if isinstance(workflow, str):
        module, _, name = workflow.rpartition(".")
        workflow = getattr(sys.modules.get(module), name, None)
    said = dict(workflow_kwargs)
    if isinstance(workflow, type):
        parameters = inspect.signature(workflow).parameters
        said = {
            name: item.default for name, item in parameters.items() if item.default is not item.empty
        } | said
    elif workflow is not None:
        said = {name: getattr(workflow, name) for name in TEMPLATE_NAMES if hasattr(workflow, name)} | said
    options: dict[str, Any] = {}
    kwargs = dict(said.get("chat_template_kwargs") or {})
    if said.get("enable_thinking") is not None:
        kwargs.setdefault("enable_thinking", said["enable_thinking"])
    if kwargs:
        options["chat_template_kwargs"] = kwargs
    template = getattr(said.get("tokenizer"), "chat_template", None)
    if isinstance(template, str) and template != getattr(tokenizer, "chat_template", None):
        options["chat_template"] = template
    return options


def _is_imported(path: str) -> bool:
    return path.rpartition(".")[0] in sys.modules


def _followed_batch_of(trajectory: Mapping[str, Any]) -> RolloutBatch:
    """A dict as a batch, with what was noted of its rows while they were sampled."""
    batch = batch_of(trajectory)
    noted = areal_followed.noted_of(trajectory) if "input_ids" in trajectory else []
    if not any(noted):
        return batch
    extras = batch.extras or [{}] * len(noted)
    return dataclasses.replace(
        batch,
        timings=[list(row.spans) if row else None for row in noted],
        extras=[
            {**(known or {}), **({"live": row.live} if row and row.live else {})}
            for known, row in zip(extras, noted, strict=True)
        ],
    )


def _logged_here(*args: Any, **kwargs: Any) -> None:
    """In place of an AReaL's own `log_rollout_traces`: the same rollouts are logged here, once."""


def _joined(part: _GivenPart, made: Mapping[int, Mapping[str, Any]], key: str) -> Any:
    """AReaL's left-rolled track back in the frame of `input_ids`, zero where nothing was trained."""
    import torch

    if not part.has_tokens:
        return torch.full((part.n_rows, 1), float("nan"))
    trajectory = made[part.index]
    return torch.roll(trajectory[key] * (trajectory["loss_mask"] > 0), 1, -1)
