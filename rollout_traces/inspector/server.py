"""One process, one address: the inspector at `/`, its session at `/session`, Trackio's dashboard at `/trackio/`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from rollout_traces.inspector.access import Access, Visitor, who_asks
from rollout_traces.inspector.assets import Asset, bundle, trackio_images
from rollout_traces.inspector.gradio_import import import_gradio
from rollout_traces.inspector.guard import Guard, GuardOptions
from rollout_traces.inspector.origins import HostPolicy, Proxies
from rollout_traces.inspector.response_headers import checked_ancestors, script_hashes
from rollout_traces.inspector.routes import Rule, rules

if TYPE_CHECKING:
    from fastapi import FastAPI

    from rollout_traces.inspector.workspace import Workspace


@dataclass(frozen=True)
class ServerOptions:
    """Options of serving the inspector.

    Attributes:
        host: address to bind; loopback unless asked otherwise.
        port: the port it listens on.
        token: the owner's, which opens the pages; None for no token.
        owner: the owner's name, under which his labels are kept.
        named_tokens: further readers' tokens by their names.
        allow_hosts: further Host names to answer, for proxies and notebooks.
        trusted_proxies: addresses or networks of proxies whose forwarding headers are believed.
        frame_ancestors: sites that may show the page in a frame.
        root_path: the prefix under which a proxy serves it.
        mount_trackio: serve Trackio's dashboard beside it; off for a source that is not local.
        trackio_sql: also Trackio's SQL, one bounded statement a call.
        write_token: take what runs log, of whoever sends this token; None for not.
        hub_writer: for a Space: whether a token of the Hub may write to it. Runs send what they log to its root.
    """

    host: str = "127.0.0.1"
    port: int = 7861
    token: str | None = None
    owner: str = "owner"
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    allow_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    frame_ancestors: tuple[str, ...] = ()
    root_path: str = ""
    mount_trackio: bool = True
    trackio_sql: bool = False
    write_token: str | None = None
    hub_writer: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class InspectorServer:
    """The application that is served, and what belongs to it.

    Attributes:
        app: the ASGI application for uvicorn, its guard in front.
        behind: the application behind the guard.
        rules: the routes that the guard lets through.
        access: its tokens, and the keys that were made when it was.
        no_dashboard: why Trackio's dashboard is not served; empty where it is.
    """

    app: ASGIApp
    behind: FastAPI
    rules: tuple[Rule, ...]
    access: Access
    no_dashboard: str = ""


def build_server(workspace: Workspace, options: ServerOptions | None = None) -> InspectorServer:
    """Builds the whole application.

    Args:
        workspace: what the pages read.
        options: how it is served.

    Raises:
        ConfigError: a proxy or a frame ancestor cannot be understood.
    """
    gr = import_gradio()
    from fastapi import FastAPI

    from rollout_traces.inspector.api.http import PREFIX, api_app
    from rollout_traces.inspector.app import build_blocks, early_files, page_head

    options = options or ServerOptions()
    proxies, ancestors = Proxies.of(options.trusted_proxies), checked_ancestors(options.frame_ancestors)
    access = Access(options.token, options.owner, options.named_tokens)
    dashboard = f"{options.root_path.rstrip('/')}{access.dashboard}"
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_assets(app)
    app.mount(PREFIX, api_app(workspace))
    missing = (
        _mount_trackio(app, workspace, options, dashboard)
        if options.mount_trackio
        else "it was not asked for"
    )
    app.router.routes.extend(session_routes(access, None if missing else f"{dashboard}/"))
    head = page_head(options.root_path)
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
    guard = GuardOptions(
        hosts=HostPolicy.for_server(options.host, options.allow_hosts),
        proxies=proxies,
        access=access,
        write_token=options.write_token,
        hub_writer=options.hub_writer,
        rules=served,
        ancestors=ancestors,
        hashes=script_hashes(head.encode()),
        root_path=options.root_path,
        early=early_files(options.root_path),
    )
    return InspectorServer(Guard(app, guard), app, served, access, missing)


def _add_assets(app: FastAPI) -> None:
    files = bundle()

    @app.get("/inspector/{digest}/{name:path}", include_in_schema=False)
    def inspector_asset(digest: str, name: str) -> Response:
        known = files.files if digest == files.digest else {}
        return _respond(known.get(name), "private, max-age=31536000, immutable")

    @app.get("/static/trackio/{name}", include_in_schema=False)
    def trackio_image(name: str) -> Response:
        return _respond(trackio_images().get(name), "private, max-age=3600")


def _respond(asset: Asset | None, caching: str) -> Response:
    if asset is None:
        return Response("Not found", status_code=404, media_type="text/plain")
    headers = {"Cache-Control": caching, "X-Content-Type-Options": "nosniff"}
    return Response(asset.body, media_type=asset.media_type, headers=headers)


def _mount_trackio(app: FastAPI, workspace: Workspace, options: ServerOptions, base: str) -> str:
    """Mounts the dashboard, whose page asks for everything below `base`; why it could not be, empty where it could."""
    from starlette.responses import RedirectResponse
    from starlette.routing import Route

    from rollout_traces.inspector.trackio_mount import MountOptions, trackio_app

    try:
        dashboard = trackio_app(
            MountOptions(
                prefix=options.root_path.rstrip("/"),
                base=base,
                sql=options.trackio_sql,
                writes=options.write_token is not None or options.hub_writer is not None,
                projects=workspace.projects if workspace.is_restricted else None,
            )
        )
    except Exception as error:  # noqa: BLE001 - said, and the inspector starts without it
        return f"{type(error).__name__}: {error}"

    @app.get("/trackio", include_in_schema=False)
    def add_slash() -> Response:
        return RedirectResponse("trackio/")

    if options.hub_writer is not None:
        for path, method in (("/version", "GET"), ("/api/upload", "POST"), ("/api/{name}", "POST")):
            app.router.routes.append(Route(path, dashboard, methods=[method]))
    app.mount("/trackio", dashboard)
    return ""


PATH = "/session"
WRONG = "This token is not this server's: it may have been started anew since."


def session_routes(access: Access, dashboard: str | None) -> list[Route]:
    """The routes of a server.

    Args:
        access: its tokens.
        dashboard: the address of Trackio's dashboard; None where it is not served.
    """

    def about(visitor: Visitor) -> dict[str, Any]:
        return {"name": visitor.name, "owner": visitor.owner, "dashboard": dashboard}

    async def sign_in(request: Request) -> Response:
        try:
            token = json.loads(await request.body())["token"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return _refused('Expected {"token": "…"}.', 400)
        visitor = access.of_token(token) if isinstance(token, str) else None
        if visitor is None:
            return _refused(WRONG, 401)
        return JSONResponse({"key": access.session_key(visitor), **about(visitor)})

    async def current(request: Request) -> Response:
        return JSONResponse(about(who_asks()))

    return [Route(PATH, sign_in, methods=["POST"]), Route(PATH, current, methods=["GET"])]


def _refused(message: str, status: int) -> Response:
    return JSONResponse({"error": {"message": message, "kind": "token"}}, status)
