"""Runs over each other, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.runs import MOST_RUNS, several_runs, since_run_before
from rollout_traces.inspector.workspace import Workspace
from tests.inspector.told import told
from tests.store.projects import PROJECT, make_ledger, write_step
from tests.trackio_home import use_trackio_home

CONFIGS = {"a": {"lr": 1, "same": 0}, "b": {"lr": 2, "same": 0, "long": "x" * 300}, "c": {"lr": 1, "same": 0}}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Three runs that were started one behind another; `b` and `c` are evaluated."""
    import trackio

    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, folder)
        for name, config in CONFIGS.items():
            run = trackio.init(project=PROJECT, name=name, config=config, embed=False)
            run.log({"loss": 0.5, f"only {name}": 1.0}, step=0)
            run.finish()
            for split in ("rollout", *(("eval-rollout",) if name != "a" else ())):
                write_step(
                    make_ledger([[1.0, 0.0]], step=0, split=split, batch=name), (0,), run=(name, run.id)
                )
        opened = Workspace(folder=folder)
        yield opened
        opened.close()


def asked(workspace: Workspace, function: Any, run: str, **sent: list[str]) -> Any:
    return told(function, workspace, {"project": PROJECT, "run": run, "split": "rollout", **sent})


class TestTogether:
    def test_are_drawn_in_the_order_in_which_they_are_asked_for(self, workspace):
        found = asked(workspace, several_runs, "b", others=["a", "c"])
        assert [run["run"] for run in found["runs"]] == ["b", "a", "c"]
        assert {"loss", "only a", "only b", "only c"} <= set(found["names"])
        assert all(run["series"]["loss"]["values"] == [0.5] for run in found["runs"])
        assert all(run["progress"]["rollouts"] == [2.0] for run in found["runs"])

    def test_show_the_series_that_are_named(self, workspace):
        found = asked(workspace, several_runs, "a", others=["b"], names=["only a", "only b"])
        assert found["shown"] == ["only a", "only b"]
        assert [sorted(run["series"]) for run in found["runs"]] == [["only a"], ["only b"]]

    def test_differ_in_settings_each_with_its_value(self, workspace):
        settings = asked(workspace, several_runs, "a", others=["b", "c"])["settings"]
        assert settings == [
            {"key": "long", "values": [None, "x" * 200, None]},
            {"key": "lr", "values": ["1", "2", "1"]},
        ]

    def test_share_the_evaluations_that_the_first_two_have(self, workspace):
        assert asked(workspace, several_runs, "b", others=["c"])["evaluations"] == ["eval-rollout"]
        assert asked(workspace, several_runs, "a", others=["b", "c"])["evaluations"] == []

    def test_are_one_or_more_and_not_too_many(self, workspace):
        for others in ([], ["abc"[n % 3] for n in range(MOST_RUNS)]):
            with pytest.raises(StoreError, match=f"expected 1 to {MOST_RUNS - 1} runs"):
                asked(workspace, several_runs, "a", others=others)


class TestTheRunBefore:
    def test_is_told_with_what_changed_since(self, workspace):
        found = asked(workspace, since_run_before, "b")
        assert found["run"] == "a"
        assert found["changes"] == [
            {"key": "long", "a": None, "b": "x" * 200},
            {"key": "lr", "a": "1", "b": "2"},
        ]
        assert asked(workspace, since_run_before, "c")["run"] == "b"

    def test_of_the_first_there_is_none(self, workspace):
        assert asked(workspace, since_run_before, "a") is None
