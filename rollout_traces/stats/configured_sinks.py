"""The trackers other than Trackio that a config asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollout_traces.stats.config import StatsLoggerConfig
from rollout_traces.stats.sinks import ScalarSink, SwanlabSink, TensorBoardSink, WandbSink


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
