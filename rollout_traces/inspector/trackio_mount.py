"""Trackio's dashboard under `/trackio/`, read only: its page and its reading functions, none of its own server.

Trackio's server migrates every project when it starts, answers on the event loop, and has routes that write,
delete and ask other machines. What is served here is put together from its parts instead: the files of its
page, and those of its functions that `routes` lists.
"""

from __future__ import annotations

import gzip
import json
import logging
import mimetypes
import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from rollout_traces.inspector import trackio_reads
from rollout_traces.inspector.assets import Asset
from rollout_traces.inspector.guard import ServerOptions
from rollout_traces.inspector.routes import READS, WRITES
from rollout_traces.inspector.trackio_reads import ReadRefused
from rollout_traces.inspector.workspace import LONGEST_TEXT

_LOG = logging.getLogger(__name__)
_AT_ONCE = 4
"""Calls of Trackio's functions at the same time; the others wait."""
_COMPRESSED_FROM = 2_000
"""Bytes of an answer from which compressing it is worth it."""


def trackio_app(options: ServerOptions, base: str, projects: Callable[[], list[str]] | None) -> Starlette:
    """Builds what is mounted at `/trackio`.

    Args:
        options: how it is served: with SQL, with the functions by which runs send what they log.
        base: the path below which its page asks for everything, a proxy's prefix included.
        projects: the projects that may be read; None for all.

    Returns:
        The application.

    Raises:
        Exception: whatever Trackio raises where it cannot be imported or lacks what is needed.
    """
    _name_logos(options.prefix)
    _front_page(base)
    takes_logs = options.write_token is not None or options.hub_writer is not None
    calls = _Calls(projects, sql=options.trackio_sql or takes_logs, writes=takes_logs)
    routes = [
        Route("/version", calls.version, methods=["GET"]),
        Route("/api/{name}", calls.answer, methods=["POST"]),
        Route("/file", calls.media, methods=["GET"]),
        Route("/artifact_blob/{project}/{digest}", calls.artifact, methods=["GET"]),
        Route("/{path:path}", partial(_front, base), methods=["GET"]),
    ]
    if not takes_logs:
        return Starlette(routes=routes)
    from trackio.asgi_app import upload_handler

    app = Starlette(routes=[Route("/api/upload", upload_handler, methods=["POST"]), *routes])
    _prepare_uploads(app)
    return app


class _Calls:
    """Trackio's functions by name, each call in a thread of its own few; and the files of projects that are shown.

    Args:
        projects: the projects that may be read; None for all.
        sql: whether its SQL is answered, bounded: a logger too asks what is stored.
        writes: whether runs may send what they log; the guard lets the write token alone reach these.
    """

    def __init__(self, projects: Callable[[], list[str]] | None, *, sql: bool, writes: bool) -> None:
        from trackio import server

        registry = server._api_registry()
        missing = [name for name in READS if name not in registry]
        if missing:
            raise RuntimeError(f"this Trackio has no {', '.join(missing)}")
        self._projects = projects
        self._sql_is_open = sql
        self._reads = {name: registry[name] for name in READS}
        self._reads["get_run_mutation_status"] = get_run_mutation_status
        self._writes = {name: registry[name] for name in WRITES if writes}
        self._limiter: anyio.CapacityLimiter | None = None

    async def version(self, request: Request) -> Response:
        from trackio.asgi_app import version_handler

        return await version_handler(request)

    async def answer(self, request: Request) -> Response:
        """One call; its answer is computed and written as JSON in a thread."""
        name = request.path_params["name"]
        body = await request.body()
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_AT_ONCE)
        status, data = await anyio.to_thread.run_sync(
            self._answer, name, body, request, limiter=self._limiter
        )
        headers = {}
        if len(data) >= _COMPRESSED_FROM and "gzip" in request.headers.get("accept-encoding", ""):
            data = await anyio.to_thread.run_sync(gzip.compress, data, 5, limiter=self._limiter)
            headers["content-encoding"] = "gzip"
        return Response(data, status, media_type="application/json", headers=headers)

    def _answer(self, name: str, body: bytes, request: Request) -> tuple[int, bytes]:
        try:
            asked = json.loads(body or b"{}")
            return HTTPStatus.OK, trackio_reads.as_json({"data": self._call(name, asked, request)})
        except ReadRefused as error:
            return HTTPStatus.BAD_REQUEST, trackio_reads.as_json({"error": str(error)})
        except Exception as error:  # noqa: BLE001 - the dashboard shows what happened, and the log keeps the trace
            _LOG.warning("trackio: %s failed: %s", name, error)
            said = f"{type(error).__name__}: {error}"
            return HTTPStatus.INTERNAL_SERVER_ERROR, trackio_reads.as_json({"error": said[:LONGEST_TEXT]})

    def _call(self, name: str, asked: Any, request: Request) -> Any:
        if name == "query_project" and self._sql_is_open:
            return self._sql(asked)
        if name in self._writes:
            from trackio.asgi_app import _invoke_handler

            args, kwargs = trackio_reads.arguments_of(asked)
            return _invoke_handler(self._writes[name], request, args=args, kwargs=kwargs)
        if name in self._reads:
            return trackio_reads.call(self._reads[name], asked, request, self._projects)
        raise ReadRefused(f"{name} is not served here.")

    def _sql(self, asked: Any) -> dict[str, Any]:
        from trackio.sqlite_storage import SQLiteStorage

        args, kwargs = trackio_reads.arguments_of(asked)
        given = dict(zip(("project", "query"), args, strict=False)) | kwargs
        project = given.get("project")
        if not isinstance(project, str):
            raise ReadRefused("project: none named.")
        self._check_shown(project)
        database = SQLiteStorage.get_project_db_path(project)
        if not database.is_file():
            raise ReadRefused(f"Project '{project}' not found.")
        return {"project": project, **trackio_reads.select(database, given.get("query"))}  # type: ignore[arg-type]

    def _check_shown(self, project: str) -> None:
        if self._projects is not None and project not in self._projects():
            raise ReadRefused(f"project {project!r} is not shown here.")

    def media(self, request: Request) -> Response:
        """A file below Trackio's media folder, of a project that is shown."""
        from trackio import utils

        asked = request.query_params.get("path") or ""
        root, artifacts = Path(utils.MEDIA_DIR).resolve(), Path(utils.ARTIFACTS_DIR).resolve()
        path = Path(asked).resolve()
        shown = [root]
        if self._projects is not None:
            shown = [utils.project_media_dir(name).resolve() for name in self._projects()]
        is_shown = path.is_relative_to(root) and any(path.is_relative_to(folder) for folder in shown)
        if "\x00" in asked or not is_shown or path.is_relative_to(artifacts) or not path.is_file():
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return FileResponse(path)

    def artifact(self, request: Request) -> Response:
        """An artifact of a project that is shown, by its digest; links that lead out of Trackio's folder are not followed."""
        from trackio import cas, server, utils

        try:
            project = server._validate_project_name(request.path_params["project"])
            digest = server._validate_sha256_digest(request.path_params["digest"])
            self._check_shown(project)
        except (ReadRefused, server.TrackioAPIError) as error:
            raise HTTPException(HTTPStatus.NOT_FOUND) from error
        blob = cas.blob_path(project, digest).resolve()
        if not blob.is_relative_to(Path(utils.ARTIFACTS_DIR).resolve()) or not blob.is_file():
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return FileResponse(blob, media_type="application/octet-stream", filename=digest)


def get_run_mutation_status() -> dict[str, Any]:
    """Answers what the dashboard asks before it offers to delete or rename: never here."""
    return {"spaces": False, "allowed": False, "auth": "none"}


def _front(base: str, request: Request) -> Response:
    """A file of the dashboard by its name in a table, else its page."""
    path = request.path_params["path"]
    if path == "config.json":
        return JSONResponse({})
    if (file := dashboard_files().get(path)) is None:
        return HTMLResponse(_front_page(base))
    caching = {"Cache-Control": "private, max-age=86400"}
    return Response(file.body, media_type=file.media_type, headers=caching)


@cache
def _front_page(base: str) -> bytes:
    """The dashboard's page, which asks for everything below `base`."""
    from trackio.frontend_config import resolve_frontend_dir
    from trackio.frontend_server import _inject_base_script, _prefix_absolute_refs

    html = (Path(resolve_frontend_dir(None).path) / "index.html").read_text("utf-8")
    return _inject_base_script(_prefix_absolute_refs(html, base), base).encode()


@cache
def dashboard_files() -> Mapping[str, Asset]:
    """The dashboard's other files by their path, read when the first of them is asked for."""
    from trackio.frontend_config import resolve_frontend_dir
    from trackio.frontend_server import ASSETS_DIR

    root = Path(resolve_frontend_dir(None).path)
    files = {
        path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.suffix != ".html"
    }
    files |= {f"static/trackio/{path.name}": path for path in sorted(Path(ASSETS_DIR).iterdir())}
    return {
        name: Asset(path.read_bytes(), _media_type(path)) for name, path in files.items() if path.is_file()
    }


def _media_type(path: Path) -> str:
    return {".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2"}.get(path.suffix) or (
        mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    )


def _name_logos(prefix: str) -> None:
    """By default the page asks for its logo by a path of this machine, which is not served."""
    for shade in ("light", "dark"):
        logo = f"{prefix}/static/trackio/trackio_logo_type_{shade}_transparent.png"
        os.environ.setdefault(f"TRACKIO_LOGO_{shade.upper()}_URL", logo)


def _prepare_uploads(app: Starlette) -> None:
    """Puts into the application what Trackio's upload handler and writing functions look for there."""
    import threading

    from trackio.server import assert_can_stage_upload

    app.state.upload_authorizer = assert_can_stage_upload
    app.state.uploaded_temp_files = set()
    app.state.uploaded_temp_files_lock = threading.Lock()
