"""The pages over a Trackio server instead of this machine's files."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from rollout_traces.inspector.pages import compare, explore, health, rollouts, shell
from rollout_traces.inspector.workspace import Workspace
from tests.inspector.conftest import BEARER, TOKEN, Served
from tests.inspector.told import told

PLACE = {"project": "demo", "run": "run-a", "split": "rollout", "step": 4}


@pytest.fixture(scope="module")
def trackio(home) -> Iterator[str]:
    """The address of the Trackio that an inspector mounts, its SQL open, with the token."""
    server = Served(home, "--trackio-sql")
    yield f"{server.address}/trackio?access_token={quote(TOKEN)}"
    server.stop()


@pytest.fixture(scope="module")
def remote(trackio: str, tmp_path_factory: pytest.TempPathFactory):
    """A workspace that reads the Trackio server which the inspector mounts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        workspace = Workspace(server_url=trackio)
        yield workspace
        workspace.close()


class TestOverAServer:
    def test_projects_runs_and_steps_are_listed(self, remote):
        remote.store("demo")
        found = told(shell.catalog, remote, {"project": "demo"})
        assert [project["name"] for project in found["projects"]] == [
            "agents",
            "demo",
            "hostile",
            "pictures",
            "repetitive",
        ]
        assert {run["name"] for run in found["runs"]} == {"run-a", "run-b"}

    def test_every_page_answers(self, remote):
        listed = told(rollouts.samples, remote, PLACE)
        assert (listed["n_traced"], listed["n_rows"]) == (16, 32)
        opened = told(rollouts.rollout, remote, {**PLACE, "id": listed["groups"][0]["samples"][0]["id"]})
        assert opened["tokens"]["n"] > 100
        assert told(rollouts.metrics, remote, PLACE)["shown"]
        assert told(compare.compare, remote, {**PLACE, "group": 2})["shared"] > 0
        assert told(explore.table, remote, {**PLACE, "rows": "all"})["total"] == 192
        assert len(told(health.health, remote, PLACE)["steps"]) == 6

    def test_there_is_no_dashboard_of_this_machine_beside_it(self, remote, trackio, tmp_path):
        assert not remote.is_local
        server = Served(tmp_path, "--server-url", trackio, "--project", "demo")
        try:
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(urllib.request.Request(f"{server.address}/trackio/", headers=BEARER))
        finally:
            server.stop()
