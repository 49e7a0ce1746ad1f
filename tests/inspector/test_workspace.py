"""What the pages read."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.incidents import run_alarms, run_diagnosed
from rollout_traces.inspector.pages.shell import catalog, pulse
from rollout_traces.inspector.workspace import (
    EvaluationView,
    Names,
    SplitView,
    Workspace,
    answer_of,
    as_json,
    parameters,
    read_request,
)
from tests.inspector.told import told
from tests.sources.test_trackio_traces import CHAT, TRACES
from tests.store.projects import PROJECT, conversation, make_ledger, store_values, write_step


class TestWorkspace:
    def test_lists_the_projects_of_the_folder(self, home):
        assert Workspace(folder=home).projects() == ["agents", "demo", "hostile", "pictures", "repetitive"]

    def test_a_project_that_was_not_named_cannot_be_reached(self, home):
        workspace = Workspace(folder=home, projects=("demo",))
        assert workspace.projects() == ["demo"]
        with pytest.raises(StoreError, match=r"no project 'hostile' here\. Projects: demo"):
            workspace.store("hostile")

    @pytest.mark.parametrize("name", ["../demo", "/etc/passwd", "demo.db", ""])
    def test_a_path_is_no_project(self, home, name):
        with pytest.raises(StoreError, match="no project"):
            Workspace(folder=home).store(name)

    def test_the_first_indexing_ends_and_reports_nothing_more(self, home):
        workspace = Workspace(folder=home)
        assert workspace.indexing("demo", wait=60) is None
        assert workspace.store("demo").count() > 0
        workspace.close()

    def test_the_version_stands_still_while_nothing_is_logged(self, home):
        workspace = Workspace(folder=home)
        workspace.indexing("demo", wait=60)
        found = told(catalog, workspace, {"project": "demo"})
        workspace._looked.clear()
        assert told(pulse, workspace, {"project": "demo", "version": found["version"]})["changed"] is False
        assert told(pulse, workspace, {"project": "demo", "version": -1})["changed"] is True
        workspace.close()

    def test_answers_are_remembered_until_rows_come(self, home):
        workspace = Workspace(folder=home)
        workspace.refresh("demo")
        asked = []
        for _ in range(2):
            workspace.remembered(("x",), "demo", lambda: asked.append(1) or 7)
        assert asked == [1]
        workspace._versions["demo"] = -1
        assert workspace.remembered(("x",), "demo", lambda: 8) == 8
        workspace.close()

    def test_answers_that_hold_all_rows_of_a_run_are_computed_one_at_a_time(self, home):
        workspace = Workspace(folder=home)
        workspace.refresh("demo")
        now, most, lock = 0, 0, threading.Lock()

        def compute() -> int:
            nonlocal now, most
            with lock:
                now += 1
                most = max(most, now)
            time.sleep(0.02)
            with lock:
                now -= 1
            return 1

        with ThreadPoolExecutor(6) as threads:
            asked = [
                threads.submit(workspace.remembered, (n,), "demo", compute, alone=True) for n in range(6)
            ]
            assert [each.result(30) for each in asked] == [1] * 6
        assert most == 1
        with pytest.raises(ZeroDivisionError):
            workspace.remembered(("fails",), "demo", lambda: 1 // 0, alone=True)
        assert workspace.remembered(("the next",), "demo", compute, alone=True) == 1
        workspace.close()

    @pytest.mark.parametrize("asked", [run_diagnosed, run_alarms])
    def test_what_moved_in_a_run_and_what_is_usual_of_it_are_such_answers(self, home, monkeypatch, asked):
        workspace, alone = Workspace(folder=home), []
        monkeypatch.setattr(
            Workspace, "remembered", lambda self, *question, **how: alone.append(how["alone"])
        )
        asked(SplitView(workspace, "demo", "run-a"))
        assert alone == [True]
        workspace.close()


class TestARunOfAnotherTool:
    @pytest.fixture
    def note(self, trackio_dir):
        def read() -> str:
            workspace = Workspace(folder=trackio_dir)
            workspace.indexing(PROJECT, wait=60)
            [run] = told(catalog, workspace, {"project": PROJECT})["runs"]
            workspace.close()
            return run["note"]

        return read

    def test_says_that_it_has_kept_rollouts_only(self, note):
        key, metadata, _ = TRACES["TRL"]
        store_values(conversation(key, CHAT, **metadata), step=1)
        assert note() == "Kept rollouts only: how many there were is unknown."

    def test_says_how_many_of_them_cannot_be_read(self, note):
        key, metadata, _ = TRACES["TRL"]
        store_values(conversation(key, CHAT, **metadata), step=1)
        odd = {"op": "Loop.run", "output": {"prompt_ids": 5, "response_ids": [1]}}
        store_values(conversation("rollout_trace/Loop.run", CHAT, **odd), step=1)
        assert note().endswith("is unknown. 1 of them cannot be read whole (unreadable = 1).")

    def test_a_run_with_ledgers_has_no_note(self, note):
        write_step(make_ledger([[0.0, 1.0]], step=3), (0, 1))
        assert note() == ""


def test_the_questions_that_are_taken_for_large_are_ones_that_can_be_asked() -> None:
    from rollout_traces.inspector.registry import PAGES, READ
    from rollout_traces.inspector.workspace import LARGE

    known = {function.__name__ for page in PAGES for function in page.functions}
    assert set(LARGE) <= known | {function.__name__ for function in READ.values()}


@dataclass(frozen=True)
class Asked:
    where: str = ""
    limit: int | None = None


def listed(view: SplitView, asked: Asked, step: int, names: Names = (), rest: bool = False) -> tuple:
    return view.run, view.split, asked, step, names, rest


def evaluated(view: EvaluationView) -> str:
    return view.split


class TestParameters:
    def test_a_view_and_a_dataclass_stand_for_their_fields(self):
        names = [each.name for each in parameters(listed)]
        assert names == ["project", "run", "split", "where", "limit", "step", "names", "rest"]

    def test_the_workspace_is_none_of_them(self):
        def everything(workspace: Workspace, project: str = "") -> None: ...

        assert [each.name for each in parameters(everything)] == ["project"]


class TestWhatAPageSends:
    def test_becomes_the_arguments(self):
        sent = {"project": "p", "run": "r", "step": "3", "where": "x", "names": ["a", "b"], "other": 1}
        given = read_request(listed, sent)
        assert answer_of(listed, None, given) == ("r", "rollout", Asked("x"), 3, ("a", "b"), False)

    def test_anything_but_a_mapping_is_empty(self):
        assert read_request(evaluated, ["x"]) == read_request(evaluated, None)
        assert answer_of(evaluated, None, read_request(evaluated, None)) == "eval-rollout"

    @pytest.mark.parametrize(
        ("sent", "said"),
        [
            ({"project": 3}, "project: seen int, expected a text"),
            ({"step": "x"}, "step: seen 'x', expected a whole number"),
            ({"step": float("inf")}, "step: seen 'inf'"),
            ({"where": "x" * 10_001}, "at most 10,000"),
            ({}, "step: none named"),
            ({"step": ""}, "step: none named"),
        ],
    )
    def test_says_what_it_expected(self, sent, said):
        with pytest.raises(StoreError, match=said):
            read_request(listed, sent)

    def test_what_is_no_list_of_names_is_none(self):
        assert read_request(listed, {"step": 1, "names": "a,b"})["names"] == ()
        assert len(read_request(listed, {"step": 1, "names": ["a"] * 300})["names"]) == 200

    @pytest.mark.parametrize(("sent", "is_meant"), [("1", True), (True, True), ("0", False), (None, False)])
    def test_yes_is_one_or_true(self, sent, is_meant):
        assert read_request(listed, {"step": 1, "rest": sent})["rest"] is is_meant


def test_json_has_null_for_what_is_not_finite():
    assert as_json({"a": float("nan"), "b": np.float32(0.5), 3: Asked("x")}) == (
        b'{"a":null,"b":0.5,"3":{"where":"x","limit":null}}'
    )
