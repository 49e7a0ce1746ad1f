"""`rollout-traces show`: the inspector; also of a dump of another tool without an import, and of the example: projects that go when the command ends."""

from __future__ import annotations

import atexit
import io
import os
import shlex
import shutil
import stat
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer
from rich.filesize import decimal

from rollout_traces.cli.options import login, progress_bar, remember, remembered
from rollout_traces.cli.printing import sentence
from rollout_traces.errors import ConfigError, StoreError, extra
from rollout_traces.inspector.access import LARGEST_PORT, PARAMETER, checked_token, is_loopback
from rollout_traces.model.names import file_stem

if TYPE_CHECKING:
    from rollout_traces.inspector.guard import ServerOptions
    from rollout_traces.inspector.workspace import Workspace


OFFERED = 5
"""Places opened before that are named."""


def show(
    dump: Path | None = None,
    *,
    project: Annotated[str | None, typer.Option("--project", "-p")] = None,
    run: str | None = None,
    example: bool = False,
    server_url: str | None = None,
    space: str | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=LARGEST_PORT)] = None,
    no_token: bool = False,
    allow_host: list[str] | None = None,
    trusted_proxy: list[str] | None = None,
    frame_ancestor: list[str] | None = None,
    root_path: str = "",
    no_labels: bool = False,
    no_trackio: bool = False,
    trackio_sql: bool = False,
    receive_logs: bool = False,
    query_seconds: float = 30.0,
    no_browser: bool = False,
) -> None:
    """Open the inspector: from a curve to a step, a group, a sample, a token.

    The printed address holds a token; keep it to yourself. Trackio's own
    dashboard is at the second address.

    Example: rollout-traces show --example
    Example: rollout-traces show --project gsm8k --run run-1
    Example: rollout-traces show ./outputs/rollout_data

    Args:
        dump: A dump to look at without importing it: files of another tool, in a project that goes again.
        project: Project to open, or where an export lies (a folder, s3://…, hf://…); all on this machine by
            default.
        run: Open this run of the project.
        example: Open a small run that comes with the package; nothing is kept of it.
        server_url: Read from this Trackio server instead.
        space: Read from this Hugging Face Space, user/name.
        host: Address to listen on. Whoever has the printed address can read.
        port: Port; the first free one from 7861 by default.
        no_token: Ask for no token; every user of this machine can read then.
        allow_host: A further Host name to answer, for a proxy or notebook; repeatable.
        trusted_proxy: Address or network of a proxy whose X-Forwarded headers count; repeatable.
        frame_ancestor: A site that may show the page in a frame, https://name; repeatable.
        root_path: The prefix under which a proxy serves the page.
        no_labels: Whoever reads may not label rollouts or write notes.
        no_trackio: Do not serve Trackio's dashboard beside it.
        trackio_sql: Also serve Trackio's SQL, one bounded SELECT a call.
        receive_logs: Take what runs log, with the token in TRACKIO_WRITE_TOKEN.
        query_seconds: Seconds that one question of a page may take before it is stopped.
        no_browser: Do not open a browser.
    """
    typer.echo("Starting…", err=True)  # what is imported next takes seconds, and much longer from a cold disk
    state: dict[str, str] = {}
    with ExitStack() as place:
        if (example or dump) and (project or server_url or space or (example and dump)):
            what, others = ("--example", "a dump, ") if example else ("a dump", "")
            raise ConfigError(
                f"{what} is a project of its own. Leave {others}--project, --server-url and --space out."
            )
        if run is not None:
            if not project:
                raise ConfigError("--run without --project: a run is one of a project.")
            state = {"tab": "run", "run": run}
        if example:
            project, state, no_trackio = place.enter_context(example_home()), FIRST_PAGE, True
        elif dump:
            project, no_trackio = place.enter_context(dump_home(dump)), True
        elif not project and not server_url and not space:
            _offer()
        _need_the_extra()
        from rollout_traces.inspector.access import chosen_token, named_tokens
        from rollout_traces.inspector.guard import ServerOptions
        from rollout_traces.inspector.server import build_server, listen, serve
        from rollout_traces.inspector.workspace import Workspace

        workspace = Workspace(
            server_url=server_url,
            space=space,
            projects=(project,) if project else (),
            query_seconds=query_seconds,
            may_label=not no_labels,
        )
        owner = login()
        listening = place.enter_context(listen(host, port))  # a browser that is opened early waits
        options = ServerOptions(
            host=host,
            port=listening.getsockname()[1],
            token=chosen_token(host, no_token),
            owner=owner,
            named_tokens=named_tokens(os.environ, owner),
            allow_hosts=tuple(allow_host or ()),
            trusted_proxies=tuple(trusted_proxy or ()),
            frame_ancestors=tuple(frame_ancestor or ()),
            root_path=root_path,
            mount_trackio=workspace.is_local and not no_trackio,
            trackio_sql=trackio_sql,
            write_token=_write_token(no_trackio) if receive_logs else None,
        )
        address = page_address(options, project, **state)
        if workspace.is_local:
            _recover(project)
        if project is None:
            workspace.projects()  # a server that does not answer says so here
        else:
            _index(workspace, project, run)
            if not server_url and not space:
                remember(str(Path(project).resolve()) if Path(project).is_dir() else project)
        if not is_loopback(host):
            _warn(
                f"Listening on {host}: whoever has the address below can read every rollout. Over http it "
                "travels unencrypted; put a proxy with https in front of it."
            )
        server = build_server(workspace, options)
        typer.echo(f"Inspector: {address}   (Ctrl+C to stop)")
        if not server.no_dashboard:
            typer.echo(f"Trackio's dashboard: {server_address(options)}{server.access.dashboard}/")
        elif options.mount_trackio:
            _warn(f"Trackio's dashboard is not served: {server.no_dashboard}")
        if options.write_token is not None:
            typer.echo(
                'Runs log to it: server_url="<the address>/trackio/?write_token=<TRACKIO_WRITE_TOKEN>"'
            )
        if not no_browser:
            _open_browser(address)
        serve(server, listening)


def _offer() -> None:
    """Names what was opened or written before and can be opened from here, and when."""
    places = [place for place in remembered() if _is_there(place.name)]
    if places:
        typer.echo("Opened or written before:")
    for place in places[:OFFERED]:
        when = datetime.fromtimestamp(place.last).strftime("%d %b %H:%M")
        typer.echo(f"{when}  {sentence(place.command)}")


def _is_there(name: str) -> bool:
    """Whether it is an address, a path that exists, or a project of this machine's Trackio folder."""
    from rollout_traces.store.places import local_projects

    path = Path(name)
    return "://" in name or (path.is_absolute() and path.exists()) or name in local_projects()


def _need_the_extra() -> None:
    with extra("inspector", "the inspector"):
        import gradio  # noqa: F401
        import uvicorn  # noqa: F401


def _write_token(no_trackio: bool) -> str:
    """The token of those who log.

    Raises:
        ConfigError: there is none, a short one, or nothing that could take what they log.
    """
    if no_trackio:
        raise ConfigError("--receive-logs with --no-trackio: it is Trackio that takes what runs log.")
    name = "TRACKIO_WRITE_TOKEN"
    return checked_token(f"--receive-logs: {name}", os.environ.get(name, ""))


def page_address(options: ServerOptions, project: str | None = None, **state: str) -> str:
    """The address to open in a browser, its token in the fragment, which a browser keeps to itself.

    Args:
        options: how it is served.
        project: the project that is open.
        **state: further names and values of a page's address, such as `page`.
    """
    query = f"?{urlencode({'project': project, **state})}" if project else ""
    token = f"#{urlencode({PARAMETER: options.token})}" if options.token else ""
    return f"{server_address(options)}/{query}{token}"


def server_address(options: ServerOptions) -> str:
    """Writes the address of the server, a proxy's prefix included, without a slash at its end."""
    host = options.host
    name = "127.0.0.1" if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{options.port}{options.prefix}"


def _open_browser(address: str) -> None:
    """Opens a file of this user's that leads to the address.

    An address in a command line can be read by every user of the machine while the browser starts.
    """
    folder = Path(tempfile.mkdtemp(prefix="rollout-traces-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    page = folder / "open.html"
    page.touch(stat.S_IRUSR | stat.S_IWUSR)
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><title>rollout traces</title>'
        f'<meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0;url={escape(address)}">'
        f'<a href="{escape(address)}">rollout traces</a>'
    )
    webbrowser.open(page.as_uri())


def _warn(text: str) -> None:
    typer.secho(text, err=True, fg="yellow")


def _index(workspace: Workspace, project: str, run: str | None) -> None:
    """Brings the index up to date before the page opens, with a bar when that takes a while.

    Raises:
        StoreError: there is no such project or run. One that is damaged is named, and its page says so too.
    """
    store = workspace.opened(project)
    try:
        with progress_bar("indexing") as report:
            store.refresh(report)
    except StoreError as error:
        _warn(str(error))
    else:
        if run is not None:
            store.run(run)


def _recover(project: str | None) -> None:
    """Processes what a killed trainer left behind, in the background; the page shows it as it comes."""
    from rollout_traces.worker.recovery import recover_in_background

    for left in recover_in_background(project):
        typer.echo(f"Recovering {left.n_records} records of {left.project}, run {left.run_name}.")


SMALL = 8_000_000
"""Bytes of a dump that is opened without a word; a larger one takes a while, and says so."""
FOLDER = Path(__file__).resolve().parents[1] / "example_run"
"""An export of a run that `examples/tiny_grpo.py --trouble` trained; `make example` writes it anew."""
PROJECT = "tiny-grpo"
FIRST_PAGE = {"tab": "run"}


@contextmanager
def own_folders() -> Iterator[Path]:
    """A place that goes again, in which this process has folders of its own for Trackio, index and labels."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="rollout-traces-") as home:
        for name, folder in (
            ("TRACKIO_DIR", "trackio"),
            ("XDG_CACHE_HOME", "cache"),
            ("XDG_DATA_HOME", "data"),
        ):
            Path(home, folder).mkdir()
            os.environ[name] = str(Path(home, folder))
        try:
            yield Path(home)
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def example_home() -> Iterator[str]:
    """A copy of the run, with folders of its own for Trackio, index and labels; this process stays in it.

    To be entered before Trackio is imported, which reads its folder once.

    Yields:
        The project's name.
    """
    with own_folders() as home:
        shutil.copytree(FOLDER, home / PROJECT)
        before = Path.cwd()
        os.chdir(home)
        try:
            yield PROJECT
        finally:
            os.chdir(before)


@contextmanager
def dump_home(path: Path) -> Iterator[str]:
    """A project of a dump's rollouts; this process stays in its folders.

    To be entered before Trackio is imported, which reads its folder once.

    Args:
        path: a file or folder of any format that `import` reads.

    Yields:
        The project's name, or the path itself where it is an export that is read in place.

    Raises:
        ConfigError: it is not there, or holds no rollouts.
    """
    from rollout_traces.sources.importing import import_rollouts
    from rollout_traces.sources.problems import Problems
    from rollout_traces.sources.scan import scan

    problems = Problems()
    found = scan([path], problems)
    if not found:
        raise ConfigError(str(problems.kept[-1]))
    if {file.format.name for run in found for file in run.files} == {"partitioned-export"}:
        yield str(path)
        return
    remember(str(path.resolve()), "")
    size = sum(run.size for run in found)
    if size > SMALL:
        typer.echo(
            f"{decimal(size)} are read first; rollout-traces import {shlex.quote(str(path))} -p NAME keeps them.",
            err=True,
        )
    with own_folders():
        name = file_stem(path.resolve().stem) or "dump"
        # what Trackio says of its runs would name a project that nobody else can open
        with redirect_stdout(io.StringIO()), progress_bar("reading") as report:
            done = import_rollouts(path, name, progress=report)
        for problem in done.problems.kept:
            typer.secho(sentence(str(problem)), err=True, fg="yellow")
        if not done.rows:
            raise ConfigError(f"{path}: no rollout in it could be read.")
        yield name
