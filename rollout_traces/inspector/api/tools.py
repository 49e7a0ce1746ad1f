"""The answers as tools for agents, over the Model Context Protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from rollout_traces import __version__
from rollout_traces.errors import RolloutTracesError, StoreError
from rollout_traces.extras import extra
from rollout_traces.inspector.api import answers, models
from rollout_traces.inspector.api.bounded import bounded
from rollout_traces.inspector.api.http_open import open_elsewhere
from rollout_traces.inspector.visitor import Visitor, asking
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.quoting import NOTICE

if TYPE_CHECKING:
    from mcp.server import MCPServer

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
    moves = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)

    def meant(project: str | None) -> str:
        found = only_project(workspace, project)
        workspace.refresh(found)
        return found

    def said(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except RolloutTracesError as error:
            raise ToolError(str(error)) from error

    @server.tool(annotations=reads)
    def projects() -> models.ProjectsAnswer:
        """The projects that there are."""
        return said(lambda: answers.projects(workspace))

    @server.tool(annotations=reads)
    def runs(project: str | None = None) -> models.RunsAnswer:
        """The runs of a project with their splits and last steps."""
        return said(lambda: answers.runs(workspace, meant(project)))

    @server.tool(annotations=reads)
    def columns(project: str | None = None) -> models.ColumnsAnswer:
        """The columns that filters, orders and rows can name, with their meanings."""
        return said(lambda: answers.columns(workspace, meant(project)))

    @server.tool(annotations=reads)
    def query(
        where: str = "", run: str | None = None, split: str | None = None, text: str | None = None,
        order_by: str | None = None, columns: str = "", rows: str = "traces", limit: int = 20,
        after: str | None = None, project: str | None = None,
    ) -> models.RolloutsAnswer:  # fmt: skip
        """Rollouts that satisfy a filter such as "reward < 0.5 and flags has 'truncated'", a page at a time.

        `columns`: names with commas between. `rows`: traces (kept with text) or all. `after`: `next` of the page before.
        """

        def ask(n: int) -> models.RolloutsAnswer:
            return answers.rollouts(
                workspace, meant(project), where, run, split, text, order_by, columns, rows, n, after
            )

        return said(lambda: bounded(ask, limit))

    @server.tool(annotations=reads)
    def report(run: str, split: str = "rollout", project: str | None = None) -> models.ReportAnswer:
        """What is wrong with a run: ranked diagnoses with their first step, the filter behind them, and advice."""
        return said(lambda: answers.report(workspace, meant(project), run, split))

    @server.tool(annotations=reads)
    def explain(
        run: str, step: int, split: str = "rollout", project: str | None = None
    ) -> models.ExplanationAnswer:
        """What differs at a step from the ten before it, with typical rollouts."""
        return said(lambda: answers.explain(workspace, meant(project), run, step, split))

    @server.tool(annotations=reads)
    def read_rollout(id: str, first_turn: int = 0, project: str | None = None) -> models.RolloutAnswer:
        """One rollout by uid or trace id: metadata, flags, turns with token positions, labels."""
        return said(lambda: answers.rollout(workspace, meant(project), id, first_turn))

    @server.tool(annotations=reads)
    def compare(a: str, b: str, project: str | None = None) -> models.ComparisonAnswer:
        """Two rollouts: the tokens that they share and the numbers that differ."""
        return said(lambda: answers.compare(workspace, meant(project), a, b))

    @server.tool(annotations=reads)
    def flips(
        run: str, first: int, last: int, split: str = "eval-rollout", project: str | None = None
    ) -> models.FlipsAnswer:
        """Prompts that a run's evaluations at two steps solved differently."""
        return said(lambda: answers.flips(workspace, meant(project), run, first, last, split))

    @server.tool(annotations=reads)
    def events(run: str, split: str = "rollout", project: str | None = None) -> models.EventsAnswer:
        """What happened in a run: first and last seen, change points, attempts, gaps."""
        return said(lambda: answers.events(workspace, meant(project), run, split))

    @server.tool(annotations=reads)
    def check_citations(text: str, project: str | None = None) -> models.CitationsAnswer:
        """Whether every rollout:UID and rollout:UID#FIRST-LAST of a text leads to a rollout and tokens."""
        return said(
            lambda: answers.citations(workspace, models.CheckedText(project=meant(project), text=text))
        )

    @server.tool(annotations=reads)
    def labels(id: str, project: str | None = None) -> models.LabelsAnswer:
        """The labels and notes on a rollout, each with its id."""
        return said(lambda: answers.labels(workspace, meant(project), id))

    if author is not None:
        _add_writing(server, workspace, author, said)

    if inspector is not None:

        @server.tool(name="open", annotations=moves)
        def open_page(state: dict[str, str]) -> models.OpenedAnswer:
            """Asks the page that a person looks at to show a state of its address, such as
            {"project": "gsm8k", "tab": "rollouts", "id": "..."}; it moves where the person allows it."""
            return said(lambda: open_elsewhere(inspector, token, state))

    return server


def _add_writing(
    server: MCPServer, workspace: Workspace, author: str, said: Callable[[Callable[[], Any]], Any]
) -> None:
    from mcp.types import ToolAnnotations

    adds = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
    removes = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)

    def meant(project: str | None) -> str:
        found = only_project(workspace, project)
        workspace.refresh(found)
        return found

    def written(new: models.NewLabel) -> models.LabelsAnswer:
        with asking(Visitor(author)):
            return answers.add_label(workspace, new)

    @server.tool(annotations=adds)
    def label(
        id: str, text: str, kind: Literal["label", "note"] = "label", turn: int | None = None,
        start: int | None = None, stop: int | None = None, project: str | None = None,
    ) -> models.LabelsAnswer:  # fmt: skip
        """Puts a label (a name that filters find) or a note on a rollout, one of its turns, or its tokens from
        `start` to before `stop`. It is kept beside the project under the name of this tool's author."""
        return said(
            lambda: written(
                models.NewLabel(
                    project=meant(project), id=id, kind=kind, text=text, turn=turn, start=start, stop=stop
                )
            )
        )

    @server.tool(annotations=removes)
    def remove_label(id: str, label_id: str, project: str | None = None) -> models.LabelsAnswer:
        """Takes back a label or a note that this tool's author put on a rollout, by its own id."""
        return said(
            lambda: written(models.NewLabel(project=meant(project), id=id, kind="removed", text=label_id))
        )
