"""Series over the steps of a run that was resumed."""

from __future__ import annotations

import pytest

import rollout_traces as rt
from rollout_traces.inspector.pages.figures import split_series
from rollout_traces.inspector.pages.rollouts import rollout, samples
from rollout_traces.inspector.pages.runs import several_runs
from rollout_traces.inspector.pages.shell import project
from rollout_traces.inspector.workspace import SplitView, Workspace
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.inspector.told import told

REWARD = "rollout/reward/mean"


def logged(steps_of_attempts):
    """A run whose attempts logged these steps; its figures."""
    batch = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2))
    logger = rt.RolloutLogger("p", "run", worker="thread")
    for number, steps in enumerate(steps_of_attempts):
        if number:
            logger.begin_attempt()
        for step in steps:
            logger.log_rollouts({**batch, "rewards": [number, number]}, step=step)
            logger.log_scalars({"train/loss": float(step)}, step=step)
        assert logger.flush(180)
    assert logger.finish(180)
    workspace = Workspace()
    [run] = workspace.store("p").runs()
    return split_series(SplitView(workspace, "p", run.id), [REWARD, "train/loss"])


@pytest.mark.usefixtures("trackio_dir")
class TestAResumedRun:
    def test_says_where_and_which_steps_only_the_attempt_before_has(self):
        found = logged([[1, 2, 3, 4, 5, 6], [3, 4]])
        assert found.resumed_at == [3]
        reward = found.series[REWARD]
        assert dict(zip(reward.steps, reward.values, strict=True)) == {
            1: 0,
            2: 0,
            3: 1,
            4: 1,
            5: 0,
            6: 0,
        }
        assert reward.superseded == [5, 6]
        assert found.series["train/loss"].superseded == [5, 6]

    def test_says_so_on_the_pages_of_projects_and_of_runs(self):
        logged([[1, 2, 3], [2]])
        workspace = Workspace()
        [run] = workspace.store("p").runs()
        assert told(project, workspace, {"project": "p"})["resumed_at"] == [2]
        asked = {"project": "p", "run": run.id, "others": [run.id], "split": "rollout"}
        found = told(several_runs, workspace, asked)
        assert [each["resumed_at"] for each in found["runs"]] == [[2], [2]]

    def test_that_went_on_where_it_stopped_has_none(self):
        found = logged([[1, 2], [3, 4]])
        assert found.resumed_at == [3]
        assert not found.series[REWARD].superseded


@pytest.mark.usefixtures("trackio_dir")
def test_rows_that_came_late_and_rows_of_a_superseded_attempt_are_marked():
    batch = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2))
    logger = rt.RolloutLogger(
        "p", "run", tiny_tokenizer(), worker="thread", selection="all", max_rollout_traces_per_step=9
    )
    for step in (1, 2, 3):
        logger.log_rollouts(batch, step=step)
        logger.close_step(step)
    logger.log_rollouts(batch, step=3)
    logger.begin_attempt()
    logger.log_rollouts(batch, step=2)
    assert logger.finish(180)
    workspace = Workspace()
    [run] = workspace.store("p").runs()
    marks = {}
    for step in (1, 2, 3):
        asked = {"project": "p", "run": run.id, "split": "rollout", "step": step}
        cards = [card for group in told(samples, workspace, asked)["groups"] for card in group["samples"]]
        marks[step] = sorted((card["late"], card["superseded"]) for card in cards)
        opened = told(rollout, workspace, {**asked, "id": cards[0]["id"]})
        assert opened["superseded"] == cards[0]["superseded"]
    assert marks == {
        1: [(False, False)] * 2,
        2: [(False, False)] * 2,
        3: [(False, True)] * 2 + [(True, True)] * 2,
    }
