"""The interfaces of an adapter and of an integration, and the list of integrations.

An adapter turns what a trainer calls a batch into canonical ones; it is a plain function in the trainer's
file. An integration says where that function is hooked in, by name, so that it can be looked for without
being installed.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import metadata
from typing import Any, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from rollout_traces.errors import BatchError, text_of
from rollout_traces.integrations import run_report
from rollout_traces.model.text import words

log = logging.getLogger("rollout_traces")
T = TypeVar("T")


@dataclass(frozen=True)
class Integration:
    """A trainer that can be switched on without a fork.

    Attributes:
        name: short name, that of its file.
        distribution: the package to look for.
        supported: versions it was tested with, as a version specifier.
        hook_points: module -> attribute paths of everything in it that it wraps.
        trainer_points: attribute paths that it needs on a built trainer.
    """

    name: str
    distribution: str
    supported: str
    hook_points: Mapping[str, tuple[str, ...]]
    trainer_points: tuple[str, ...]

    @property
    def version(self) -> str | None:
        """The installed version, None when there is none."""
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return None

    @property
    def is_supported(self) -> bool:
        """True when the installed version is one it was tested with."""
        try:
            return SpecifierSet(self.supported).contains(Version(self.version or ""), prereleases=True)
        except InvalidVersion:
            return False

    def missing_hook_points(self) -> list[str]:
        """Lists what the installed version does not have, or why it cannot be imported; imports the trainer."""
        missing = []
        for module in self.hook_points:
            try:
                importlib.import_module(module)
            except Exception as error:  # noqa: BLE001  whatever a trainer's import raises is the answer
                missing.append(f"{module} cannot be imported ({type(error).__name__}: {error})")
            else:
                missing += [f"{point} is not there" for point in self.moved(module)]
        return missing

    def moved(self, module: str) -> list[str]:
        """Lists the hook points that a module no longer has."""
        try:
            owner = importlib.import_module(module)
        except ImportError:
            owner = None
        return [f"{module}:{path}" for path in self.hook_points[module] if not _has(owner, path)]

    def __str__(self) -> str:
        return f"{self.distribution} {self.version or '(not installed)'}"


INTEGRATIONS: tuple[Integration, ...] = (
    Integration(
        name="areal",
        distribution="areal",
        supported=">=1.0.4,<2.1",
        hook_points={
            "areal.trainer.rl_trainer": ("PPOTrainer.__init__", "PPOTrainer.train"),
            "areal.utils.stats_logger": ("StatsLogger.commit", "StatsLogger.close"),
            "areal.api.cli_args": ("TrackioConfig",),
            "areal.infra.rpc.rtensor": words("RTensor.localize clear_fetch_buffer flatten_shard_ids"),
        },
        trainer_points=words(
            "config.stats_logger tokenizer actor.prepare_batch actor.compute_advantages "
            "actor.is_data_parallel_head stats_logger.commit stats_logger.close"
        ),
    ),
    Integration(
        name="trl",
        distribution="trl",
        supported=">=0.24,<2",
        hook_points={
            "trl.trainer.grpo_trainer": (
                "GRPOTrainer._calculate_rewards",
                "GRPOTrainer._generate_and_score_completions",
            ),
            "trl.trainer.rloo_trainer": (
                "RLOOTrainer._calculate_rewards",
                "RLOOTrainer._generate_and_score_completions",
            ),
        },
        trainer_points=words(
            "_calculate_rewards _generate_and_score_completions reward_func_names processing_class "
            "accelerator.process_index callback_handler.callbacks reward_weights num_generations"
        ),
    ),
    Integration(
        name="verl",
        distribution="verl",
        supported=">=0.9.1,<0.10",
        hook_points={
            "verl.trainer.ppo.ray_trainer": words(
                "RayPPOTrainer.__init__ RayPPOTrainer.fit RayPPOTrainer._validate RayPPOTrainer._log_rollout_data extract_reward"
            ),
        },
        trainer_points=("fit", "_validate", "_log_rollout_data", "config.trainer", "tokenizer"),
    ),
    Integration(
        name="verl_v1",
        distribution="verl",
        supported=">=0.9.1,<0.10",
        hook_points={
            "verl.trainer.ppo.v1.trainer_base": words(
                "PPOTrainer.__init__ PPOTrainer.fit PPOTrainer._validate PPOTrainer._log_rollout_data tq.kv_clear"
            ),
        },
        trainer_points=("fit", "_validate", "_log_rollout_data", "config.trainer"),
    ),
    Integration(
        name="agent_lightning",
        distribution="agentlightning",
        supported=">=0.3,<0.4",
        hook_points={
            "agentlightning.verl.trainer": ("AgentLightningTrainer._train_step", "compute_data_metrics"),
            "agentlightning.verl.daemon": ("AgentModeDaemon.get_test_metrics",),
        },
        trainer_points=("fit", "_validate", "_train_step", "config.trainer", "tokenizer"),
    ),
    Integration(
        name="trl_async",
        distribution="trl",
        supported=">=1.16,<2",
        hook_points={
            "trl.experimental.async_grpo.async_grpo_trainer": words(
                "AsyncGRPOTrainer.get_train_dataloader AsyncGRPOTrainer.training_step RolloutQueueDataset.__iter__ DataCollatorForRollout.torch_call"
            ),
        },
        trainer_points=words(
            "get_train_dataloader training_step accelerator.prepare callback_handler.callbacks model_version"
        ),
    ),
)
"""The trainers that are switched on by hooks; the others are adapters that a loop calls itself."""

failures: Counter[str] = Counter()
"""Times a hook failed, by integration and error, its numbers left out; training went on each time."""
_NUMBER = re.compile(r"\d+")
_said: set[str] = set()
_in_hook: ContextVar[bool] = ContextVar("rollout_traces_in_hook", default=False)


def contained(name: str) -> Callable[[Callable[..., T]], Callable[..., T | None]]:
    """Keeps a hook's errors out of training: counted, and warned about once a kind with the trainer's version.

    What it wraps runs on the training thread: its seconds are added to the integration's report.

    Args:
        name: the integration's name.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T | None]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> T | None:
            outermost, start = not _in_hook.get(), time.perf_counter()
            token = _in_hook.set(True)
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  a hook never raises into training; counted and warned
                kind = f"{name}: {type(error).__name__}: {_NUMBER.sub('#', text_of(error))}"
                failures[kind] += 1
                _note_problem(name, f"{type(error).__name__}: {text_of(error)}")
                if failures[kind] == 1:
                    log.warning(
                        "rollout-traces with %s: %s: %s No traces of what this concerns; training goes on.",
                        _described(name),
                        type(error).__name__,
                        text_of(error).rstrip(". ") + ".",
                    )
                return None
            finally:
                _in_hook.reset(token)
                if outermost:
                    run_report.report_of(name).hook_seconds += time.perf_counter() - start

        return guarded

    return decorate


def attach_when_built(name: str, module: str, trainer: str, attach: Callable[[Any], Any]) -> Any | None:
    """Makes every trainer of a class that is built from now on be attached to; a class is wrapped once.

    Args:
        name: the integration's name.
        module: the trainer's module, which is imported already.
        trainer: the name of its class there, whose constructor is wrapped.
        attach: called with the built trainer; its errors stay out of training.

    Returns:
        The class; None, and a warning, where the module lacks what a hook needs.
    """
    if not has_hook_points(integration_named(name), module):
        return None
    trainer_class = getattr(sys.modules[module], trainer)

    def around(build: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
            build(self, *args, **kwargs)
            contained(name)(attach)(self)

        return wrapped

    wrap_once(trainer_class, "__init__", around)
    return trainer_class


def watched(
    name: str,
    function: Callable[..., Any],
    before: Callable[[Arguments], Any] | None = None,
    after: Callable[[Arguments, Any], Any] | None = None,
) -> Callable[..., Any]:
    """A trainer's function whose calls are looked at; what the looks raise stays out of training, results are untouched.

    Args:
        name: the integration's name.
        before: is given the arguments of a call before it.
        after: is given them behind it, and what the call returned.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = arguments_of(function, args, kwargs)
        if before is not None:
            contained(name)(before)(given)
        result = function(*args, **kwargs)
        if after is not None:
            contained(name)(after)(given, result)
        return result

    return wrapped


def inside(
    function: Callable[..., Any], context: Callable[[], AbstractContextManager[Any]]
) -> Callable[..., Any]:
    """A function that runs inside a context; one that is awaited, where it is."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with context():
                return await function(*args, **kwargs)

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return called


def wrap_once(owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts a function around one of a trainer's; does nothing where that was done before.

    Args:
        owner: the module, class or object that has the function.
        name: its name there.
        around: makes of the trainer's function the one that takes its place.
    """
    original = getattr(owner, name)
    if not getattr(original, "_rollout_traces", False):
        wrapped: Any = functools.wraps(original)(around(original))
        wrapped._rollout_traces = True
        setattr(owner, name, wrapped)


def arguments_of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """A call's arguments by the names that the function gives them; raises nothing."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [
        item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
    ]
    return Arguments(
        getattr(function, "__qualname__", repr(function)), {**dict(zip(names, args, strict=False)), **kwargs}
    )


@dataclass(frozen=True)
class Arguments:
    """A call's arguments.

    Attributes:
        function: what was called.
        values: name -> value.
    """

    function: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            raise BatchError(
                f"{self.function}: no argument {name!r}. Seen {', '.join(map(str, self.values)) or 'none'}."
            )
        return self.values[name]

    def get(self, name: str) -> Any:
        """The argument, None where it is left out."""
        return self.values.get(name)


def check_keys(what: str, given: Any, keys: Sequence[str]) -> None:
    """Refuses a trainer's batch that lacks a key, or has None under it.

    Args:
        what: the batch, as the text calls it.
        given: a mapping, or what has `keys` and `get` as one does.

    Raises:
        BatchError: a key is missing.
    """
    for key in keys:
        if given.get(key) is None:
            raise BatchError(f"{what} {key!r} is missing. Seen {', '.join(sorted(map(str, given.keys())))}.")


def warn_if_unsupported(integration: Integration) -> None:
    """Says once that a version was not tested."""
    if not integration.is_supported and _first_time(f"{integration} unsupported"):
        log.warning(
            "rollout-traces: %s is not among the versions tested (%s). If no rollouts appear, "
            "`rollout-traces doctor` names the hook point that moved.",
            integration,
            integration.supported,
        )


def binds(integration: Integration, trainer: Any) -> bool:
    """Tells whether a built trainer has all that a hook needs; warns once, with the version, of what it lacks.

    Nothing may be replaced on a trainer before this says yes.
    """
    lacking = [path for path in integration.trainer_points if not _has(trainer, path)]
    _say_lacking(integration, type(trainer).__name__, lacking)
    return not lacking


def has_hook_points(integration: Integration, module: str) -> bool:
    """Tells whether an imported module of the trainer still has its hook points; warns once, with the version, if not."""
    moved = integration.moved(module)
    _say_lacking(integration, "", moved)
    return not moved


def _say_lacking(integration: Integration, trainer: str, lacking: Sequence[str]) -> None:
    """Says once what a trainer's class, or its package, does not have."""
    if not lacking:
        return
    listed = " and no ".join(lacking)
    _note_problem(integration.name, f"{trainer or integration} has no {listed}.")
    if _first_time(f"{integration} {listed}"):
        log.warning(
            "rollout-traces: %s%s has no %s, where rollouts would be seen. No rollouts are logged; training goes on. "
            "Tested with %s.",
            integration,
            trainer and f": {trainer}",
            listed,
            integration.supported,
        )


def integration_named(name: str) -> Integration:
    """The integration of a name.

    Raises:
        KeyError: there is none; the text lists those there are.
    """
    for integration in INTEGRATIONS:
        if integration.name == name:
            return integration
    raise KeyError(f"no integration {name!r}. There are {', '.join(item.name for item in INTEGRATIONS)}.")


def _note_problem(integration: str, problem: str) -> None:
    """Notes why no rollouts were logged, for the report at the end of `rollout-traces run`."""
    report = run_report.report_of(integration)
    if not report.problem:
        report.problem = problem
        run_report.write()


def _has(owner: Any, path: str) -> bool:
    try:
        for part in path.split("."):
            owner = getattr(owner, part)
    except AttributeError:
        return False
    return True


def _described(name: str) -> str:
    return next((str(item) for item in INTEGRATIONS if item.name == name), name)


def _first_time(saying: str) -> bool:
    new = saying not in _said
    _said.add(saying)
    return new
