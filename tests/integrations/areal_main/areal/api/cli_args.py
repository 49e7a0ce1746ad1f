"""Where main keeps its config dataclasses; as upstream's structured config, keys it does not know are refused."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace


@dataclass
class TrackioConfig:
    mode: str = "disabled"
    project: str | None = None
    name: str | None = None
    space_id: str | None = None

    def __post_init__(self):
        if self.mode not in {"disabled", "online", "local"}:
            raise ValueError(self.mode)


@dataclass
class StatsLoggerConfig:
    experiment_name: str = "e"
    trial_name: str = "t"
    fileroot: str = "."
    trackio: TrackioConfig = field(default_factory=TrackioConfig)


@dataclass
class PPOConfig:
    stats_logger: StatsLoggerConfig = field(default_factory=StatsLoggerConfig)
    gconfig: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(n_samples=2))
    eval_gconfig: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(n_samples=1))
    tokenizer_path: str = ""
    total_train_epochs: int = 1
    dynamic_bs: bool = False


def load_expr_config(argv: list[str], config_cls: type):
    """A config from a YAML file's `tokenizer_path` and `stats_logger.trackio`."""
    import yaml

    with Path(argv[argv.index("--config") + 1]).open() as file:
        read = yaml.safe_load(file)
    values = read["stats_logger"]["trackio"]
    known = {item.name for item in fields(TrackioConfig)}
    if unknown := set(values) - known:
        raise KeyError(f"Key '{min(unknown)}' not in 'TrackioConfig'")
    config = config_cls(tokenizer_path=read["tokenizer_path"])
    config.stats_logger.trackio = TrackioConfig(**values)
    return config, argv
