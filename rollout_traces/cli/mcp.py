"""`rollout-traces mcp`: the runs of this machine as tools for an agent."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rollout_traces.cli import options


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("mcp")(mcp)


def mcp(
    project: options.Project = None,
    server_url: options.ServerUrl = None,
    space: options.Space = None,
    inspector: Annotated[
        str | None,
        typer.Option(
            help="Address of a running inspector whose page the tool `open` moves; its token in ROLLOUT_TRACES_TOKEN."
        ),
    ] = None,
    author: Annotated[
        str | None,
        typer.Option(
            help="Let the agent put labels and notes on rollouts, under this name; without it, it only reads."
        ),
    ] = None,
) -> None:
    """Serve query, explain, read, compare and, with --author, labels to an agent over standard input and output (MCP).

    Example: claude mcp add rollouts -- rollout-traces mcp -p gsm8k
    """
    from rollout_traces.inspector.access import VARIABLE
    from rollout_traces.inspector.api.tools import build_tools
    from rollout_traces.inspector.workspace import Workspace

    workspace = Workspace(
        server_url=server_url,
        space=space,
        projects=(project,) if project else (),
        may_label=author is not None,
    )
    build_tools(workspace, inspector, os.environ.get(VARIABLE), author).run("stdio")
