"""The read side: where traces come from, the index over them, and the query language."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import ConfigError, QueryError, extra
from rollout_traces.store.rows import Group, Histogram, RowPage, RunInfo, StepGroups, StepInfo, TraceRow
from rollout_traces.store.source import Source

if TYPE_CHECKING:
    from rollout_traces.store.store import Store

__all__ = [
    "Group",
    "Histogram",
    "QueryError",
    "RowPage",
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
    with extra("reading", "reading"):
        from rollout_traces.store.store import Store
    return Store


def open_store(
    project: str,
    *,
    server_url: str | None = None,
    space: str | None = None,
    folder: str | Path | None = None,
    index_path: str | Path | None = None,
    refresh: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Store:
    """Opens a project's traces, or an export of them, for reading.

    Args:
        project: Trackio's project, or where a partitioned export lies: a folder, `s3://bucket/path`,
            `hf://datasets/user/name`; a bare name is a folder where there is no project of that name.
        server_url: a self-hosted Trackio server to read from, `http://host:port`.
        space: a Hugging Face Space that runs Trackio, `user/name`.
        folder: Trackio's folder on this machine; by default where Trackio itself looks.
        index_path: the index's folder; by default beside the project, or in the cache for servers and for
            folders that cannot hold it.
        refresh: index what is new before returning. With False, `Store.refresh(progress)` does it and says how far
            it is, which a large project or export takes seconds for.
        options: for fsspec's file system, where an export is opened, such as `endpoint_url`.

    Returns:
        The store.

    Raises:
        StoreError: no such project, or the server or address cannot be read.
        ConfigError: both a server and a Space were given, or a package that reading needs is missing.
    """
    if server_url is not None and space is not None:
        raise ConfigError("open_store: give server_url or space, not both.")
    source: Source
    if server_url is None and space is None:
        source = _source_of(project, None if folder is None else Path(folder), options)
    else:
        from rollout_traces.store.http_source import HttpSource

        source = HttpSource(project, server_url=server_url, space=space)
    store: Store = __getattr__("Store")(source, None if index_path is None else Path(index_path))
    if refresh:
        store.refresh()
    return store


def _source_of(project: str, folder: Path | None, options: Mapping[str, Any] | None) -> Source:
    """The project of this machine, or the export, that is meant."""
    from rollout_traces.store.places import database_path, holds_export, is_address
    from rollout_traces.store.source import LocalSource

    if is_address(project) or (not database_path(project, folder).is_file() and holds_export(Path(project))):
        __getattr__("Store")
        from rollout_traces.store.export_source import ExportSource

        return ExportSource(project, options)
    return LocalSource(project, folder)
