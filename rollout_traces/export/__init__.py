"""Export of any query: one file a format, and a manifest beside what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import ConfigError
from rollout_traces.export.atif import export_atif
from rollout_traces.export.partitioned import export_partitioned
from rollout_traces.export.ray_data import ray_dataset, write_side_table
from rollout_traces.export.rows import (
    ExportManifest,
    ExportQuery,
    describe,
    matched,
    records,
    write_jsonl,
    write_manifest,
    write_parquet,
)
from rollout_traces.export.scout import export_scout
from rollout_traces.export.training_samples import FORMATS as TRAINING_FORMATS
from rollout_traces.model.whole_files import unfinished, writing_to

if TYPE_CHECKING:
    from rollout_traces.store import Store

__all__ = [
    "FORMATS",
    "ExportManifest",
    "ExportQuery",
    "export",
    "export_atif",
    "export_partitioned",
    "export_scout",
    "ray_dataset",
    "write_side_table",
]


FORMATS = {"jsonl": write_jsonl, "parquet": write_parquet}
"""Format, and the ending of its files -> `(path, records)` writes them and gives their number."""
CONVERSATIONS = {"atif": export_atif, "scout": export_scout}
"""Format of other tools -> `(store, folder, query)` writes conversations as its files, and gives their number."""
EVERY_FORMAT = (*FORMATS, *CONVERSATIONS, "site", *TRAINING_FORMATS)
"""The formats that `rollout-traces export` writes."""


def export(
    store: Store,
    path: Path | str,
    query: ExportQuery = ExportQuery(),  # noqa: B008
    *,
    file_format: str | None = None,
    tokens: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ExportManifest:
    """Writes the rollouts of a query to a file, and its manifest to `<file>.manifest.json`.

    The file appears under its name only when it is complete; of a link, what it leads to is written.

    Args:
        store: where from.
        query: which rollouts.
        file_format: `jsonl` or `parquet`; by default what the file's name ends in.
        tokens: add each traced rollout's token track: ids, masks and every further track as lists.
        progress: called with rows done and rows in all.

    Returns:
        The manifest.

    Raises:
        ConfigError: an unknown format, a pipe or a device, or a package that it needs is missing.
        NotWritten: the file cannot be written.
        QueryError: the query cannot be understood.
    """
    path = Path(path)
    name = file_format or path.suffix.removeprefix(".")
    if name not in FORMATS:
        seen = f"format: {name!r}" if file_format else f"{path}: its name ends in no known format"
        raise ConfigError(f"{seen}, expected one of {', '.join(FORMATS)}.")
    n_matched = matched(store, query)
    n_rows = n_matched if query.limit is None else min(n_matched, query.limit)
    found = _reported(records(store, query, tokens=tokens), n_rows, progress)
    with unfinished(path) as made:
        n = FORMATS[name](made, found)
        manifest = describe(store, query, made, file_format=name, rows=n, matched=n_matched)
    with writing_to(path):
        write_manifest(manifest, path.resolve())
    return manifest


def _reported(
    found: Iterator[Mapping[str, Any]], total: int, progress: Callable[[int, int], None] | None
) -> Iterator[Mapping[str, Any]]:
    for n, record in enumerate(found, 1):
        yield record
        if progress is not None:
            progress(n, max(n, total))
