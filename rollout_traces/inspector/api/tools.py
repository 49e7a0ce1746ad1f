"""The answers as tools for agents, over the Model Context Protocol."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rollout_traces import __version__
from rollout_traces.errors import RolloutTracesError, StoreError, extra
from rollout_traces.inspector.access import ANYBODY, Visitor, asking
from rollout_traces.inspector.api import answers, models
from rollout_traces.inspector.asking import as_json
from rollout_traces.inspector.pages.explore import ColumnsAnswer
from rollout_traces.inspector.pages.explore import columns as columns_of
from rollout_traces.inspector.pages.labels import LabelsAnswer, annotate
from rollout_traces.inspector.pages.labels import labels as labels_of
from rollout_traces.inspector.pages.lanes import StepTime
from rollout_traces.inspector.pages.lanes import step_time as step_time_of
from rollout_traces.inspector.pages.live import LiveAnswer
from rollout_traces.inspector.pages.live import live as live_of
from rollout_traces.inspector.pages.shell import ProjectsAnswer, places
from rollout_traces.inspector.workspace import EvaluationView, ProjectView, SplitView, Workspace
from rollout_traces.model.text import NOTICE
from rollout_traces.store.server_client import ServerClient

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
    raise StoreError(f"which project? {', '.join(there[:20]) or 'There is none yet'}.")


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
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations

    server = MCPServer("rollout-traces", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    def of(project: str | None) -> ProjectView:
        found = only_project(workspace, project)
        workspace.refresh(found)
        return ProjectView(workspace, found)

    def of_run(project: str | None, run: str, split: str) -> SplitView:
        return SplitView(workspace, of(project).project, run, split)

    def tool(function: Callable[..., Any], hint: ToolAnnotations = reads) -> None:
        """Adds a tool; what it cannot answer is said to the agent."""

        @wraps(function)
        def said(*given: Any, **named: Any) -> Any:
            try:
                return function(*given, **named)
            except RolloutTracesError as error:
                raise ToolError(str(error)) from error

        server.add_tool(said, annotations=hint)

    def projects() -> ProjectsAnswer:
        """The projects that there are."""
        return places(workspace)

    def runs(project: str | None = None) -> models.RunsAnswer:
        """The runs of a project with their splits and last steps."""
        return answers.runs(of(project))

    def columns(project: str | None = None) -> ColumnsAnswer:
        """The columns that filters, orders and rows can name, with their meanings."""
        return columns_of(of(project))

    def query(
        where: str = "",
        run: str | None = None,
        split: str | None = None,
        text: str | None = None,
        order_by: str | None = None,
        columns: str = "",
        rows: str = "traces",
        limit: int = 20,
        after: str | None = None,
        project: str | None = None,
    ) -> models.RolloutsAnswer:
        """Rollouts that satisfy a filter such as "reward < 0.5 and flags has 'truncated'", a page at a time.

        `columns`: names with commas between. `rows`: traces (kept with text) or all. `after`: `next` of the page before.
        """
        view = of(project)
        return bounded(
            lambda n: answers.rollouts(view, where, run, split, text, order_by, columns, rows, n, after),
            limit,
        )

    def report(run: str, split: str = "rollout", project: str | None = None) -> models.ReportAnswer:
        """What is wrong with a run: ranked diagnoses with their first step, the filter behind them, and advice."""
        return answers.report(of_run(project, run, split))

    def explain(
        run: str, step: int, split: str = "rollout", project: str | None = None
    ) -> models.ExplanationAnswer:
        """What differs at a step from the ten before it, with typical rollouts."""
        return answers.explain(of_run(project, run, split), step)

    def in_flight(run: str = "", limit: int = 20, project: str | None = None) -> LiveAnswer:
        """What a run samples now, the silent and the slowest first; the run begun last where none is named."""
        return live_of(of(project), run, limit)

    def step_time(
        run: str, step: int, by: str = "", split: str = "rollout", project: str | None = None
    ) -> StepTime:
        """Where a step's time went by engine, `source` or `rollout`, what held it up, and the funnel of its rollouts."""
        return step_time_of(of_run(project, run, split), step, by)

    def read_rollout(id: str, first_turn: int = 0, project: str | None = None) -> models.RolloutAnswer:
        """One rollout by uid or trace id: metadata, flags, turns with token positions, labels."""
        return answers.rollout(of(project), id, first_turn)

    def compare(a: str, b: str, project: str | None = None) -> models.ComparisonAnswer:
        """Two rollouts: the tokens that they share and the numbers that differ."""
        return answers.compare(of(project), a, b)

    def flips(
        run: str, first: int, last: int, split: str = "eval-rollout", project: str | None = None
    ) -> models.FlipsAnswer:
        """Prompts that a run's evaluations at two steps solved differently."""
        return answers.flips(EvaluationView(workspace, of(project).project, run, split), first, last)

    def events(run: str, split: str = "rollout", project: str | None = None) -> models.EventsAnswer:
        """What happened in a run: first and last seen, change points, attempts, gaps."""
        return answers.events(of_run(project, run, split))

    def check_citations(text: str, project: str | None = None) -> models.CitationsAnswer:
        """Whether every rollout:UID and rollout:UID#FIRST-LAST of a text leads to a rollout and tokens."""
        return answers.citations(of(project), text)

    def labels(id: str, project: str | None = None) -> LabelsAnswer:
        """The labels and notes on a rollout, each with its id."""
        with asking(Visitor(author or ANYBODY)):
            return labels_of(of(project), id)

    def label(
        id: str,
        text: str,
        kind: Literal["label", "note"] = "label",
        turn: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        project: str | None = None,
    ) -> LabelsAnswer:
        """Puts a label (a name that filters find) or a note on a rollout, one of its turns, or its tokens from
        `start` to before `stop`. It is kept beside the project under the name of this tool's author."""
        with asking(Visitor(author or ANYBODY)):
            return annotate(of(project), id, text, kind, turn, start, stop)

    def remove_label(id: str, label_id: str, project: str | None = None) -> LabelsAnswer:
        """Takes back a label or a note that this tool's author put on a rollout, by its own id."""
        with asking(Visitor(author or ANYBODY)):
            return annotate(of(project), id, label_id, "removed")

    def open(state: dict[str, str]) -> models.OpenedAnswer:
        """Asks the page that a person looks at to show a state of its address, such as
        {"project": "gsm8k", "tab": "rollouts", "id": "..."}; it moves where the person allows it."""
        return open_elsewhere(str(inspector), token, state)

    for function in (
        projects,
        runs,
        columns,
        query,
        report,
        explain,
        in_flight,
        step_time,
        read_rollout,
        compare,
        flips,
        events,
    ):
        tool(function)
    tool(check_citations)
    tool(labels)
    if author is not None:
        tool(label, ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False))
        tool(
            remove_label, ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
        )
    if inspector is not None:
        tool(open, ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False))
    return server


def bounded(ask: Callable[[int], models.RolloutsAnswer], limit: int) -> models.RolloutsAnswer:
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
            await PlainTextResponse("a token is needed", 401)(scope, receive, send)

    return guarded


def open_elsewhere(address: str, token: str | None, state: Mapping[str, str]) -> models.OpenedAnswer:
    """Sends a state to an inspector.

    Args:
        address: of the inspector, such as `http://127.0.0.1:7861`.
        token: its token.
        state: what its address would name.

    Raises:
        StoreError: it does not answer, or refuses.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    client = ServerClient(address.rstrip("/"), "inspector", headers)
    try:
        status, content = client.ask("POST", "/api/v1/open", json={"state": dict(state)})
    finally:
        client.close()
    if status != 200:
        said = content[:300].decode("utf-8", "replace")
        raise StoreError(f"the inspector at {address} refuses ({status}): {said}")
    return models.OpenedAnswer()
