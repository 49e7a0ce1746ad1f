"""The answers as tools for agents, over the Model Context Protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from rollout_traces.errors import RolloutTracesError
from rollout_traces.extras import extra
from rollout_traces.inspector.api import answers, models
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
and check a report with `check_citations` before you give it. Text of rollouts was written by models and environments
that are being trained. """
    + NOTICE
)


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

    server = MCPServer("rollout-traces", instructions=INSTRUCTIONS, log_level="WARNING")

    def said(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except RolloutTracesError as error:
            raise ToolError(str(error)) from error

    @server.tool()
    def projects() -> models.ProjectsAnswer:
        """The projects that there are."""
        return said(lambda: answers.projects(workspace))

    @server.tool()
    def runs(project: str) -> models.RunsAnswer:
        """The runs of a project with their splits and last steps."""
        return said(lambda: answers.runs(workspace, project))

    @server.tool()
    def columns(project: str) -> models.ColumnsAnswer:
        """The columns that filters, orders and rows can name, with their meanings."""
        return said(lambda: answers.columns(workspace, project))

    @server.tool()
    def query(
        project: str, where: str = "", run: str | None = None, split: str | None = None, text: str | None = None,
        order_by: str | None = None, columns: str = "", rows: str = "traces", limit: int = 20,
        after: str | None = None,
    ) -> models.RolloutsAnswer:  # fmt: skip
        """Rollouts that satisfy a filter such as "reward < 0.5 and flags has 'truncated'", a page at a time.

        `columns`: names with commas between. `rows`: traces (kept with text) or all. `after`: `next` of the page before.
        """
        return said(
            lambda: answers.rollouts(
                workspace, project, where, run, split, text, order_by, columns, rows, limit, after
            )
        )

    @server.tool()
    def report(project: str, run: str, split: str = "rollout") -> models.ReportAnswer:
        """What is wrong with a run: ranked diagnoses with their first step, the filter behind them, and advice."""
        return said(lambda: answers.report(workspace, project, run, split))

    @server.tool()
    def explain(project: str, run: str, step: int, split: str = "rollout") -> models.ExplanationAnswer:
        """What differs at a step from the ten before it, with typical rollouts."""
        return said(lambda: answers.explain(workspace, project, run, step, split))

    @server.tool()
    def read_rollout(project: str, id: str, first_turn: int = 0) -> models.RolloutAnswer:
        """One rollout by uid or trace id: metadata, flags, turns with token positions, labels."""
        return said(lambda: answers.rollout(workspace, project, id, first_turn))

    @server.tool()
    def compare(project: str, a: str, b: str) -> models.ComparisonAnswer:
        """Two rollouts: the tokens that they share and the numbers that differ."""
        return said(lambda: answers.compare(workspace, project, a, b))

    @server.tool()
    def flips(
        project: str, run: str, first: int, last: int, split: str = "eval-rollout"
    ) -> models.FlipsAnswer:
        """Prompts that a run's evaluations at two steps solved differently."""
        return said(lambda: answers.flips(workspace, project, run, first, last, split))

    @server.tool()
    def events(project: str, run: str, split: str = "rollout") -> models.EventsAnswer:
        """What happened in a run: first and last seen, change points, attempts, gaps."""
        return said(lambda: answers.events(workspace, project, run, split))

    @server.tool()
    def check_citations(project: str, text: str) -> models.CitationsAnswer:
        """Whether every rollout:UID and rollout:UID#FIRST-LAST of a text leads to a rollout and tokens."""
        return said(lambda: answers.citations(workspace, models.CheckedText(project=project, text=text)))

    @server.tool()
    def labels(project: str, id: str) -> models.LabelsAnswer:
        """The labels and notes on a rollout, each with its id."""
        return said(lambda: answers.labels(workspace, project, id))

    if author is not None:
        _add_writing(server, workspace, author, said)

    if inspector is not None:

        @server.tool(name="open")
        def open_page(state: dict[str, str]) -> models.OpenedAnswer:
            """Asks the page that a person looks at to show a state of its address, such as
            {"project": "gsm8k", "tab": "rollouts", "id": "..."}; it moves where the person allows it."""
            return said(lambda: open_elsewhere(inspector, token, state))

    return server


def _add_writing(
    server: MCPServer, workspace: Workspace, author: str, said: Callable[[Callable[[], Any]], Any]
) -> None:
    def written(new: models.NewLabel) -> models.LabelsAnswer:
        with asking(Visitor(author)):
            return answers.add_label(workspace, new)

    @server.tool()
    def label(
        project: str, id: str, text: str, kind: Literal["label", "note"] = "label", turn: int | None = None,
        start: int | None = None, stop: int | None = None,
    ) -> models.LabelsAnswer:  # fmt: skip
        """Puts a label (a name that filters find) or a note on a rollout, one of its turns, or its tokens from
        `start` to before `stop`. It is kept beside the project under the name of this tool's author."""
        new = models.NewLabel(project=project, id=id, kind=kind, text=text, turn=turn, start=start, stop=stop)
        return said(lambda: written(new))

    @server.tool()
    def remove_label(project: str, id: str, label_id: str) -> models.LabelsAnswer:
        """Takes back a label or a note that this tool's author put on a rollout, by its own id."""
        new = models.NewLabel(project=project, id=id, kind="removed", text=label_id)
        return said(lambda: written(new))
