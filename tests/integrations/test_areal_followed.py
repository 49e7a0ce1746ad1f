"""AReaL's episodes as they are followed: by a workflow and an engine of the kinds that AReaL has."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from rollout_traces.integrations import areal_followed, base
from rollout_traces.integrations.areal_followed import MOST_ALIKE, noted_of
from tests.integrations.test_trl import finished


def row_of(*ids: int) -> dict[str, torch.Tensor]:
    """A trajectory of one row, as AReaL's workflows give it: [1, T]."""
    return {
        "input_ids": torch.tensor([ids]),
        "logprobs": torch.zeros(1, len(ids)),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.int64),
    }


class Workflow:
    """Samples one turn of the ids that it is given."""

    async def arun_episode(self, engine, data):
        response = await engine.agenerate(SimpleNamespace(rid="a", tokenizer=None))
        return row_of(*response.output_tokens)


class Engine:
    rid_to_address = {"a": "10.0.0.1:80"}

    async def agenerate(self, request):
        await asyncio.sleep(0)
        return SimpleNamespace(output_tokens=[7, 8], output_versions=[3, 3])


def episode(workflow=None, data=None):
    followed = areal_followed._Followed(workflow or Workflow(), {"split": "rollout", "group": "1"})
    return finished(followed.arun_episode(Engine(), {"prompt": "What?"} if data is None else data))


@pytest.fixture(autouse=True)
def nothing_waits(monkeypatch):
    monkeypatch.setattr(areal_followed, "_waiting", type(areal_followed._waiting)())


class TestEpisodes:
    def test_its_spans_wait_for_the_row_that_it_gave_once(self):
        result = episode()
        (noted,) = noted_of(result)
        assert noted is not None
        (span,) = noted.spans
        assert (span["kind"], span["engine"], span["version"]) == ("generate", "10.0.0.1:80", 3)
        assert noted_of(result) == [None]
        assert not areal_followed._waiting, "nothing is left of a row that was found"

    @pytest.mark.parametrize("data", [7, [{"role": "user"}], {"prompt": None}, {"question": ["What?"]}])
    def test_data_of_another_form_is_followed_without_a_prompt(self, data):
        assert noted_of(episode(data=data)) != [None]

    def test_where_following_fails_the_episode_runs_as_it_would_and_that_is_counted(self, monkeypatch):
        def fails(*args, **known):
            raise OSError("no room")

        monkeypatch.setattr(areal_followed, "begin", fails)
        before = base.failures["areal: OSError: no room"]
        assert episode()["input_ids"].tolist() == [[7, 8]]
        assert base.failures["areal: OSError: no room"] == before + 1

    def test_one_that_raises_raises(self):
        class Fails:
            async def arun_episode(self, engine, data):
                raise KeyError("answer")

        with pytest.raises(KeyError, match="answer"):
            episode(Fails())
        assert not areal_followed._waiting


class TestWaiting:
    def test_rows_that_are_alike_are_kept_up_to_a_bound(self):
        for _ in range(MOST_ALIKE + 5):
            result = episode()
        found = [noted_of(result)[0] for _ in range(MOST_ALIKE + 5)]
        assert [noted is None for noted in found] == [False] * MOST_ALIKE + [True] * 5

    def test_the_oldest_rows_go_first(self, monkeypatch):
        monkeypatch.setattr(areal_followed, "MOST_WAITING", 2)

        class Fixed:
            def __init__(self, token):
                self.token = token

            async def arun_episode(self, engine, data):
                return row_of(self.token)

        results = [episode(Fixed(token)) for token in range(4)]
        assert [noted_of(result)[0] is None for result in results] == [True, True, False, False]


@dataclasses.dataclass
class Task:
    task_id: int
    workflow: object
    is_eval: bool = False


class GroupOf:
    """AReaL's group of a workflow."""

    def __init__(self, workflow, group_size):
        self.workflow, self.group_size = workflow, group_size


@pytest.fixture
def executor(monkeypatch):
    """The module of AReaL's executor, and the one that rewards come from, as they are named there."""
    module, api = ModuleType(areal_followed.EXECUTOR), ModuleType("areal.api")
    setattr(module, areal_followed.TASK, Task)
    api.AsyncRewardWrapper = type("AsyncRewardWrapper", (), {"__call__": lambda self: None})
    for name, each in (("areal", ModuleType("areal")), ("areal.api", api), (areal_followed.EXECUTOR, module)):
        monkeypatch.setitem(sys.modules, name, each)
    return module


class TestInstalling:
    def test_each_task_of_the_executor_has_its_workflow_followed(self, executor):
        areal_followed.install()
        workflow = Workflow()
        task = getattr(executor, areal_followed.TASK)(7, workflow, is_eval=True)
        assert isinstance(task, Task) and task.task_id == 7 and task.is_eval
        assert isinstance(task.workflow, areal_followed._Followed)
        assert task.workflow._workflow is workflow
        assert task.workflow._known == {"split": "eval-rollout", "group": "7"}
        assert getattr(executor, areal_followed.TASK)(8, workflow).workflow._known["split"] == "rollout"

    def test_of_a_group_the_workflow_inside_is_followed_and_the_trainers_stays_as_it_is(self, executor):
        areal_followed.install()
        group = GroupOf(Workflow(), 4)
        task = getattr(executor, areal_followed.TASK)(7, group)
        assert isinstance(task.workflow, GroupOf) and task.workflow.group_size == 4
        assert isinstance(task.workflow.workflow, areal_followed._Followed)
        assert isinstance(group.workflow, Workflow)

    def test_twice_follows_once(self, executor):
        areal_followed.install()
        made = getattr(executor, areal_followed.TASK)
        areal_followed.install()
        assert getattr(executor, areal_followed.TASK) is made

    def test_without_such_an_executor_changes_nothing(self, executor):
        delattr(executor, areal_followed.TASK)
        areal_followed.install()
        assert not hasattr(executor, areal_followed.TASK)

    def test_a_task_that_cannot_be_followed_is_the_trainers_own(self, executor, monkeypatch):
        def fails(task):
            raise OSError("no room")

        monkeypatch.setattr(areal_followed, "_followed_task", fails)
        areal_followed.install()
        workflow = Workflow()
        assert getattr(executor, areal_followed.TASK)(7, workflow) == Task(7, workflow)
