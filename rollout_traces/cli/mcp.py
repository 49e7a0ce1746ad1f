"""`rollout-traces mcp`: the runs of this machine as tools for an agent."""

from __future__ import annotations

import os

import typer

from rollout_traces.cli import options


def mcp(
    *,
    source: options.From,
    inspector: str | None = None,
    http: int | None = None,
    author: str | None = None,
) -> None:
    """Serve query, explain, read, compare and, with --author, labels to an agent (MCP).

    Example: claude mcp add rollouts -- rollout-traces mcp -p gsm8k

    Args:
        inspector: Address of a running inspector whose page the tool `open` moves; its token in
            ROLLOUT_TRACES_TOKEN.
        http: Serve over HTTP at this port of 127.0.0.1, /mcp, in place of standard input and output.
        author: Let the agent put labels and notes on rollouts, under this name; without it, it only reads.
    """
    from rollout_traces.inspector.access import VARIABLE
    from rollout_traces.inspector.api.tools import build_tools
    from rollout_traces.inspector.workspace import Workspace

    workspace = Workspace(
        server_url=source.server_url,
        space=source.space,
        projects=(source.project,) if source.project else (),
        may_label=author is not None,
    )
    server = build_tools(workspace, inspector, os.environ.get(VARIABLE), author)
    if http is None:
        server.run("stdio")
        return
    import uvicorn

    from rollout_traces.inspector.access import chosen_token
    from rollout_traces.inspector.api.tools import with_token

    token = chosen_token("127.0.0.1", False)
    assert token is not None  # none is chosen only where that was asked for
    typer.echo(f"Tools: http://127.0.0.1:{http}/mcp   Authorization: Bearer {token}", err=True)
    app = with_token(server.streamable_http_app(host="127.0.0.1"), token)
    uvicorn.run(app, host="127.0.0.1", port=http, log_level="warning")
