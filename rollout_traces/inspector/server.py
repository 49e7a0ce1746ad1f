"""One process, one address: the inspector at `/`, Trackio's dashboard at `/trackio/`."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.types import ASGIApp

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.assets import Asset, bundle, trackio_images
from rollout_traces.inspector.guard import Guard, HostPolicy

if TYPE_CHECKING:
    from fastapi import FastAPI

    from rollout_traces.inspector.workspace import Workspace

FIRST_PORT = 7861
"""Where the search for a free port begins."""


@dataclass(frozen=True)
class ServerOptions:
    """How the inspector is served.

    Attributes:
        host: address to bind; loopback unless asked otherwise.
        allow_hosts: further Host names to answer, for proxies and notebooks.
        root_path: the prefix under which a proxy serves it.
        mount_trackio: serve Trackio's dashboard beside it; off for a source that is not local.
    """

    host: str = "127.0.0.1"
    allow_hosts: tuple[str, ...] = ()
    root_path: str = ""
    mount_trackio: bool = True


def build_server(workspace: Workspace, options: ServerOptions | None = None) -> ASGIApp:
    """Builds the whole application.

    Args:
        workspace: what the pages read.
        options: how it is served.

    Returns:
        An ASGI application for uvicorn.
    """
    import gradio as gr
    from fastapi import FastAPI

    from rollout_traces.inspector.app import build_blocks, page_head

    options = options or ServerOptions()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_assets(app)
    if options.mount_trackio:
        _mount_trackio(app, options.root_path.rstrip("/"))
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
        head=page_head(options.root_path, workspace),
        show_error=False,
    )
    return Guard(app, HostPolicy.for_server(options.host, options.allow_hosts), options.root_path)


def free_port(host: str, first: int = FIRST_PORT) -> int:
    """The first port from `first` upwards that nobody listens on.

    Raises:
        ConfigError: the host is not this machine's, or a hundred ports in a row are taken.
    """
    for port in range(first, first + 100):
        error = _why_not_bound(host, port)
        if error is None:
            return port
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(
                f"--host {host}: this machine cannot listen there ({error.strerror})."
            ) from error
    raise ConfigError(f"no free port between {first} and {first + 99} on {host}; name one with --port.")


def checked_port(host: str, port: int) -> int:
    """A port that was asked for.

    Raises:
        ConfigError: it is none, or nobody can listen on it now.
    """
    if not 1 <= port <= 65535:
        raise ConfigError(f"--port: seen {port}. Expected 1 to 65535.")
    error = _why_not_bound(host, port)
    if error is not None:
        raise ConfigError(
            f"--port {port} on {host}: {error.strerror}. Name another, or leave it out."
        ) from error
    return port


def _why_not_bound(host: str, port: int) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def _add_assets(app: FastAPI) -> None:
    files = bundle()

    @app.get(f"/inspector/{files.digest}/{{name:path}}", include_in_schema=False)
    def inspector_asset(name: str) -> Response:
        return _respond(files.files.get(name), "public, max-age=31536000, immutable")

    @app.get("/static/trackio/{name}", include_in_schema=False)
    def trackio_image(name: str) -> Response:
        return _respond(trackio_images().get(name), "public, max-age=3600")


def _respond(asset: Asset | None, caching: str) -> Response:
    if asset is None:
        return Response("Not found", status_code=404, media_type="text/plain")
    headers = {"Cache-Control": caching, "X-Content-Type-Options": "nosniff"}
    return Response(asset.body, media_type=asset.media_type, headers=headers)


def _mount_trackio(app: FastAPI, prefix: str) -> None:
    from starlette.responses import RedirectResponse
    from trackio.server import build_starlette_app_only

    for shade in ("light", "dark"):  # by default it asks for a file by its path, which is refused here
        logo = f"{prefix}/static/trackio/trackio_logo_type_{shade}_transparent.png"
        os.environ.setdefault(f"TRACKIO_LOGO_{shade.upper()}_URL", logo)
    dashboard, _write_token = build_starlette_app_only()

    @app.get("/trackio", include_in_schema=False)
    def add_slash() -> Response:
        return RedirectResponse("trackio/")

    app.mount("/trackio", dashboard)
