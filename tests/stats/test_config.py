"""The `stats_logger` section, from whatever a trainer has."""

from __future__ import annotations

import dataclasses
import importlib
import types

import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.stats.config import StatsLoggerConfig, TrackioConfig, plain_config

NOTHING: dict[str, str] = {}


def read(config, environment=NOTHING) -> StatsLoggerConfig:
    return StatsLoggerConfig.create(config, environment)


def test_the_defaults_log_nowhere():
    config = read(None)
    assert config.trackio == TrackioConfig() and config.trackio.mode == "disabled"
    assert (config.wandb.mode, config.swanlab.mode, config.tensorboard.path) == ("disabled", "disabled", None)
    assert config.trackio.max_rollout_traces_per_step == 0 and config.trackio.private is True


def test_a_field_that_looks_like_another_is_warned_about(caplog):
    read({"trackio": {"max_rollout_trace_per_step": 3, "trainers_own": 1}, "consol": True, "seed": 1})
    assert [record.getMessage() for record in caplog.records] == [
        "stats_logger.consol: no such setting, it is left out. Meant console?",
        "stats_logger.trackio.max_rollout_trace_per_step: no such setting, it is left out. Meant "
        "max_rollout_traces_per_step?",
    ]


def test_a_mapping_a_section_and_a_dataclass_say_the_same():
    section = {"experiment_name": "gsm8k", "trackio": {"mode": "local", "max_rollout_traces_per_step": 32}}

    @dataclasses.dataclass
    class Trackio:
        mode: str = "local"
        max_rollout_traces_per_step: int = 32

    @dataclasses.dataclass
    class Stats:
        experiment_name: str = "gsm8k"
        trackio: Trackio = dataclasses.field(default_factory=Trackio)

    @dataclasses.dataclass
    class Whole:
        stats_logger: Stats = dataclasses.field(default_factory=Stats)
        lr: float = 0.1

    assert read(section) == read({"stats_logger": section, "lr": 0.1}) == read(Stats()) == read(Whole())
    assert read(section) == read(types.SimpleNamespace(stats_logger=types.SimpleNamespace(**section)))
    with pytest.raises(ConfigError, match="stats_logger: seen int"):
        read(7)


def test_a_yaml_file_with_a_section(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1\nstats_logger:\n  trackio:\n    mode: online\n    space_id: me/space\n")
    assert read(path).trackio.space_id == "me/space"


@pytest.mark.trainers
def test_upstreams_own_dataclass_without_our_fields_is_enough():
    areal = importlib.import_module("areal.api.cli_args")
    theirs = areal.StatsLoggerConfig(experiment_name="e", trial_name="t", fileroot="/nowhere")
    theirs.trackio.mode = "local"
    config = read(theirs, {"ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP": "32"})
    assert config.trackio.mode == "local" and config.trackio.max_rollout_traces_per_step == 32


def test_environment_variables_override():
    environment = {
        "ROLLOUT_TRACES_MODE": "local",
        "ROLLOUT_TRACES_PROJECT": "p",
        "ROLLOUT_TRACES_PRIVATE": "false",
        "ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP": "8",
        "ROLLOUT_TRACES_SPACE_ID": "none",
        "ROLLOUT_TRACES_SELECTION": "",
    }
    config = read(
        {"trackio": {"space_id": "me/space", "selection": "first", "name": "kept"}}, environment
    ).trackio
    assert (config.mode, config.project, config.private) == ("local", "p", False)
    assert (config.max_rollout_traces_per_step, config.space_id) == (8, None)
    assert (config.selection, config.name) == ("first", "kept")


def test_a_number_may_be_written_as_text():
    assert read({"trackio": {"max_disk_gb": "2.5"}}).trackio.max_disk_gb == 2.5
    assert read({"trackio": {"max_disk_gb": 2}}).trackio.max_disk_gb == 2.0


def test_the_config_given_is_not_changed():
    given = StatsLoggerConfig()
    read(given, {"ROLLOUT_TRACES_MODE": "local"})
    assert given.trackio.mode == "disabled"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"trackio": {"mode": "on"}}, r"trackio\.mode.*'on'.*disabled, online, local"),
        ({"trackio": {"max_rollout_traces_per_step": "many"}}, r"max_rollout_traces_per_step.*'many'.*int"),
        ({"trackio": {"max_rollout_traces_per_step": True}}, r"max_rollout_traces_per_step.*True.*int"),
        ({"trackio": {"private": "perhaps"}}, r"private.*'perhaps'.*bool"),
        ({"trackio": {"max_disk_gb": "much"}}, r"max_disk_gb.*'much'.*float or nothing"),
        ({"trackio": 3}, r"stats_logger\.trackio.*int"),
        ({"every_n_steps": 0}, r"every_n_steps.*0"),
        ({"wandb": {"mode": "loud"}}, r"wandb\.mode.*'loud'"),
        ({"swanlab": {"mode": "loud"}}, r"swanlab\.mode.*'loud'"),
        ("/no/such/file.yaml", r"file\.yaml.*cannot be read"),
    ],
)
def test_what_cannot_be_understood_is_named(config, named):
    with pytest.raises(ConfigError, match=named):
        read(config)


def test_what_is_stored_with_a_run_holds_no_secret():
    given = {"lr": 1.0, "wandb": {"wandb_api_key": "x"}, "trackio": {"write_token": "y" * 20, "project": "p"}}
    stored = {"lr": 1.0, "wandb": {"wandb_api_key": "***"}, "trackio": {"write_token": "***", "project": "p"}}
    assert plain_config(given, StatsLoggerConfig()) == stored
