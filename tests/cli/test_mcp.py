"""What an agent is served: which projects, and whether it may write."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from rollout_traces.cli import build_app
from rollout_traces.inspector.api import tools
from rollout_traces.inspector.workspace import Workspace


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch):
    """Runs the command up to where it would serve, and gives what it would."""

    class Server:
        def __init__(self, *given: Any) -> None:
            self.workspace, self.inspector, self.token, self.author = given
            self.ways: list[str] = []

        def run(self, way: str) -> None:
            self.ways.append(way)

    built: list[Server] = []

    def build(*given: Any) -> Server:
        built.append(Server(*given))
        return built[-1]

    monkeypatch.setattr(tools, "build_tools", build)

    def run(*arguments: str) -> Server:
        result = CliRunner().invoke(build_app(["mcp"]), ["mcp", *arguments])
        assert result.exit_code == 0, result.output
        return built[-1]

    return run


def test_a_project_that_is_named_is_the_only_one(served):
    assert served("-p", "gsm8k").workspace.projects() == ["gsm8k"]


def test_without_a_name_all_of_this_machine_are(served, trackio_dir):
    workspace = served().workspace
    assert isinstance(workspace, Workspace) and workspace.is_local and workspace.projects() == []


def test_an_agent_without_a_name_only_reads(served):
    reads, writes = served("-p", "p"), served("-p", "p", "--author", "agent")
    assert (reads.workspace.may_label, reads.author) == (False, None)
    assert (writes.workspace.may_label, writes.author) == (True, "agent")
    assert reads.ways == writes.ways == ["stdio"]


def test_the_inspector_is_asked_with_the_token_of_the_environment(served, monkeypatch):
    monkeypatch.setenv("ROLLOUT_TRACES_TOKEN", "the token")
    server = served("-p", "p", "--inspector", "http://127.0.0.1:1")
    assert (server.inspector, server.token) == ("http://127.0.0.1:1", "the token")


def test_a_server_to_read_from_is_the_workspaces(served):
    workspace = served("-p", "p", "--server-url", "http://127.0.0.1:1").workspace
    assert workspace.server_url == "http://127.0.0.1:1" and not workspace.is_local
