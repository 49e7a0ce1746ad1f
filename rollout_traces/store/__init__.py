"""The read side: where traces come from, the index over them, and the query language."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import ConfigError
from rollout_traces.store.query.error import QueryError
from rollout_traces.store.rows import Group, Histogram, Page, RunInfo, StepGroups, StepInfo, TraceRow
from rollout_traces.store.source import Source

if TYPE_CHECKING:
    from rollout_traces.store.store import Store

__all__ = [
    "Group",
    "Histogram",
    "Page",
    "QueryError",
    "RunInfo",
    "Source",
    "StepGroups",
    "StepInfo",
    "Store",
    "TraceRow",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name != "Store":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from rollout_traces.store.store import Store
    except ImportError as error:
        if error.name not in ("duckdb", "pyarrow"):
            raise
        raise ConfigError(
            f"reading needs {error.name}: pip install 'rollout-traces[reading]' (Python 3.10 or newer)."
        ) from error
    return Store


def open_store(
    project: str,
    *,
    server_url: str | None = None,
    space: str | None = None,
    folder: Path | None = None,
    index_path: Path | None = None,
    refresh: bool = True,
) -> Store:
    """Opens a project's traces for reading.

    Args:
        project: Trackio's project.
        server_url: a self-hosted Trackio server to read from, `http://host:port`.
        space: a Hugging Face Space that runs Trackio, `user/name`.
        folder: Trackio's folder on this machine; by default where Trackio itself looks.
        index_path: the index's folder; by default beside the project, or in the cache for servers and for
            folders that cannot hold it.
        refresh: index what is new before returning.

    Returns:
        The store.

    Raises:
        StoreError: no such project, or the server cannot be read.
        ConfigError: both a server and a Space were given, or DuckDB or pyarrow is missing.
    """
    if server_url is not None and space is not None:
        raise ConfigError("open_store: give server_url or space, not both.")
    if server_url is None and space is None:
        from rollout_traces.store.local_source import LocalSource

        source: Source = LocalSource(project, folder)
    else:
        from rollout_traces.store.http_source import HttpSource

        source = HttpSource(project, server_url=server_url, space=space)
    store: Store = __getattr__("Store")(source, index_path)
    if refresh:
        store.refresh()
    return store
