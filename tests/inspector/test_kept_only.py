"""Health and the Run page of a run whose trainer logged its rollouts by itself: over what is there, and they say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_traces.inspector.pages.health import FLAGGED, examples, health
from rollout_traces.inspector.pages.run import run_report
from rollout_traces.inspector.pages.shell import catalog
from rollout_traces.inspector.workspace import Workspace
from tests.inspector.told import told
from tests.sources.trl_run import PROJECT, log_run

PLACE = {"project": PROJECT, "run": "r1", "split": "rollout"}


@pytest.fixture
def workspace(trackio_dir: Path) -> Iterator[Workspace]:
    log_run()
    opened = Workspace(folder=trackio_dir)
    opened.store(PROJECT).refresh()
    yield opened
    opened.close()


def test_health_is_over_the_kept_rollouts_and_says_so(workspace: Workspace) -> None:
    answer = told(health, workspace, PLACE)
    assert (answer["steps"], answer["kept_only"]) == ([1, 3], True)
    assert (answer["n_traced"], answer["n_rows"]) == (8, 0)
    measures = {measure["key"]: measure["values"] for measure in answer["measures"]}
    store = workspace.store(PROJECT)
    for step, mean in zip(answer["steps"], measures["reward/mean"], strict=True):
        rewards = [row["reward"] for row in store.query(split="rollout", steps=(step, step)).rows]
        assert mean == pytest.approx(sum(rewards) / len(rewards))
    assert not {"discarded/share", FLAGGED} & set(measures)


def test_the_examples_of_a_point_are_kept_rollouts_alone(workspace: Workspace) -> None:
    answer = told(examples, workspace, {**PLACE, "step": 1, "what": "measure", "name": "reward/mean"})
    assert answer["n_matched"] == len(answer["samples"]) == 4
    assert (answer["n_rows"], answer["population"]["n_rows"]) == (None, None)


def test_the_run_page_reads_them_too(workspace: Workspace) -> None:
    report = told(run_report, workspace, PLACE)
    assert (report["kept_only"], report["n_rows"], report["n_steps"]) == (True, 8, 2)
    assert {"Reward, mean", "Component “brief”"} <= {metric["title"] for metric in report["metrics"]}


def test_every_page_says_that_how_many_there_were_is_unknown(workspace: Workspace) -> None:
    [run] = told(catalog, workspace, {"project": PROJECT})["runs"]
    assert run["note"] == "Kept rollouts only: how many there were is unknown."
