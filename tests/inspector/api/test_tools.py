"""A scripted agent finds a planted cause with the tools alone, and cites what it found."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from rollout_traces import __version__
from rollout_traces.inspector.api.tools import MOST_CHARACTERS, build_tools, with_token
from rollout_traces.inspector.workspace import ProjectView, Workspace
from tests.inspector.api.conftest import AT

ARTIFACTS = Path(__file__).resolve().parents[3] / "artifacts"


class Agent:
    """Calls tools and keeps what was said."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.transcript: list[dict[str, Any]] = []

    async def ask(self, tool: str, **arguments: Any) -> Any:
        """The structured answer of a tool; an error's text where it refuses."""
        answer = await self._client.call_tool(tool, arguments)
        found = answer.content[0].text if answer.is_error else answer.structured_content
        self.transcript.append({"tool": tool, "arguments": arguments, "answer": found})
        return found


def with_agent(workspace: Any, script: Callable[[Agent], Awaitable[Any]]) -> Any:
    """Runs a script against the tools, in a thread of its own: a browser's loop may run in this one."""

    async def run() -> Any:
        async with Client(build_tools(workspace)) as client:
            return await script(Agent(client))

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, run()).result()


async def find_the_cause(agent: Agent) -> dict[str, Any]:
    """What an agent does: looks at every run, follows the worst diagnosis to rollouts, cites them, checks."""
    [project] = (await agent.ask("projects"))["projects"]
    runs = (await agent.ask("runs", project=project))["runs"]
    reports = [await agent.ask("report", project=project, run=run["name"]) for run in runs]
    rank = {"error": 0, "warn": 1, "info": 2}
    told = [(rank[d["severity"]], r["run"], d) for r in reports for d in r["diagnoses"]]
    _, run, cause = min(told, key=lambda each: each[0])
    await agent.ask("events", project=project, run=run)
    explained = await agent.ask("explain", project=project, run=run, step=cause["step"])
    assert cause["sentence"] in [each["sentence"] for each in explained["in_force"]]
    page = await agent.ask(
        "query", project=project, run=run, where=cause["where"], columns="uid,engine,step", limit=3
    )
    rollout = await agent.ask("read_rollout", project=project, id=page["rows"][0]["uid"])
    turn = next(turn for turn in rollout["turns"] if turn["role"] == "assistant")
    said = f"{cause['sentence']} See {rollout['citation']}#{turn['start']}-{turn['stop'] - 1}."
    checked = await agent.ask("check_citations", project=project, text=said)
    return {"run": run, "cause": cause, "page": page, "report": said, "checked": checked}


class TestAnAgent:
    def test_finds_the_planted_cause_with_tools_alone(self, workspace):
        kept: list[dict[str, Any]] = []

        async def script(agent: Agent) -> dict[str, Any]:
            found = await find_the_cause(agent)
            kept.extend(agent.transcript)
            return found

        found = with_agent(workspace, script)
        ARTIFACTS.mkdir(exist_ok=True)
        (ARTIFACTS / "mcp-transcript.json").write_text(json.dumps(kept, indent=1))
        assert found["run"] == "off"
        assert "engine" in found["cause"]["where"]
        assert abs(found["cause"]["step"] - AT) <= 2
        assert found["checked"]["all_resolve"]
        assert found["checked"]["citations"][0]["text"]

    def test_is_told_what_is_wrong_with_its_question(self, workspace):
        async def script(agent: Agent) -> list[Any]:
            return [
                await agent.ask("query", project="story", where="rewardd > 1"),
                await agent.ask("query", project="nobody"),
                await agent.ask("query", project="story", limit=100_000),
                await agent.ask("read_rollout", project="story", id="nobody"),
            ]

        answers = with_agent(workspace, script)
        for answer, said in zip(
            answers, ("Did you mean reward", "no project", "limit", "no trace"), strict=True
        ):
            assert said in answer

    def test_pages_through_a_query(self, workspace):
        async def script(agent: Agent) -> tuple[int, list[str]]:
            seen: list[str] = []
            after = None
            while True:
                page = await agent.ask(
                    "query", project="story", run="healthy", rows="all", limit=150, after=after
                )
                seen += [row["uid"] for row in page["rows"]]
                after = page["next"]
                if after is None:
                    return page["total"], seen

        total, seen = with_agent(workspace, script)
        assert len(set(seen)) == len(seen) == total

    def test_there_is_no_tool_that_writes_or_opens_without_an_inspector(self, workspace):
        async def names() -> list[str]:
            async with Client(build_tools(workspace)) as client:
                return [tool.name for tool in (await client.list_tools()).tools]

        with ThreadPoolExecutor(1) as apart:
            found = set(apart.submit(asyncio.run, names()).result())
        assert {"query", "explain", "read_rollout", "compare", "flips", "events", "check_citations"} <= found
        assert not found & {"open", "label", "remove_label"}


class TestLabelling:
    def test_an_agent_labels_under_its_name_where_it_may(self, workspace):
        uid = workspace.store("story").query(limit=1).rows[0]["uid"]

        async def script() -> list[Any]:
            async with Client(build_tools(workspace, author="an agent")) as client:
                agent = Agent(client)
                put = await agent.ask("label", project="story", id=uid, text="off by one", turn=0)
                noted = await agent.ask(
                    "label", project="story", id=uid, text="look here", kind="note", start=0, stop=2
                )
                found = await agent.ask(
                    "query", project="story", where="labels has 'off by one'", columns="uid"
                )
                mine = next(each for each in put["labels"] if each["text"] == "off by one")
                left = await agent.ask("remove_label", project="story", id=uid, label_id=mine["id"])
                wrong = await agent.ask("label", project="story", id=uid, text="x", turn=99)
                hers = workspace.store("story").labels.add("note", uid, "a person wrote this", "grace")
                kept = await agent.ask("remove_label", project="story", id=uid, label_id=hers.id)
                read = await agent.ask("labels", project="story", id=uid)
                return [mine, noted, found, left, wrong, kept, read]

        with ThreadPoolExecutor(1) as apart:
            mine, noted, found, left, wrong, kept, read = apart.submit(asyncio.run, script()).result()
        assert (mine["author"], mine["turn"]) == ("an agent", 0)
        assert [row["uid"] for row in found["rows"]] == [uid]
        note = next(each for each in noted["labels"] if each["kind"] == "note")
        assert (note["start"], note["stop"]) == (0, 2)
        assert "off by one" not in [each["text"] for each in left["labels"]]
        assert "turn" in wrong
        assert "“grace” wrote it" in kept
        assert read["labels"][:-1] == left["labels"]

    def test_a_server_that_takes_no_labels_refuses_its_agent(self, workspace):
        uid = workspace.store("story").query(limit=1).rows[0]["uid"]

        async def script() -> Any:
            async with Client(build_tools(workspace, author="an agent")) as client:
                return await Agent(client).ask("label", project="story", id=uid, text="no")

        workspace.may_label = False
        try:
            with ThreadPoolExecutor(1) as apart:
                assert "--no-labels" in apart.submit(asyncio.run, script()).result()
        finally:
            workspace.may_label = True


def test_the_command_speaks_over_standard_input(workspace):
    async def asked() -> Any:
        command = ["-c", "from rollout_traces.cli import main; main()", "mcp", "-p", "story"]
        environment = {**os.environ, "TRACKIO_DIR": str(workspace.folder)}
        async with Client(
            StdioServerParameters(command=sys.executable, args=command, env=environment)
        ) as client:
            return (await client.call_tool("projects", {})).structured_content

    with ThreadPoolExecutor(1) as apart:
        assert apart.submit(asyncio.run, asked()).result()["projects"] == ["story"]


def test_without_the_package_the_command_says_what_to_install():
    code = "import sys; sys.modules['mcp'] = None; from rollout_traces.cli import main; sys.argv[1:] = ['mcp']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "rollout-traces[mcp]" in done.stderr


@pytest.mark.parametrize(
    ("text", "resolve", "why"),
    [
        ("rollout:{uid}", [True], None),
        ("(rollout:{uid}#0-3), rollout:{uid}.", [True, True], None),
        ("rollout:{uid}#0-99999", [False], "tokens 0-99999"),
        ("rollout:{uid}#9-3", [False], "tokens 9-3"),
        ("rollout:nobody", [False], "no trace"),
        ("nothing is cited", [], None),
    ],
)
def test_citations_are_checked(workspace, text, resolve, why):
    from rollout_traces.inspector.api.answers import citations

    store = workspace.store("story")
    uid = store.query(limit=1).rows[0]["uid"]
    found = citations(ProjectView(workspace, "story"), text.format(uid=uid))
    assert [each.resolves for each in found.citations] == resolve
    assert found.all_resolve == (bool(resolve) and all(resolve))
    assert why is None or why in str(found.citations[0].why_not)


def test_a_beginning_of_a_uid_is_no_citation(workspace):
    from rollout_traces.inspector.api.answers import citations

    store = workspace.store("story")
    uid = store.query(where="run = healthy", limit=1).rows[0]["uid"]
    assert not citations(ProjectView(workspace, "story"), f"rollout:{uid[:-2]}").all_resolve


class TestWithOneProject:
    def test_no_tool_needs_it(self, workspace):
        async def ask(agent: Agent) -> Any:
            runs = (await agent.ask("runs"))["runs"]
            page = await agent.ask("query", run=runs[0]["name"], limit=1)
            return runs, await agent.ask("read_rollout", id=page["rows"][0]["uid"])

        workspace_of_one = Workspace(folder=workspace.folder, projects=("story",))
        runs, rollout = with_agent(workspace_of_one, ask)
        assert runs and rollout["turns"]

    def test_where_there_are_several_they_are_named(self, workspace):
        several = Workspace(folder=workspace.folder, projects=("story", "other"))
        said = with_agent(several, lambda agent: agent.ask("runs"))
        assert "which project? story, other." in said


class TestTheServer:
    def test_says_its_version_and_what_its_tools_do(self, workspace):
        async def seen() -> Any:
            async with Client(build_tools(workspace, author="an agent")) as client:
                return client.server_info, (await client.list_tools()).tools

        with ThreadPoolExecutor(1) as apart:
            info, tools = apart.submit(asyncio.run, seen()).result()
        assert info.version == __version__
        hints = {tool.name: tool.annotations.read_only_hint for tool in tools}
        assert {name for name, reads in hints.items() if not reads} == {"label", "remove_label"}
        assert "project" not in {need for tool in tools for need in tool.input_schema.get("required", ())}

    def test_a_page_of_a_query_is_bounded_and_the_next_goes_on(self, workspace):
        async def ask(agent: Agent) -> Any:
            asked = {"run": "healthy", "rows": "all", "limit": 200, "project": "story"}
            first = await agent.ask("query", **asked)
            return first, await agent.ask("query", **asked, after=first["next"])

        first, second = with_agent(workspace, ask)
        assert (
            1 < len(first["rows"]) < 200
            and len(json.dumps(first, separators=(",", ":"))) < 1.1 * MOST_CHARACTERS
        )
        assert not {row["uid"] for row in first["rows"]} & {row["uid"] for row in second["rows"]}

    def test_over_http_a_token_is_asked_for(self, workspace):
        from starlette.testclient import TestClient

        app = with_token(build_tools(workspace).streamable_http_app(host="127.0.0.1"), "a token")
        with TestClient(app, base_url="http://127.0.0.1:8000") as client:
            asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            heads = {"Accept": "application/json, text/event-stream"}
            assert client.post("/mcp", json=asked, headers=heads).status_code == 401
            wrong = client.post("/mcp", json=asked, headers=heads | {"Authorization": "Bearer another"})
            assert wrong.status_code == 401
            right = client.post("/mcp", json=asked, headers=heads | {"Authorization": "Bearer a token"})
            assert right.status_code not in (401, 404, 500)
