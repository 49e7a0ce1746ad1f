"""One process, one address: the inspector at `/`, its session at `/session`, Trackio's dashboard at `/trackio/`.

Connections have limits that uvicorn does not have by default.

The page is a Gradio app with one component a page: a `gr.HTML` whose template, style and script are files of its own, a
folder `components/<name>/` that holds `template.html` (the empty frame), `style.css` (joined into the page's one sheet)
and `script.js` (a module that exports `mount(element, server)`, joined with the others into one script). Data comes
through server functions, those of the page's entry in `registry.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import mimetypes
import os
import socket
from collections.abc import Awaitable, Callable
from functools import wraps
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
import h11
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from rollout_traces.errors import ConfigError, RolloutTracesError
from rollout_traces.inspector.access import DASHBOARD, Access, Visitor, who_asks
from rollout_traces.inspector.assets import SCRIPTS, STYLE, bundle, icon, katex
from rollout_traces.inspector.few_at_once import give_back_large_blocks
from rollout_traces.inspector.guard import FIRST_PORT, Guard, ServerOptions, error_response, script_hashes
from rollout_traces.inspector.registry import PAGES, rules
from rollout_traces.inspector.trackio_mount import trackio_app, trackio_images
from rollout_traces.inspector.viewers import installed_viewers
from rollout_traces.inspector.workspace import (
    Function,
    Workspace,
    answer_of,
    as_json,
    read_request,
)
from rollout_traces.model.units import KB
from rollout_traces.store import QueryError
from rollout_traces.store.time_limit import time_limit

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
    from fastapi import FastAPI

    from rollout_traces.inspector.api.http import PREFIX, api_app

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
    return Guard(app, options, access, served, hashes=script_hashes(head.encode()), no_dashboard=missing)


def _add_assets(app: FastAPI) -> None:
    files = bundle()

    @app.get("/inspector/{digest}/{name:path}", include_in_schema=False)
    def inspector_asset(digest: str, name: str) -> Response:
        if digest != files.digest or name not in files.files:
            return PlainTextResponse("Not found", HTTPStatus.NOT_FOUND)
        headers = {"Cache-Control": "private, max-age=31536000, immutable"}
        return Response(files.files[name], media_type=mimetypes.guess_type(name)[0], headers=headers)


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
    app.mount("/static/trackio", trackio_images())
    app.mount(DASHBOARD, dashboard)
    return ""


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

    return [Route("/session", sign_in, methods=["POST"]), Route("/session", current, methods=["GET"])]


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


os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
for _type, _ending in (("text/javascript", ".js"), ("text/css", ".css")):
    mimetypes.add_type(_type, _ending)  # a system may say otherwise, and browsers then run no module


_FOLDER = Path(__file__).parent / "components"
_MOUNT = """
const base = (window.gradio_config?.root || document.baseURI).replace(/\\/$/, "");
import(base + %(script)s)
  .then(module => module.entries[%(name)s].mount(element, server))
  .catch(error => { element.textContent = "The inspector's script did not load: " + error; });
"""
_EARLY_THEME = """<script>
(() => {
  let theme = null;
  try { theme = localStorage.getItem("rt-theme"); } catch (error) { theme = null; }
  theme = theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.rtTheme = theme;
})();
</script>"""


def build_blocks(workspace: Workspace) -> gr.Blocks:
    """Builds the page.

    Args:
        workspace: what the pages read.

    Returns:
        Blocks with one custom component a page, each named by its `elem_id`.
    """
    address = json.dumps(f"/inspector/{bundle().digest}/{SCRIPTS}")
    with gr.Blocks(title="rollout traces", analytics_enabled=False, fill_width=True) as blocks:
        for page in PAGES:
            gr.HTML(
                value="",
                html_template=(_FOLDER / page.name / "template.html").read_text("utf-8"),
                js_on_load=_MOUNT % {"script": address, "name": json.dumps(page.name)},
                apply_default_css=False,
                elem_id=f"rt-{page.name}",
                elem_classes=["rt-view", "rt-page"] if page.title else ["rt-view"],
                server_functions=[_bind(function, workspace) for function in page.functions],
            )
    return blocks


def page_head(root_path: str) -> str:
    """Writes the page's head: the style sheet and the scripts' settings. Everybody may read it.

    Args:
        root_path: the prefix under which a proxy serves the app.

    Returns:
        HTML.
    """
    base = f"{root_path.rstrip('/')}/inspector/{bundle().digest}"
    settings = {
        "assets": base,
        "pages": [{"name": page.name, "title": page.title, "key": page.key} for page in PAGES if page.title],
        "katex": katex(),
        "viewers": bool(installed_viewers()),
    }
    inline = json.dumps(settings).replace("<", "\\u003c")
    return (
        f'<link rel="stylesheet" href="{base}/{STYLE}">\n'
        f'<link rel="icon" type="image/svg+xml" href="{icon()}">\n'
        f"<script>window.rolloutTraces = {inline};</script>\n{_EARLY_THEME}"
    )


def _bind(function: Function, workspace: Workspace) -> Callable[[Any], Awaitable[Response]]:
    """A server function that answers with ready JSON.

    A Response passes through the web framework as it is; a large dict would be walked and copied first.
    """

    @wraps(function)
    async def answer(request: Any) -> Response:
        body = await workspace.few_at_once.run(
            lambda: answered(function, workspace, request), function.__name__
        )
        return Response(body, media_type="application/json")

    answer.__annotations__ = {}
    del answer.__wrapped__
    return answer


def answered(function: Function, workspace: Workspace, request: Any) -> bytes:
    """Calls a server function and gives its answer as JSON: `{"ok": ...}` or `{"error": {...}}`.

    Args:
        workspace: what it reads.
        request: what the page sent.
    """
    try:
        with time_limit(workspace.query_seconds):
            body = {"ok": answer_of(function, workspace, read_request(function, request))}
    except RolloutTracesError as error:
        body = {"error": error_payload(error)}
    except Exception as error:  # noqa: BLE001 - a view must say what happened, and the log keeps the trace
        _LOG.exception("inspector: %s failed", function.__name__)
        body = {"error": {"message": f"{type(error).__name__}: {error}", "kind": "internal"}}
    return as_json(body)


def error_payload(error: RolloutTracesError) -> dict[str, Any]:
    """Picks what the page shows of an error; a query's error points at the bad token."""
    if isinstance(error, QueryError):
        place = {"query": error.text, "start": error.start, "stop": error.stop}
        return {"message": error.what, "kind": "QueryError", **place}
    return {"message": str(error), "kind": type(error).__name__}
