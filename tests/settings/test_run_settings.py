"""What a run declares about itself, and how it is stored with the run."""

from __future__ import annotations

import pytest

import rollout_traces as rt
from rollout_traces.errors import ConfigError
from rollout_traces.model.names import check_project, check_run, file_stem
from rollout_traces.settings.run_settings import CONFIG_KEY, Range, RunSettings


def test_ranges_are_pairs_or_mappings():
    settings = RunSettings.create(
        reward_range=(0, 1), metric_ranges={"len": {"min": 0, "max": 9, "invert": True}}
    )
    assert settings.reward_range == Range(0.0, 1.0)
    assert settings.metric_ranges == {"len": Range(0.0, 9.0, invert=True)}
    assert RunSettings.create(reward_range=Range(0, 1, invert=True)).reward_range == Range(0, 1, invert=True)
    assert RunSettings.create(reward_range=None).reward_range is None


@pytest.mark.parametrize(
    "value",
    [(1, 0), (0, float("inf")), (0,), (0, 1, 2), "01", {"min": 0}, {"low": 0, "high": 1}, (None, 1), 3],
)
def test_a_range_that_cannot_be_understood_is_named(value):
    with pytest.raises(ConfigError, match="range"):
        RunSettings.create(reward_range=value)


def test_an_unknown_setting_is_named():
    with pytest.raises(ConfigError, match="clip_hi"):
        RunSettings.create(clip_hi=0.2)


def test_what_was_declared_comes_back_from_the_runs_config():
    settings = RunSettings.create(
        reward_range=(-1, 1), metric_ranges={"a": (0, 2)}, clip_low=0.2, clip_high=0.28, tools=["search"]
    )
    stored = {"lr": 1e-6, CONFIG_KEY: settings.as_config()}
    assert RunSettings.from_config(stored) == settings


@pytest.mark.parametrize("config", [None, {}, {CONFIG_KEY: None}, {CONFIG_KEY: {"of a later version": 1}}])
def test_a_config_without_them_gives_the_defaults(config):
    assert RunSettings.from_config(config) == RunSettings()


class TestDeclared:
    def test_arguments_stand_over_the_config(self):
        config = {CONFIG_KEY: {"clip_low": 0.2, "clip_high": 0.2, "reward_range": [0, 1]}}
        settings = RunSettings.declared(config, reward_range=(0, 5), metric_ranges=None)
        assert settings == RunSettings(reward_range=Range(0, 5), clip_low=0.2, clip_high=0.2)

    def test_a_config_without_settings_declares_nothing(self):
        assert RunSettings.declared(None) == RunSettings.declared({"lr": 1}) == RunSettings()

    @pytest.mark.parametrize("declared", [3, {"clip_hi": 0.2}])
    def test_what_cannot_be_understood_is_named(self, declared):
        with pytest.raises(ConfigError):
            RunSettings.declared({CONFIG_KEY: declared})


@pytest.mark.parametrize("project", ["x" * 300, "ä" * 150, 7, None, b"p", "", "broken \ud800"])
def test_a_project_that_cannot_be_kept_is_refused(project, trackio_dir):
    with pytest.raises(ConfigError, match="project: seen"):
        rt.RolloutLogger(project)


@pytest.mark.parametrize("name", ["x" * 300, 7, "broken \ud800"])
def test_so_is_a_run(name, trackio_dir):
    with pytest.raises(ConfigError, match="name: seen"):
        rt.RolloutLogger("p", name)


def test_projects_that_share_a_database_are_warned_about(caplog):
    for project in ("a/b", "a.b"):
        assert file_stem(project) == "ab"
        check_project(project)
        assert f"Trackio keeps {project!r} under 'ab'" in caplog.text


def test_plain_names_pass_without_a_word(caplog):
    for project in ("gsm8k", "my_project-2", "プロジェクト", "x" * 200):
        check_project(project)
    check_run(None)
    check_run("run 1 / lr=1e-6")
    assert caplog.text == ""
