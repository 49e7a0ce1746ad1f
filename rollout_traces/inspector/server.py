"""One process, one address: the inspector at `/`, its session at `/session`, Trackio's dashboard at `/trackio/`.

Connections have limits that uvicorn does not have by default; a first question is asked ahead of the first page.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.access import DASHBOARD, Access, Visitor, who_asks
from rollout_traces.inspector.assets import Asset, bundle
from rollout_traces.inspector.few_at_once import give_back_large_blocks
from rollout_traces.inspector.guard import FIRST_PORT, Guard, ServerOptions, error_response, script_hashes
from rollout_traces.inspector.routes import rules
from rollout_traces.inspector.trackio_mount import dashboard_files, trackio_app
from rollout_traces.inspector.workspace import SplitView, Workspace
from rollout_traces.model.units import KB

if TYPE_CHECKING:
    from fastapi import FastAPI


def build_server(workspace: Workspace, options: ServerOptions | None = None) -> Guard:
    """Builds the whole application, its guard in front.

    Args:
        workspace: what the pages read.
        options: how it is served.

    Raises:
        ConfigError: a proxy or a frame ancestor cannot be understood.
    """
    import gradio as gr
    from fastapi import FastAPI

    from rollout_traces.inspector.api.http import PREFIX, api_app
    from rollout_traces.inspector.app import build_blocks, early_files, page_head

    options = options or ServerOptions()
    access = Access(options.token, options.owner, options.named_tokens)
    dashboard = f"{options.prefix}{access.dashboard}"
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_assets(app)
    app.mount(PREFIX, api_app(workspace))
    missing = "it was not asked for"
    if options.mount_trackio:
        missing = _mount_trackio(app, workspace, options, dashboard)
    app.router.routes.extend(_session_routes(access, None if missing else f"{dashboard}/"))
    head = page_head(options.prefix)
    gr.mount_gradio_app(
        app,
        build_blocks(workspace),
        path="/",
        root_path=options.root_path or None,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        theme=gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        head=head,
        show_error=False,
    )
    served = rules(
        trackio=not missing,
        sql=options.trackio_sql,
        writes=options.write_token is not None,
        space=options.hub_writer is not None,
    )
    hashes, early = script_hashes(head.encode()), early_files(options.prefix)
    return Guard(app, options, access, served, hashes=hashes, early=early, no_dashboard=missing)


def _add_assets(app: FastAPI) -> None:
    files = bundle()

    @app.get("/inspector/{digest}/{name:path}", include_in_schema=False)
    def inspector_asset(digest: str, name: str) -> Response:
        known = files.files if digest == files.digest else {}
        return _respond(known.get(name), "private, max-age=31536000, immutable")

    @app.get("/static/trackio/{name}", include_in_schema=False)
    def trackio_image(name: str) -> Response:
        return _respond(dashboard_files().get(f"static/trackio/{name}"), "private, max-age=3600")


def _respond(asset: Asset | None, caching: str) -> Response:
    if asset is None:
        return PlainTextResponse("Not found", HTTPStatus.NOT_FOUND)
    headers = {"Cache-Control": caching, "X-Content-Type-Options": "nosniff"}
    return Response(asset.body, media_type=asset.media_type, headers=headers)


def _mount_trackio(app: FastAPI, workspace: Workspace, options: ServerOptions, base: str) -> str:
    """Mounts the dashboard, whose page asks for everything below `base`; why it could not be, empty where it could."""
    try:
        dashboard = trackio_app(options, base, workspace.projects if workspace.is_restricted else None)
    except Exception as error:  # noqa: BLE001 - said, and the inspector starts without it
        return f"{type(error).__name__}: {error}"

    @app.get(DASHBOARD, include_in_schema=False)
    def add_slash() -> Response:
        return RedirectResponse("trackio/")

    if options.hub_writer is not None:
        for path, method in (("/version", "GET"), ("/api/upload", "POST"), ("/api/{name}", "POST")):
            app.router.routes.append(Route(path, dashboard, methods=[method]))
    app.mount(DASHBOARD, dashboard)
    return ""


PATH = "/session"
WRONG = "This token is not this server's: it may have been started anew since."


def _session_routes(access: Access, dashboard: str | None) -> list[Route]:
    """The session of a visitor, who is told the address of Trackio's dashboard; None where it is not served."""

    def about(visitor: Visitor) -> dict[str, Any]:
        return {"name": visitor.name, "owner": visitor.owner, "dashboard": dashboard}

    async def sign_in(request: Request) -> Response:
        try:
            token = json.loads(await request.body())["token"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return error_response('Expected {"token": "…"}.', "token", HTTPStatus.BAD_REQUEST)
        visitor = access.of_token(token) if isinstance(token, str) else None
        if visitor is None:
            return error_response(WRONG, "token", HTTPStatus.UNAUTHORIZED)
        return JSONResponse({"key": access.session_key(visitor), **about(visitor)})

    async def current(request: Request) -> Response:
        return JSONResponse(about(who_asks()))

    return [Route(PATH, sign_in, methods=["POST"]), Route(PATH, current, methods=["GET"])]


HEAD_SECONDS = 10.0
"""Seconds that the head of a request may take to arrive."""
MOST_CONNECTIONS = 256
MOST_HEAD_BYTES = 64 * KB
MOST_PORTS = 100


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request does not arrive."""

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A connection was opened: a request has to follow."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Part of a request, or all of it."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._expect()
        else:
            self._arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed."""
        self._arrived()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._overdue is None:
            self._overdue = self.loop.call_later(HEAD_SECONDS, self._close)

    def _arrived(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _close(self) -> None:
        self._overdue = None
        if not self.transport.is_closing():
            self.transport.close()


def listen(host: str, port: int | None = None) -> socket.socket:
    """Takes connections from now on; they wait until `serve` answers them.

    Args:
        host: address to bind.
        port: port to listen on; the first free one from `FIRST_PORT` on when None.

    Raises:
        ConfigError: nobody can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last = FIRST_PORT + MOST_PORTS - 1
    for tried in range(FIRST_PORT, last + 1) if port is None else (port,):
        try:
            return socket.create_server((host, tried), family=family, backlog=MOST_CONNECTIONS)
        except OSError as error:
            if port is None and error.errno == errno.EADDRINUSE:
                continue
            reason = str(error.strerror).partition(" (")[0]
            raise ConfigError(
                f"port {tried} on {host}: {reason}. Name another (--port, --host; PORT in a container)."
            ) from error
    raise ConfigError(f"no free port between {FIRST_PORT} and {last} on {host}; name one with --port.")


def serve(server: Guard, listening: socket.socket) -> None:
    """Serves until the process is asked to stop.

    Args:
        server: what is served.
        listening: where.
    """
    give_back_large_blocks()
    config = uvicorn.Config(
        server,
        http=TimedProtocol,
        ws="none",
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


_LOG = logging.getLogger(__name__)


def warm_up(workspace: Workspace) -> threading.Thread | None:
    """Asks in a thread of its own; None where nothing is asked, since there are several projects or none here.

    Args:
        workspace: what the pages read.
    """
    if not workspace.is_local or len(projects := workspace.projects()) != 1:
        return None
    thread = threading.Thread(target=_ask, args=(workspace, projects[0]), daemon=True)
    thread.start()
    return thread


def _ask(workspace: Workspace, project: str) -> None:
    from rollout_traces.inspector.pages.rollouts import AskedSamples, metrics, rollout, samples
    from rollout_traces.inspector.pages.shell import catalog

    try:
        workspace.store(project)
        for run in catalog(workspace, project).runs[:1]:
            for split in run.splits[:1]:
                view = SplitView(workspace, project, run.name, split.name)
                for step in split.steps[-1:]:
                    groups = samples(view, step, AskedSamples()).groups or []
                    for card in [card for group in groups for card in group.samples][:1]:
                        rollout(view, card.id or "")
                    metrics(view)
    except Exception as error:  # noqa: BLE001 - the next question raises it again
        _LOG.debug("asked ahead of the first page: %s", error)
