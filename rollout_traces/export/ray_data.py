"""Rollouts as a Ray Dataset, for scans that outgrow one process or one machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import extra
from rollout_traces.export.rows import decoded

if TYPE_CHECKING:
    import pyarrow as pa
    import ray.data

    from rollout_traces.store import Store

BATCH = 512
"""Rows whose texts are in a worker's memory at once."""
BLOCK = 4096
"""Rows of a block, where the columns come from a project."""
TEXT = "text"
"""The column with the conversation's text, as search sees it."""


def ray_dataset(
    store: Store,
    where: str = "",
    *,
    columns: Sequence[str] | None = None,
    runs: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    steps: tuple[int | None, int | None] = (None, None),
) -> ray.data.Dataset:
    """Traced rollouts with their text, read by Ray's workers.

    Of an export, workers read its parquet files where they lie; every node must reach them. Of a project,
    they read Trackio's database, which is on this machine, or its server.

    Args:
        store: whose rollouts.
        where: a filter (docs/query.md).
        columns: which columns; all when None. `id` is always among them.
        runs: ids or names of runs; all when None.
        splits: which splits; all when None.
        steps: first and last step, both included.

    Returns:
        A lazy data set with a row a traced rollout: the columns, `messages` (JSON text) and `text`.

    Raises:
        MissingExtra: Ray is not installed.
        QueryError: filter or a column cannot be understood.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with extra("ray", "ray_dataset"):
        import ray.data
    from rollout_traces.store.exports.source import ExportSource

    names = None if columns is None else list(dict.fromkeys(["id", *columns]))
    condition = f"({where}) and traced" if where else "traced"
    table = store.rollouts(condition, names, runs, splits, steps)
    if isinstance(store.source, ExportSource):
        return _of_export(store.source, table)
    blocks = [table.slice(at, BLOCK) for at in range(0, max(table.num_rows, 1), BLOCK)]
    reader = _ProjectTexts(store)
    return ray.data.from_arrow(blocks).map_batches(reader, batch_format="pyarrow", batch_size=BATCH)


def _of_export(source: Any, table: pa.Table) -> ray.data.Dataset:
    """The files' texts, joined with the rows that a filter left."""
    import ray

    files = [file.path for file in source.files()]
    joined = _JoinedTexts(ray.put(table))
    texts = ray.data.read_parquet(
        files,
        filesystem=None if source.folder.is_local else source.folder.fs,
        columns=["id", "messages"],
        partitioning=None,
    )
    return texts.map_batches(joined, batch_format="pyarrow", batch_size=BATCH)


class _ProjectTexts:
    """Adds messages and text to rows of a project; workers open the project by themselves."""

    def __init__(self, store: Store) -> None:
        from rollout_traces.store.local_source import LocalSource

        source = store.source
        self._project = store.project
        self._folder = source.path.parent if isinstance(source, LocalSource) else None
        self._server = None if self._folder is not None else source.address  # type: ignore[attr-defined]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The rows with two columns more."""
        source = self._source()
        try:
            ids = rows["id"].to_pylist()
            found = source.texts_of([i for i in ids if i is not None], spans=False)
        finally:
            source.close()
        return _with_text(rows, [decoded(found.get(trace_id, (None,))[0]) for trace_id in ids])

    def _source(self) -> Any:
        if self._folder is not None:
            from rollout_traces.store.local_source import LocalSource

            return LocalSource(self._project, Path(self._folder))
        from rollout_traces.store.http_source import HttpSource

        return HttpSource(self._project, server_url=self._server)


class _JoinedTexts:
    """Keeps the rows of a file that a filter left, with their columns and text."""

    def __init__(self, table: ray.ObjectRef) -> None:
        self._table = table

    def __call__(self, texts: pa.Table) -> pa.Table:
        """The rows of a batch that are wanted."""
        import pyarrow.compute as pc
        import ray

        wanted: pa.Table = ray.get(self._table)
        at = pc.index_in(texts["id"], value_set=wanted["id"].combine_chunks(), skip_nulls=True)
        kept = pc.is_valid(at)
        rows = wanted.take(at.filter(kept))
        return _with_text(rows, texts["messages"].filter(kept).to_pylist())


def _with_text(rows: pa.Table, messages: list[str | None]) -> pa.Table:
    import pyarrow as pa

    from rollout_traces.store.reading import conversation_text

    texts = [conversation_text(said or "[]") for said in messages]
    rows = rows.append_column("messages", pa.array(messages, pa.string()))
    return rows.append_column(TEXT, pa.array(texts, pa.string()))
