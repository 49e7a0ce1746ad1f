from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.inspector.pages.live import live
from rollout_traces.inspector.workspace import Workspace
from tests.inspector.told import told
from tests.trackio_home import use_trackio_home


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(["live"]), ["live", *arguments])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that finished while two rollouts were in flight, and one that says nothing."""
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, folder)
        log_runs()
        yield folder


def log_runs() -> None:
    logger = rt.RolloutLogger(project="p", name="run-a")
    first = logger.live("first", step=1, source="web")
    first.stage("tool", "browse", turns=2, tokens=30, words="I look \x1b[31m")
    logger.live("second", step=1)
    logger.finish()
    other = rt.RolloutLogger(project="p", name="run-b")
    other.log_scalars({"x": 1.0}, step=1)
    other.finish()


def test_lists_what_is_in_flight_with_stage_tokens_and_last_words(project: Path) -> None:
    said = asked("run-a").output
    assert "run-a: 0 in flight, 0 silent, 2 were running" in said
    row = next(line for line in said.splitlines() if "was tool browse" in line)
    assert all(part in row for part in ("web", "30", "I look \\x1b[31m"))
    assert "finished while 2 of its rollouts were running" in said


def test_says_in_json_what_the_page_is_told(project: Path) -> None:
    workspace = Workspace(folder=project)
    page = told(live, workspace, {"project": "p", "run": "run-a", "limit": 1})
    workspace.close()
    assert json.loads(asked("run-a", "--json", "-n", "1").output) == page
    assert (len(page["rollouts"]), page["n_left_out"]) == (1, 1)


def test_without_a_run_is_about_the_one_that_was_begun_last(project: Path) -> None:
    assert "run-a: 0 in flight" in asked().output


def test_of_a_run_that_says_nothing_says_how_it_would(project: Path) -> None:
    assert "logger.live" in asked("run-b").output


def test_a_limit_that_is_none_is_refused(project: Path) -> None:
    assert asked("-n", "0").exit_code == 1


def test_a_run_that_is_not_there_is_said(project: Path) -> None:
    assert "no run 'nobody'" in str(asked("nobody").exception)
