"""One process, one address: the inspector at `/`, its session at `/session`, Trackio's dashboard at `/trackio/`."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from rollout_traces.inspector.access import DASHBOARD, Access, Visitor, who_asks
from rollout_traces.inspector.assets import Asset, bundle, trackio_images
from rollout_traces.inspector.guard import Guard, ServerOptions, error_response, script_hashes
from rollout_traces.inspector.routes import rules

if TYPE_CHECKING:
    from fastapi import FastAPI

    from rollout_traces.inspector.workspace import Workspace


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
        return _respond(trackio_images().get(name), "private, max-age=3600")


def _respond(asset: Asset | None, caching: str) -> Response:
    if asset is None:
        return PlainTextResponse("Not found", HTTPStatus.NOT_FOUND)
    headers = {"Cache-Control": caching, "X-Content-Type-Options": "nosniff"}
    return Response(asset.body, media_type=asset.media_type, headers=headers)


def _mount_trackio(app: FastAPI, workspace: Workspace, options: ServerOptions, base: str) -> str:
    """Mounts the dashboard, whose page asks for everything below `base`; why it could not be, empty where it could."""
    from rollout_traces.inspector.trackio_mount import trackio_app

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
