"""The only project is opened before the first page asks for it."""

from __future__ import annotations

from rollout_traces.inspector.pages import rollouts
from rollout_traces.inspector.warm_up import warm_up
from rollout_traces.inspector.workspace import Workspace
from tests.store.projects import make_ledger, write_step


def test_the_newest_step_of_the_only_project_is_read(trackio_dir, monkeypatch):
    write_step(make_ledger([[0.0, 1.0]], step=1), (0, 1), project="demo")
    write_step(make_ledger([[0.0, 1.0]], step=2), (0, 1), project="demo")
    seen = []
    really = rollouts.rollout
    monkeypatch.setattr(rollouts, "rollout", lambda *given: seen.append(really(*given)))
    workspace = Workspace()
    warm_up(workspace).join(60)
    assert [found["metadata"]["step"] for found in seen] == [2]
    assert workspace.version("demo") == 1
    workspace.close()


def test_of_several_projects_none_is_opened(trackio_dir):
    for project in ("one", "two"):
        write_step(make_ledger([[0.0, 1.0]], step=1), (0, 1), project=project)
    assert warm_up(Workspace()) is None
    named = Workspace(projects=("two",))
    warm_up(named).join(60)
    assert named.version("two") == 1
    named.close()


def test_a_project_that_cannot_be_read_is_left_for_who_asks(trackio_dir):
    workspace = Workspace(projects=("missing",))
    warm_up(workspace).join(60)
    assert workspace.version("missing") == 0
