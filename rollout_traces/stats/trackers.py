"""Other trackers that a step's scalars go to: SwanLab, TensorBoard, Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rollout_traces.stats.config import StatsLoggerConfig


class ScalarSink(Protocol):
    """A place where a step's scalars go. Trackio is one, reached through `RolloutLogger`."""

    name: str

    def log_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Writes finite floats at a step. Steps never go back."""
        ...

    def close(self) -> None:
        """Writes what is still buffered, and closes the run."""
        ...


class SwanlabSink:
    """Logs to one SwanLab run.

    Args:
        mode: `cloud`, `local` or `offline`.
        config: stored with the run.
        api_key: for `cloud`; else the key of an earlier login.
        **options: further arguments of `swanlab.init` (`project`, `experiment_name`, `logdir`).

    Raises:
        ModuleNotFoundError: it is not installed.
    """

    name = "swanlab"

    def __init__(
        self, mode: str, config: Mapping[str, Any] | None = None, api_key: str | None = None, **options: Any
    ) -> None:
        import swanlab

        if mode == "cloud" and api_key:
            swanlab.login(api_key)
        self._swanlab = swanlab
        swanlab.init(mode=mode, config=dict(config or {}), **options)

    def log_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Logs all keys as one row."""
        self._swanlab.log(dict(scalars), step=step)

    def close(self) -> None:
        """Finishes the run."""
        self._swanlab.finish()


class TensorBoardSink:
    """Writes event files to a folder.

    Args:
        path: the folder, made where it is missing.

    Raises:
        ModuleNotFoundError: it is not installed.
    """

    name = "tensorboard"

    def __init__(self, path: str | Path) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(logdir=str(path))

    def log_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Writes one scalar a key."""
        for key, value in scalars.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()


class WandbSink:
    """Logs to one Weights & Biases run, a new one or the one that is open in this process.

    Args:
        mode: `online`, `offline` or `shared`.
        config: stored with a run that is created here.
        **options: further arguments of `wandb.init` (`project`, `name`, `entity`, `group`, `tags`, `dir`).

    Raises:
        ModuleNotFoundError: it is not installed.
    """

    name = "wandb"

    def __init__(self, mode: str, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        import wandb

        self._owned = wandb.run is None
        arguments: dict[str, Any] = {"mode": mode, "config": dict(config or {}), **options}
        self._run: Any = wandb.run if wandb.run is not None else wandb.init(**arguments)

    def log_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Logs all keys as one row."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Finishes a run that was created here."""
        if self._owned:
            self._run.finish()


def sink_makers(
    config: StatsLoggerConfig, stored_config: Mapping[str, Any]
) -> list[Callable[[], ScalarSink]]:
    """One function a configured tracker, Trackio apart, that opens its sink.

    Args:
        config: where statistics go.
        stored_config: stored with each run.

    Returns:
        Functions to call; each raises what its tracker raises.
    """
    makers: list[Callable[[], ScalarSink]] = []
    if (path := config.tensorboard.path) is not None:
        makers.append(lambda: TensorBoardSink(path))
    if config.wandb.mode != "disabled":
        makers.append(lambda: _wandb(config, stored_config))
    if config.swanlab.mode != "disabled":
        makers.append(lambda: _swanlab(config, stored_config))
    return makers


def _wandb(config: StatsLoggerConfig, stored_config: Mapping[str, Any]) -> WandbSink:
    wandb, experiment, trial = config.wandb, config.experiment_name, config.trial_name
    for variable, value in (("WANDB_BASE_URL", wandb.wandb_base_url), ("WANDB_API_KEY", wandb.wandb_api_key)):
        if value:
            os.environ[variable] = value
    return WandbSink(
        wandb.mode,
        config=stored_config,
        project=wandb.project or experiment,
        name=wandb.name or trial,
        id=f"{experiment}_{trial}_{wandb.id_suffix}",
        resume="allow",
        entity=wandb.entity,
        job_type=wandb.job_type,
        group=wandb.group or f"{experiment}_{trial}",
        notes=wandb.notes,
        tags=wandb.tags,
        dir=_folder(config),
    )


def _swanlab(config: StatsLoggerConfig, stored_config: Mapping[str, Any]) -> SwanlabSink:
    swanlab = config.swanlab
    return SwanlabSink(
        swanlab.mode,
        config=stored_config,
        api_key=swanlab.api_key,
        project=swanlab.project or config.experiment_name,
        experiment_name=swanlab.name or f"{config.trial_name}_train",
        logdir=swanlab.logdir or _folder(config),
    )


def _folder(config: StatsLoggerConfig) -> str:
    folder = Path(config.fileroot) / "logs" / config.experiment_name / config.trial_name
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
