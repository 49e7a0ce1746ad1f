"""Trackio's reading functions, called so that they change nothing, ask nobody and end in time.

They run in threads of their own. While one runs, Trackio opens databases read only (no migration, no pragma that
rewrites a file), does not look for a dataset on the Hub, and every statement ends at the call's deadline.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rollout_traces.model.units import MB

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
    if projects is not None:
        _check_project(function, args, kwargs, projects())
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
    connection = open_read_only(database, time.monotonic() + seconds)
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


def open_read_only(database: Path, deadline: float) -> sqlite3.Connection:
    """A connection that cannot write and whose statements end at the deadline.

    Args:
        deadline: seconds of `time.monotonic()`.
    """
    address = Path(database).resolve().as_uri()
    connection = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=SQL_SECONDS)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError:  # a read-only folder has no place for the log's index
        connection.close()
        connection = sqlite3.connect(f"{address}?immutable=1", uri=True)
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
            opened = open_read_only(db_path, deadline)
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


def _check_project(
    function: Callable[..., Any], args: list[Any], kwargs: Mapping[str, Any], projects: list[str]
) -> None:
    import inspect

    named = [name for name in inspect.signature(function).parameters if name != "request"]
    given = dict(zip(named, args, strict=False)) | dict(kwargs)
    if "project" in named and given.get("project") not in projects:
        raise ReadRefused(f"project {given.get('project')!r} is not shown here.")


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
