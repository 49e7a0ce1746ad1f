"""What the pages read."""

from __future__ import annotations

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.shell import catalog, pulse
from rollout_traces.inspector.workspace import Request, Workspace


class TestRequest:
    def test_anything_but_a_mapping_is_empty(self):
        assert Request.read(["x"]).project == ""
        assert Request.read(None).split == "rollout"

    def test_says_what_it_expected(self):
        with pytest.raises(StoreError, match="project: seen int, expected a text"):
            Request({"project": 3}).project
        with pytest.raises(StoreError, match="step: seen 'x', expected a whole number"):
            Request({"step": "x"}).step
        with pytest.raises(StoreError, match="step: none named"):
            Request({}).step


class TestWorkspace:
    def test_lists_the_projects_of_the_folder(self, home):
        assert Workspace(folder=home).projects() == ["demo", "hostile", "repetitive"]

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
        found = catalog(workspace, Request({"project": "demo"}))
        workspace._looked.clear()
        assert pulse(workspace, Request({"project": "demo", "version": found["version"]}))["changed"] is False
        assert pulse(workspace, Request({"project": "demo", "version": -1}))["changed"] is True
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
