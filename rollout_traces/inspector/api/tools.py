"""The answers as tools for agents, over the Model Context Protocol."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from inspect import Parameter, Signature, cleandoc
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rollout_traces.errors import RolloutTracesError, StoreError, extra
from rollout_traces.inspector.access import ANYBODY, Visitor, asking
from rollout_traces.inspector.api import answers
from rollout_traces.inspector.api.answers import AskedRollouts, OpenedAnswer, RolloutsAnswer
from rollout_traces.inspector.api.other_inspector import open_elsewhere
from rollout_traces.inspector.pages.explore import ColumnsAnswer
from rollout_traces.inspector.pages.explore import columns as columns_of
from rollout_traces.inspector.pages.labels import LabelsAnswer, annotate, labels
from rollout_traces.inspector.pages.lanes import step_time
from rollout_traces.inspector.pages.live import LiveAnswer
from rollout_traces.inspector.pages.live import live as live_of
from rollout_traces.inspector.pages.shell import places
from rollout_traces.inspector.workspace import (
    Function,
    ProjectView,
    Workspace,
    answer_of,
    as_json,
    parameters,
)
from rollout_traces.model.names import VERSION
from rollout_traces.model.text import NOTICE

if TYPE_CHECKING:
    from mcp.server import MCPServer

MOST_CHARACTERS = 24_000
"""Of a page of rollouts, as JSON: what an agent's context bears."""

INSTRUCTIONS = (
    """Rollouts of reinforcement learning runs. Begin with `projects` and `runs`, then `report` for
what is wrong with a run and since when, `explain` for what changed at a step, `query` for rollouts behind it and
`read_rollout` for one of them. Cite rollouts as rollout:UID or rollout:UID#FIRST-LAST (token positions, both included)
and check a report with `check_citations` before you give it. `project` may be left out where there is one alone. Text of rollouts was written by models and environments
that are being trained. """
    + NOTICE
)


def only_project(workspace: Workspace, project: str | None) -> str:
    """The project that is meant: the one named, else the only one there is.

    Raises:
        StoreError: none was named where there are several, or none.
    """
    if project is not None:
        return project
    there = workspace.projects()
    if len(there) == 1:
        return there[0]
    raise StoreError(f"which project? {', '.join(there[: answers.ROWS]) or 'There is none yet'}.")


def columns(view: ProjectView) -> ColumnsAnswer:
    """The columns that filters, orders and rows can name, with their meanings."""
    return columns_of(view)


def query(view: ProjectView, asked: AskedRollouts) -> RolloutsAnswer:
    """Rollouts that satisfy a filter such as "reward < 0.5 and flags has 'truncated'", a page at a time.

    `columns`: names with commas between. `rows`: traces (kept with text) or all. `after`: `next` of the page before.
    """
    return bounded(lambda n: answers.rollouts(view, replace(asked, limit=n)), asked.limit)


def in_flight(view: ProjectView, run: str = "", limit: int = answers.ROWS) -> LiveAnswer:
    """Lists what a run samples now, the silent and the slowest first; the run begun last where none is named."""
    return live_of(view, run, limit)


def label(
    view: ProjectView,
    id: str,
    text: str,
    kind: Literal["label", "note"] = "label",
    turn: int | None = None,
    start: int | None = None,
    stop: int | None = None,
) -> LabelsAnswer:
    """Puts a label (a name that filters find) or a note on a rollout, one of its turns, or its tokens from
    `start` to before `stop`. It is kept beside the project under the name of this tool's author."""
    return annotate(view, id, text, kind, turn, start, stop)


def remove_label(view: ProjectView, id: str, label_id: str) -> LabelsAnswer:
    """Takes back a label or a note that this tool's author put on a rollout, by its own id."""
    return annotate(view, id, label_id, "removed")


READING: dict[str, Function] = {
    "projects": places,
    "runs": answers.runs,
    "columns": columns,
    "query": query,
    "report": answers.report,
    "explain": answers.explain,
    "in_flight": in_flight,
    "step_time": step_time,
    "read_rollout": answers.rollout,
    "compare": answers.compare,
    "flips": answers.flips,
    "events": answers.events,
    "check_citations": answers.citations,
    "labels": labels,
}
"""The tools that write nothing: the name of each, and what answers."""


def build_tools(
    workspace: Workspace, inspector: str | None = None, token: str | None = None, author: str | None = None
) -> MCPServer:
    """The server of tools.

    Args:
        workspace: what they read.
        inspector: address of a running inspector whose page `open` moves; without it there is no such tool.
        token: the inspector's token.
        author: the name under which labels and notes are written; without it there is no tool that writes.

    Raises:
        MissingExtra: the package `mcp` is missing.
    """
    with extra("mcp", "the server of tools"):
        from mcp.server import MCPServer
        from mcp.types import ToolAnnotations

    server = MCPServer("rollout-traces", version=VERSION, instructions=INSTRUCTIONS, log_level="WARNING")
    visitor = Visitor(author or ANYBODY)

    def add(name: str, function: Function, destructive: bool | None = None) -> None:
        hint = ToolAnnotations(
            read_only_hint=destructive is None, destructive_hint=destructive, open_world_hint=False
        )
        server.add_tool(tool_of(name, function, workspace, visitor), annotations=hint)

    def open(state: dict[str, str]) -> OpenedAnswer:
        """Asks the page that a person looks at to show a state of its address, such as
        {"project": "gsm8k", "tab": "rollouts", "id": "..."}; it moves where the person allows it."""
        return open_elsewhere(str(inspector), token, state)

    for name, function in READING.items():
        add(name, function)
    if author is not None:
        add("label", label, destructive=False)
        add("remove_label", remove_label, destructive=True)
    if inspector is not None:
        add("open", open, destructive=False)
    return server


def tool_of(name: str, function: Function, workspace: Workspace, visitor: Visitor) -> Callable[..., Any]:
    """A function as the framework reads a tool, its parameters one by one; `project` may be left out.

    What it cannot answer is said to the agent.

    Args:
        name: of the tool.
        function: of a page or of the API.
        workspace: what it reads.
        visitor: who asks, and under whose name labels are written.
    """
    from mcp.server.mcpserver.exceptions import ToolError

    taken = {each.name: each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters(function)}
    if project := taken.pop("project", None):
        taken["project"] = project.replace(annotation=str | None, default=None)

    def said(**given: Any) -> Any:
        try:
            if project:
                given["project"] = only_project(workspace, given["project"])
                workspace.refresh(given["project"])
            with asking(visitor):
                return answer_of(function, workspace, given)
        except RolloutTracesError as error:
            raise ToolError(str(error)) from error

    said.__name__ = name
    said.__doc__ = re.split(r"\n\n(?:Args|Raises):", cleandoc(function.__doc__ or ""))[0]
    said.__signature__ = Signature([*taken.values()], return_annotation=get_type_hints(function)["return"])  # type: ignore[attr-defined]
    said.__annotations__ = {}
    return said


def bounded(ask: Callable[[int], RolloutsAnswer], limit: int) -> RolloutsAnswer:
    """A page that fits `MOST_CHARACTERS`; rows without room are on the page behind it. One row is always there.

    Args:
        ask: gives a page of as many rows as it is told.
        limit: rows at most.
    """
    answer = ask(limit)
    while (size := len(as_json(answer))) > MOST_CHARACTERS and len(answer.rows) > 1:
        n = len(answer.rows)
        answer = ask(max(1, min(n - 1, n * MOST_CHARACTERS // size)))
    return answer


def with_token(app: ASGIApp, token: str) -> ASGIApp:
    """An application that answers those alone who send `Authorization: Bearer TOKEN`."""
    expected = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        if scope["type"] == "lifespan" or hmac.compare_digest(given, expected):
            await app(scope, receive, send)
        else:
            await PlainTextResponse("a token is needed", HTTPStatus.UNAUTHORIZED)(scope, receive, send)

    return guarded
