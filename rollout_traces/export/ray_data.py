"""Rollouts as a Ray Dataset, for scans that outgrow one process or one machine; and what was computed of them, written back
as a side table, which the store joins by trace id.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_traces.errors import ConfigError, extra
from rollout_traces.export.rows import decoded
from rollout_traces.model.names import check_name, file_stem
from rollout_traces.model.private_files import make_folder
from rollout_traces.store.export_source import ExportSource, Folder
from rollout_traces.store.source import LocalSource

if TYPE_CHECKING:
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
            return LocalSource(self._project, Path(self._folder))
        from rollout_traces.store.http_source import HttpSource

        return HttpSource(self._project, server_url=self._server)


class _JoinedTexts:
    """Keeps the rows of a file that a filter left, with their columns and text."""

    def __init__(self, table: ray.ObjectRef) -> None:
        self._table = table

    def __call__(self, texts: pa.Table) -> pa.Table:
        """The rows of a batch that are wanted."""
        import ray

        wanted: pa.Table = ray.get(self._table)
        at = pc.index_in(texts["id"], value_set=wanted["id"].combine_chunks(), skip_nulls=True)
        kept = pc.is_valid(at)
        rows = wanted.take(at.filter(kept))
        return _with_text(rows, texts["messages"].filter(kept).to_pylist())


def _with_text(rows: pa.Table, messages: list[str | None]) -> pa.Table:
    from rollout_traces.store.reading import conversation_text

    texts = [conversation_text(said or "[]") for said in messages]
    rows = rows.append_column("messages", pa.array(messages, pa.string()))
    return rows.append_column(TEXT, pa.array(texts, pa.string()))


KEY = "id"


def write_side_table(
    store: Store,
    name: str,
    tables: pa.Table | Iterable[pa.Table],
    meanings: Mapping[str, str] | None = None,
) -> str:
    """Writes a side table in place of any of its name; it appears when it is complete.

    Args:
        store: whose rollouts it speaks of.
        name: the table's name, a folder's.
        tables: rows with a column `id` of trace ids, and the columns to add; one table or several in turn.
        meanings: column -> what it means, with its unit.

    Returns:
        The file that was written.

    Raises:
        ConfigError: there is no column `id`, or a column of a kind that the store does not have.
    """
    check_name("side table", name)
    if file_stem(name) != name:
        raise ConfigError(f"side table {name!r}: expected a name that a folder can have, such as judge-v2.")
    waiting = iter([tables] if isinstance(tables, pa.Table) else tables)
    first = next(waiting, None)
    if first is None or KEY not in first.column_names or first.num_columns < 2:
        seen = "no rows" if first is None else f"the columns {', '.join(first.column_names)}"
        raise ConfigError(f"side table {name!r}: seen {seen}; expected `{KEY}` and at least one more.")
    said = meanings or {}
    fields = [f.with_metadata({"meaning": said[f.name]}) if f.name in said else f for f in first.schema]
    nested = [f.name for f in fields if pa.types.is_nested(f.type)]
    if nested:
        raise ConfigError(f"side table {name!r}: {', '.join(nested)}: expected one value a row.")
    schema = pa.schema(fields)
    target = f"{store.side_folder}/{name}/part-0.parquet"
    if "://" not in target:
        make_folder(Path(target).parent)
    folder = Folder(store.side_folder)
    path = f"{folder.root}/{name}/part-0.parquet"
    unfinished = f"{path}.unfinished" if folder.is_local else path
    with (
        folder.fs.open(unfinished, "wb") as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for table in chain([first], waiting):
            writer.write_table(table.cast(schema))
    if folder.is_local:
        Path(unfinished).replace(path)
    return target
