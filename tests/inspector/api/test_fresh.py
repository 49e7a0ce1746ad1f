"""Whoever asks about rollouts alone sees what was stored since the project was opened."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rollout_traces.inspector.api.http import api_app
from rollout_traces.inspector.api.tools import build_tools
from rollout_traces.inspector.workspace import Workspace
from tests.store.projects import PROJECT, make_ledger, write_step


@pytest.fixture
def workspace(trackio_dir: Path, monkeypatch: pytest.MonkeyPatch):
    """A workspace over a project of one step, which has been asked once."""
    monkeypatch.setattr("rollout_traces.inspector.workspace.FRESH_FOR", 0.0)
    write_step(make_ledger([[0.0]], step=0), (0,))
    found = Workspace(folder=trackio_dir)
    assert len(found.store(PROJECT).query().rows) == 1
    write_step(make_ledger([[1.0]], step=1, batch="later"), (0,))
    yield found
    found.close()


def test_rollouts_over_http_are_those_of_now(workspace):
    asked = {"project": PROJECT, "order_by": "step"}
    answer = TestClient(api_app(workspace)).get("/rollouts", params=asked).json()
    assert answer["total"] == 2, answer


def test_rollouts_for_agents_are_those_of_now(workspace):
    server = build_tools(workspace)
    with ThreadPoolExecutor(1) as beside_a_running_loop:
        answer = beside_a_running_loop.submit(lambda: asyncio.run(server.call_tool("query", {}))).result()
    assert answer.structured_content["total"] == 2
