"""A name that Trackio cannot keep is refused in one sentence; one that it would merge with others is warned about."""

from __future__ import annotations

import pytest

import rollout_traces as rt
from rollout_traces.errors import ConfigError
from rollout_traces.settings.names import check_project, check_run, file_stem


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
