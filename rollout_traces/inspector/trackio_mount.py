"""Trackio's dashboard under `/trackio/`, read only: its page and its reading functions, none of its own server.

Trackio's server migrates every project when it starts, answers on the event loop, and has routes that write,
delete and ask other machines. What is served here is put together from its parts instead: the files of its
page, and those of its functions that `routes` lists, called in threads of their own so that they change nothing, ask
nobody and end in time: Trackio opens databases read only then (no migration, no pragma that rewrites a file), does not
look for a dataset on the Hub, and every statement ends at the call's deadline.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rollout_traces.inspector.guard import ServerOptions
from rollout_traces.inspector.registry import TRACKIO_READS, TRACKIO_WRITES
from rollout_traces.inspector.workspace import LONGEST_TEXT
from rollout_traces.model.units import MB
from rollout_traces.store.source import open_read_only

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
    from trackio.asgi_app import upload_handler, version_handler
    from trackio.frontend_config import resolve_frontend_dir

    _name_logos(options.prefix)
    root = Path(resolve_frontend_dir(None).path)
    page = HTMLResponse(_front_page(root, base))
    takes_logs = options.write_token is not None or options.hub_writer is not None
    calls = _Calls(projects, sql=options.trackio_sql or takes_logs, writes=takes_logs)
    routes = [
        Route("/version", version_handler, methods=["GET"]),
        Route("/api/{name}", calls.answer, methods=["POST"]),
        Route("/file", calls.media, methods=["GET"]),
        Route("/artifact_blob/{project}/{digest}", calls.artifact, methods=["GET"]),
        Route("/config.json", JSONResponse({}), methods=["GET"]),
        Mount("/assets", StaticFiles(directory=root / "assets")),
        Mount("/static/trackio", trackio_images()),
        Route("/{path:path}", page, methods=["GET"]),
    ]
    compressing = [Middleware(GZipMiddleware, minimum_size=_COMPRESSED_FROM)]
    if not takes_logs:
        return Starlette(routes=routes, middleware=compressing)
    app = Starlette(
        routes=[Route("/api/upload", upload_handler, methods=["POST"]), *routes], middleware=compressing
    )
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
        missing = [name for name in TRACKIO_READS if name not in registry]
        if missing:
            raise RuntimeError(f"this Trackio has no {', '.join(missing)}")
        self._projects = projects
        self._sql_is_open = sql
        self._reads = {name: registry[name] for name in TRACKIO_READS}
        self._reads["get_run_mutation_status"] = get_run_mutation_status
        self._writes = {name: registry[name] for name in TRACKIO_WRITES if writes}
        self._limiter: anyio.CapacityLimiter | None = None

    async def answer(self, request: Request) -> Response:
        """One call; its answer is computed and written as JSON in a thread."""
        name = request.path_params["name"]
        body = await request.body()
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_AT_ONCE)
        status, data = await anyio.to_thread.run_sync(
            self._answer, name, body, request, limiter=self._limiter
        )
        return Response(data, status, media_type="application/json")

    def _answer(self, name: str, body: bytes, request: Request) -> tuple[int, bytes]:
        try:
            asked = json.loads(body or b"{}")
            return HTTPStatus.OK, as_json({"data": self._call(name, asked, request)})
        except ReadRefused as error:
            return HTTPStatus.BAD_REQUEST, as_json({"error": str(error)})
        except Exception as error:  # noqa: BLE001 - the dashboard shows what happened, and the log keeps the trace
            _LOG.warning("trackio: %s failed: %s", name, error)
            said = f"{type(error).__name__}: {error}"
            return HTTPStatus.INTERNAL_SERVER_ERROR, as_json({"error": said[:LONGEST_TEXT]})

    def _call(self, name: str, asked: Any, request: Request) -> Any:
        if name == "query_project" and self._sql_is_open:
            return self._sql(asked)
        if name in self._writes:
            from trackio.asgi_app import _invoke_handler

            args, kwargs = arguments_of(asked)
            return _invoke_handler(self._writes[name], request, args=args, kwargs=kwargs)
        if name in self._reads:
            return call(self._reads[name], asked, request, self._projects)
        raise ReadRefused(f"{name} is not served here.")

    def _sql(self, asked: Any) -> dict[str, Any]:
        from trackio.sqlite_storage import SQLiteStorage

        args, kwargs = arguments_of(asked)
        given = dict(zip(("project", "query"), args, strict=False)) | kwargs
        project = given.get("project")
        if not isinstance(project, str):
            raise ReadRefused("project: none named.")
        _check_shown(project, self._projects)
        database = SQLiteStorage.get_project_db_path(project)
        if not database.is_file():
            raise ReadRefused(f"Project '{project}' not found.")
        return {"project": project, **select(database, given.get("query"))}  # type: ignore[arg-type]

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
            _check_shown(project, self._projects)
        except (ReadRefused, server.TrackioAPIError) as error:
            raise HTTPException(HTTPStatus.NOT_FOUND) from error
        blob = cas.blob_path(project, digest).resolve()
        if not blob.is_relative_to(Path(utils.ARTIFACTS_DIR).resolve()) or not blob.is_file():
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return FileResponse(blob, media_type="application/octet-stream", filename=digest)


def get_run_mutation_status() -> dict[str, Any]:
    """Answers what the dashboard asks before it offers to delete or rename: never here."""
    return {"spaces": False, "allowed": False, "auth": "none"}


def trackio_images() -> StaticFiles:
    """Serves Trackio's images by their names."""
    from trackio.frontend_server import ASSETS_DIR

    return StaticFiles(directory=ASSETS_DIR)


def _front_page(root: Path, base: str) -> str:
    """The dashboard's page, which asks for everything below `base`."""
    from trackio.frontend_server import _inject_base_script, _prefix_absolute_refs

    html = (root / "index.html").read_text("utf-8")
    return _inject_base_script(_prefix_absolute_refs(html, base), base)


def _name_logos(prefix: str) -> None:
    """By default the page asks for its logo by a path of this machine, which is not served."""
    for shade in ("light", "dark"):
        logo = f"{prefix}/static/trackio/trackio_logo_type_{shade}_transparent.png"
        os.environ.setdefault(f"TRACKIO_LOGO_{shade.upper()}_URL", logo)


def _prepare_uploads(app: Starlette) -> None:
    """Puts into the application what Trackio's upload handler and writing functions look for there."""
    from trackio.server import assert_can_stage_upload

    app.state.upload_authorizer = assert_can_stage_upload
    app.state.uploaded_temp_files = set()
    app.state.uploaded_temp_files_lock = threading.Lock()


READ_SECONDS = 20.0
"""Seconds for which one reading function may keep SQLite busy."""
SQL_SECONDS = 5.0
"""Seconds that one statement of `--trackio-sql` may take."""
SQL_ROWS = 10_000
SQL_VALUE_BYTES = 64 * MB
"""The longest text or blob that a statement may make or read."""
SQL_ANSWER_BYTES = 128 * MB
MOST_TRACES = 1_000
"""Traces in one answer; Trackio's page asks for 50."""
_STEPS_BETWEEN_LOOKS = 10_000

_deadline: ContextVar[float | None] = ContextVar("trackio_read_deadline", default=None)
_installing = threading.Lock()


class ReadRefused(Exception):
    """A call that is not answered; the text says why."""


@contextmanager
def reading(seconds: float) -> Iterator[None]:
    """Whatever Trackio reads inside, in this thread, is read only and ends within the seconds."""
    _install()
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def call(
    function: Callable[..., Any], body: Any, request: Any, projects: Callable[[], list[str]] | None = None
) -> Any:
    """Calls one of Trackio's reading functions with what a client sent.

    Args:
        body: the request's JSON: `{"args": [...], "kwargs": {...}}`, `{"data": [...]}`, arguments by name, or a list.
        request: the HTTP request, for functions that ask for it.
        projects: the projects that may be read; None for all.

    Returns:
        Its answer.

    Raises:
        ReadRefused: another project than those, or the time is over.
    """
    from trackio.asgi_app import _invoke_handler

    args, kwargs = arguments_of(body)
    named = [name for name in inspect.signature(function).parameters if name != "request"]
    if "project" in named:
        given = dict(zip(named, args, strict=False)) | kwargs
        _check_shown(given.get("project"), projects)
    if function.__name__ == "get_traces":
        kwargs["limit"] = _traces_asked_for(kwargs.get("limit"))
    with reading(READ_SECONDS):
        try:
            answer = _invoke_handler(function, request, args=args, kwargs=kwargs)
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise ReadRefused(f"stopped after {READ_SECONDS:g} seconds; ask for less.") from error
            raise
    if projects is not None and function.__name__ == "get_all_projects":
        return [name for name in answer if name in projects()]
    return answer


def select(database: Path, query: str, seconds: float = SQL_SECONDS) -> dict[str, Any]:
    """One read-only statement, in the form of Trackio's own answer.

    Args:
        database: the project's file.
        query: a SELECT, WITH or harmless PRAGMA.
        seconds: how long it may take.

    Raises:
        ReadRefused: it is no such statement, takes longer, or makes too much.
    """
    from trackio.sqlite_storage import SQLiteStorage

    if not isinstance(query, str):
        raise ReadRefused(f"query: seen {type(query).__name__}, expected a text.")
    try:
        statement = SQLiteStorage._validate_read_only_query(query)
    except ValueError as error:
        raise ReadRefused(str(error)) from error
    connection = open_until(database, time.monotonic() + seconds)
    try:
        _limit(connection)
        connection.set_authorizer(SQLiteStorage._query_authorizer)
        cursor = connection.execute(statement)
        columns = [column[0] for column in cursor.description or ()]
        rows: list[dict[str, Any]] = []
        size = 0
        for row in cursor:
            size += sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row)
            if len(rows) == SQL_ROWS:
                raise ReadRefused(f"more than {SQL_ROWS} rows. Add a LIMIT.")
            if size > SQL_ANSWER_BYTES:
                raise ReadRefused(f"more than {SQL_ANSWER_BYTES // MB} MiB. Ask for fewer columns or rows.")
            rows.append(dict(zip(columns, map(SQLiteStorage._normalize_query_value, row), strict=True)))
    except sqlite3.Error as error:
        if "interrupted" in str(error):
            raise ReadRefused(f"stopped after {seconds:g} seconds. Ask for less.") from error
        raise ReadRefused(str(error)) from error
    finally:
        connection.close()
    return {"query": statement, "columns": columns, "rows": rows, "row_count": len(rows)}


def arguments_of(body: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of a call, in any of the forms that Trackio's clients send."""
    if isinstance(body, list):
        return body, {}
    if not isinstance(body, Mapping):
        return [], {}
    if "args" in body or "kwargs" in body:
        args, kwargs = body.get("args"), body.get("kwargs")
        return list(args) if isinstance(args, list) else [], dict(kwargs) if isinstance(kwargs, dict) else {}
    if isinstance(body.get("data"), list):
        return list(body["data"]), {}
    return [], dict(body)


def as_json(value: Any) -> bytes:
    """JSON of an answer; what JSON has no word for (NaN, infinities) becomes null, anything odd its text."""
    return json.dumps(_plain(value), default=str, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def open_until(database: Path, deadline: float) -> sqlite3.Connection:
    """A connection that cannot write and whose statements end at the deadline.

    Args:
        deadline: seconds of `time.monotonic()`.
    """
    connection = open_read_only(Path(database), SQL_SECONDS)
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
    return connection


def _limit(connection: sqlite3.Connection) -> None:
    """Bounds on what one statement may make; Python 3.10 cannot set them."""
    if not hasattr(connection, "setlimit"):
        raise ReadRefused("--trackio-sql needs Python 3.11 or newer: this one cannot bound a statement.")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, SQL_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MB)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0)


def _install() -> None:
    """Makes Trackio's storage look whether it is called for reading, once."""
    from trackio.sqlite_storage import SQLiteStorage

    with _installing:
        if getattr(SQLiteStorage._get_connection, "reads_for_rollout_traces", False):
            return
        original, load = SQLiteStorage._get_connection, SQLiteStorage._ensure_hub_loaded

        @contextmanager
        def connection(db_path: Path, **options: Any) -> Iterator[sqlite3.Connection]:
            deadline = _deadline.get()
            if deadline is None:
                with original(db_path, **options) as opened:
                    yield opened
                return
            opened = open_until(db_path, deadline)
            opened.row_factory = options.get("row_factory", sqlite3.Row)
            try:
                yield opened
            finally:
                opened.close()

        def ensure_hub_loaded() -> None:
            if _deadline.get() is None:
                load()

        connection.reads_for_rollout_traces = True  # type: ignore[attr-defined]
        SQLiteStorage._get_connection = staticmethod(connection)
        SQLiteStorage._ensure_hub_loaded = staticmethod(ensure_hub_loaded)


def _check_shown(project: Any, projects: Callable[[], list[str]] | None) -> None:
    if projects is not None and project not in projects():
        raise ReadRefused(f"project {project!r} is not shown here.")


def _traces_asked_for(limit: Any) -> int:
    try:
        return max(0, min(int(limit), MOST_TRACES))
    except (TypeError, ValueError, OverflowError):
        return MOST_TRACES


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
