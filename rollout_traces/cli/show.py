"""`rollout-traces show`: the inspector."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("show")(show)


def show(
    project: Annotated[
        str | None,
        typer.Option("--project", "-p", help="Project to open; all on this machine when none is named."),
    ] = None,
    server_url: Annotated[str | None, typer.Option(help="Read from this Trackio server instead.")] = None,
    space: Annotated[str | None, typer.Option(help="Read from this Hugging Face Space, user/name.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Reads are open to whoever can reach it.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port; the first free one from 7861 by default.")] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further Host name to answer, for a proxy or notebook; repeatable."),
    ] = None,
    root_path: Annotated[str, typer.Option(help="The prefix under which a proxy serves the page.")] = "",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
) -> None:
    """Open the inspector: from a curve to a step, a group, a sample, a token.

    Trackio's own dashboard is at /trackio/ of the same address.

    Example: rollout-traces show --project gsm8k
    """
    from rollout_traces.errors import RolloutTracesError

    try:
        _serve(project, server_url, space, host, port, tuple(allow_host or ()), root_path, no_browser)
    except RolloutTracesError as error:
        typer.secho(str(error), err=True, fg="red")
        raise typer.Exit(1) from error


def _serve(
    project: str | None,
    server_url: str | None,
    space: str | None,
    host: str,
    port: int | None,
    allow_hosts: tuple[str, ...],
    root_path: str,
    no_browser: bool,
) -> None:
    try:
        import gradio  # noqa: F401
        import uvicorn
    except ImportError as error:
        typer.secho(
            f"The inspector needs {error.name}: pip install 'rollout-traces[inspector]'", err=True, fg="red"
        )
        raise typer.Exit(1) from error
    from rollout_traces.inspector.guard import is_loopback
    from rollout_traces.inspector.server import ServerOptions, build_server, checked_port, free_port
    from rollout_traces.inspector.workspace import Workspace

    workspace = Workspace(server_url=server_url, space=space, projects=(project,) if project else ())
    if workspace.is_local:
        _recover(project)
    if project is not None:
        _index(workspace, project)
    if not is_loopback(host):
        typer.secho(
            f"Listening on {host}: whoever can reach this machine can read every rollout, and through "
            "/trackio/ query the whole project. Nothing asks for a password.",
            err=True,
            fg="yellow",
        )
    options = ServerOptions(
        host=host, allow_hosts=allow_hosts, root_path=root_path, mount_trackio=workspace.has_dashboard
    )
    chosen = free_port(host) if port is None else checked_port(host, port)
    app = build_server(workspace, options)
    address = page_address(host, chosen, root_path, project)
    typer.echo(f"Inspector: {address}   (Ctrl+C to stop)")
    if options.mount_trackio:
        typer.echo(f"Trackio's dashboard: {page_address(host, chosen, root_path)}trackio/")
    if not no_browser:
        webbrowser.open(address)
    uvicorn.run(app, host=host, port=chosen, log_level="warning", ws="none")


def page_address(host: str, port: int, root_path: str = "", project: str | None = None) -> str:
    """The address to open in a browser."""
    from urllib.parse import quote

    name = "127.0.0.1" if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
    query = f"?project={quote(project)}" if project else ""
    return f"http://{name}:{port}{root_path.rstrip('/')}/{query}"


def _index(workspace: object, project: str) -> None:
    """Brings the index up to date before the page opens, with a bar when that takes a while."""
    from rollout_traces.cli.progress import progress_bar
    from rollout_traces.inspector.workspace import Workspace

    assert isinstance(workspace, Workspace)
    with progress_bar("indexing") as report:
        workspace.opened(project).refresh(report)


def _recover(project: str | None) -> None:
    """Processes what a killed trainer left behind, in the background; the page shows it as it comes."""
    from rollout_traces.worker.recovery import recover_in_background

    for left in recover_in_background(project):
        typer.echo(f"Recovering {left.n_records} records of {left.project}, run {left.run_name}.")
