"""`stats_logger:` of a trainer's config, in AReaL's shape."""

from __future__ import annotations

import logging
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from rollout_traces.errors import ConfigError
from rollout_traces.logger.arguments import check_choice
from rollout_traces.model.plain_values import plain
from rollout_traces.model.secrets import stored_config
from rollout_traces.settings.logger_options import LoggerOptions, option_names, read_environment, typed_value

log = logging.getLogger("rollout_traces")

SECTION = "stats_logger"

Config = TypeVar("Config")


@dataclass
class TrackioConfig(LoggerOptions):
    """Trackio, and the rollouts that become traces in it: all options of a `RolloutLogger`.

    Project and run name are the experiment's and the trial's when None.

    Attributes:
        mode: `disabled`: nothing is logged to Trackio; `local`: to the local store, whatever `space_id` and
            `server_url` say; `online`: to the Space or server where one is given, else to the local store.
    """

    mode: str = "disabled"

    def __post_init__(self) -> None:
        check_choice("trackio.mode", self.mode, ("disabled", "online", "local"))

    def logger_options(self, project: str, name: str) -> dict[str, Any]:
        """Arguments for a `RolloutLogger`.

        Args:
            project: of the experiment.
            name: of the trial.
        """
        options = {key: getattr(self, key) for key in option_names()}
        targets = {} if self.mode == "online" else {"space_id": None, "server_url": None}
        return {**options, **targets, "project": self.project or project, "name": self.name or name}


@dataclass
class WandBConfig:
    """Weights & Biases; needs `pip install wandb` unless disabled.

    Attributes:
        mode: `online`, `offline`, `shared` or `disabled`.
        entity: user or team.
        project: the experiment's name when None.
        name: the trial's name when None.
        job_type: as in `wandb.init`.
        group: as in `wandb.init`.
        notes: as in `wandb.init`.
        tags: as in `wandb.init`.
        id_suffix: ends the run's id, `<experiment>_<trial>_<suffix>`.
        wandb_base_url: server; `WANDB_BASE_URL` when None.
        wandb_api_key: for `online`; `WANDB_API_KEY` or an earlier login when None.
    """

    mode: str = "disabled"
    entity: str | None = None
    project: str | None = None
    name: str | None = None
    job_type: str | None = None
    group: str | None = None
    notes: str | None = None
    tags: list[str] | None = None
    id_suffix: str | None = "train"
    wandb_base_url: str | None = None
    wandb_api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_choice("wandb.mode", self.mode, ("online", "offline", "shared", "disabled"))


@dataclass
class SwanlabConfig:
    """SwanLab; needs `pip install swanlab` unless disabled.

    Attributes:
        mode: `cloud`, `local`, `offline` or `disabled`.
        project: the experiment's name when None.
        name: `<trial>_train` when None.
        logdir: where local and offline runs are kept; the experiment's log folder when None.
        api_key: for `cloud`; `SWANLAB_API_KEY` when None.
    """

    mode: str = "disabled"
    project: str | None = None
    name: str | None = None
    logdir: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_choice("swanlab.mode", self.mode, ("cloud", "local", "offline", "disabled"))


@dataclass
class TensorBoardConfig:
    """TensorBoard; needs `pip install tensorboardX` unless off.

    Attributes:
        path: folder of the event files; None: off.
    """

    path: str | None = None


@dataclass
class StatsLoggerConfig:
    """Destinations of a trainer's statistics.

    Attributes:
        experiment_name: the project where none is given.
        trial_name: the run where none is given.
        fileroot: folder under which trackers keep their files.
        wandb: Weights & Biases.
        swanlab: SwanLab.
        tensorboard: TensorBoard.
        trackio: Trackio and its traces.
        keys: which scalars are logged: `full`, `slim`, or patterns to keep (`loss/*`) and to leave out
            (`!timeperf/*`).
        every_n_steps: log every n-th commit, and the first; the others are averaged into the next.
        console: print each commit as a table.
        log_completions: rollouts printed per step and split; 0: none.
    """

    experiment_name: str = "rollouts"
    trial_name: str = "run"
    fileroot: str = "."
    wandb: WandBConfig = field(default_factory=WandBConfig)
    swanlab: SwanlabConfig = field(default_factory=SwanlabConfig)
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)
    trackio: TrackioConfig = field(default_factory=TrackioConfig)
    keys: Any = "full"
    every_n_steps: int = 1
    console: bool = True
    log_completions: int = 0

    def __post_init__(self) -> None:
        if self.every_n_steps < 1:
            raise ConfigError(f"every_n_steps: seen {self.every_n_steps}. Expected 1 or more.")

    @classmethod
    def create(cls, config: Any = None, environment: Mapping[str, str] | None = None) -> StatsLoggerConfig:
        """Reads a config from whatever a trainer has.

        Args:
            config: a `StatsLoggerConfig`; a mapping or a dataclass of its fields, or one that has them
                under `stats_logger`; a path to a YAML file; None for the defaults.
            environment: variables that override; the process's own when None.

        Returns:
            The config. The one given is not changed.

        Raises:
            ConfigError: something cannot be understood; the text names the field.
        """
        if isinstance(config, (str, Path)):
            config = _read_yaml(Path(config))
        values = _as_mapping(SECTION, config)
        if SECTION in values:
            values = _as_mapping(SECTION, values[SECTION])
        read = _build(cls, SECTION, values)
        overrides = read_environment(TrackioConfig, environment)
        if overrides:
            read.trackio = _build(TrackioConfig, "trackio", {**vars(read.trackio), **overrides})
        return read


def _build(kind: type[Config], where: str, values: Mapping[str, Any]) -> Config:
    """A config dataclass from a mapping; fields of the trainer's own that it does not have are passed over.

    One that looks like a field it has is warned about: a misspelt cap would otherwise mean no traces.
    """
    hints = typing.get_type_hints(kind)
    for key in values:
        meant = None if key in hints else _nearest(str(key), [name for name in hints if name not in values])
        if meant is not None:
            log.warning("%s.%s: no such setting, it is left out. Meant %s?", where, key, meant)
    known: dict[str, Any] = {}
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name not in values:
            continue
        value, hint = values[item.name], hints[item.name]
        name = f"{where}.{item.name}"
        if is_dataclass(hint):
            known[item.name] = _build(typing.cast(type, hint), name, _as_mapping(name, value))
        elif not isinstance(value, str) or value != "???":  # OmegaConf's mark of what was never set
            known[item.name] = typed_value(name, value, hint)
    return kind(**known)


def _nearest(key: str, names: Sequence[str]) -> str | None:
    return next(iter(get_close_matches(key, names, n=1, cutoff=0.85)), None)


def _as_mapping(name: str, config: Any) -> Mapping[str, Any]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return config
    if is_dataclass(config) and not isinstance(config, type):
        return {item.name: getattr(config, item.name) for item in fields(config)}
    if hasattr(config, "__dict__"):
        return vars(config)
    raise ConfigError(f"{name}: seen {type(config).__name__}. Expected a mapping or a dataclass.")


def _read_yaml(path: Path) -> Any:
    import yaml

    try:
        read = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML ({error}).") from error
    if not isinstance(read, Mapping):
        raise ConfigError(
            f"{path}: seen {type(read).__name__}. Expected a mapping, with a section {SECTION!r}."
        )
    return read


def plain_config(given: Any, read: StatsLoggerConfig) -> dict[str, Any]:
    """The trainer's config as plain values, to be stored with the run; its secrets as `***`."""
    whole = given if isinstance(given, Mapping) else None
    if whole is None and hasattr(given, "__dataclass_fields__") and not isinstance(given, type):
        whole = asdict(given)
    return stored_config(plain(whole if whole is not None else asdict(read)), read.trackio.not_secret)
