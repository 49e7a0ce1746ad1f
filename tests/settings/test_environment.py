"""One reader of `ROLLOUT_TRACES_...` serves the hooks of trainers and the config section."""

from __future__ import annotations

import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.settings.environment import as_environment, read_environment, variable_of
from rollout_traces.settings.logger_options import HookOptions
from rollout_traces.stats.config import StatsLoggerConfig, TrackioConfig

ENVIRONMENT = {
    "ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP": "8",
    "ROLLOUT_TRACES_PROJECT": "p",
    "ROLLOUT_TRACES_PRIVATE": "no",
    "ROLLOUT_TRACES_LEDGER": "false",
    "ROLLOUT_TRACES_MAX_DISK_GB": "2.5",
    "ROLLOUT_TRACES_CHAT_TEMPLATE_KWARGS": '{"enable_thinking": false}',
    "ROLLOUT_TRACES_SELECTION": "",
    "ROLLOUT_TRACES_KILLS": "3",
}


def test_a_field_of_any_type_reads_a_list_as_json():
    variable = {"ROLLOUT_TRACES_METRIC_KEYS": '["reward/mean", "!entropy/*"]'}
    assert StatsLoggerConfig.create(None, variable).trackio.metric_keys == ["reward/mean", "!entropy/*"]
    assert (
        StatsLoggerConfig.create(None, {"ROLLOUT_TRACES_METRIC_KEYS": "full"}).trackio.metric_keys == "full"
    )


def test_hooks_and_the_config_section_read_the_same():
    hook = read_environment(HookOptions, ENVIRONMENT)
    config = vars(StatsLoggerConfig.create(None, ENVIRONMENT).trackio)
    assert hook == {
        "max_rollout_traces_per_step": 8,
        "project": "p",
        "private": False,
        "ledger": False,
        "max_disk_gb": 2.5,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert {name: config[name] for name in hook} == hook
    assert config["selection"] == "portfolio"


def test_a_list_or_a_dict_is_json():
    read = StatsLoggerConfig.create(None, {"ROLLOUT_TRACES_REWARD_RANGE": "[0, 1]"}).trackio
    assert read.reward_range == [0, 1]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_rollout_traces_per_step", "many", "int"),
        ("private", "perhaps", "bool"),
        ("max_disk_gb", "much", "float"),
        ("chat_template_kwargs", "{'a': 1}", "dict as JSON"),
        ("chat_template_kwargs", "[1]", "dict"),
    ],
)
@pytest.mark.parametrize("settings", [HookOptions, TrackioConfig])
def test_what_cannot_be_understood_is_named_with_its_variable(settings, name, value, expected):
    with pytest.raises(ConfigError, match=rf"{variable_of(name)}: seen .*Expected (a )?{expected}"):
        read_environment(settings, {variable_of(name): value})


def test_what_is_written_for_a_child_process_is_read_again():
    given = {
        "max_rollout_traces_per_step": 4,
        "name": "run 1",
        "private": True,
        "chat_template_kwargs": {"a": [1, None]},
    }
    assert read_environment(HookOptions, as_environment({**given, "selection": None})) == given
