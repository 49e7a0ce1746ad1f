"""Every rollout as a hive-partitioned parquet data set, which DuckDB, Ray Data, Spark and polars read.

`open_store(folder)` reads it again, see `store.export_source` for what lies where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from rollout_traces.errors import ConfigError
from rollout_traces.export.rows import decoded
from rollout_traces.model.names import VERSION
from rollout_traces.model.whole_files import empty_folder, unfinished
from rollout_traces.store.export_source import ABOUT, HISTOGRAMS, METRICS, SCHEMA_VERSION, TEXTS
from rollout_traces.store.step_metrics import loss_histograms_in

if TYPE_CHECKING:
    from rollout_traces.store import Store

ROW_GROUP = 65_536
"""Rows in one row group: large enough for scans, small enough to be skipped."""
TEXT_ROW_GROUP = 1024
"""Rows in one row group of a file with conversations, so that one of them is read without many others; and rows whose
conversations are in memory at once."""
MOST_PARTITIONS = 1 << 20
_MEANINGS = {
    "messages": "the conversation, OpenAI style, as JSON text; null where the rollout was not traced",
    "metadata": "everything the trace says of the rollout, as JSON text",
    "spans": "turns, tool calls and the packed token track, as JSON text",
}


def export_partitioned(
    store: Store,
    folder: Path | str,
    *,
    partition_by: Sequence[str] = ("run", "step"),
    where: str = "",
    runs: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    steps: tuple[int | None, int | None] = (None, None),
    text: str | None = None,
    conversations: bool = True,
    tokens: bool = False,
) -> int:
    """Writes every rollout of a filter, traced or not: `folder/run=…/step=…/part-0.parquet`.

    What each column means, with its unit, is in its field's metadata under `meaning`.

    Args:
        store: where from.
        folder: a new or empty folder.
        partition_by: columns that become folders, with few values each.
        where: a filter.
        runs: ids or names of runs; all when None.
        splits: which splits; all when None.
        steps: first and last step, both included.
        text: words that the conversation must hold.
        conversations: write the conversations and metadata of traced rollouts too.
        tokens: write their spans with the packed token tracks too.

    Returns:
        How many rows were written.

    Raises:
        ConfigError: the folder is not empty, or a column to partition by is a list of names.
        NotWritten: it cannot be written.
        QueryError: the filter or a column cannot be understood.
    """
    import pyarrow.dataset as ds

    folder = empty_folder(folder)
    table = store.rollouts(where, None, runs, splits, steps, None, None, text)
    _check_partitions(table, partition_by)
    with_texts = conversations or tokens
    texts = TEXTS if tokens else TEXTS[:2] if conversations else ()
    meanings = {info.name: info.meaning for info in store.columns("all")} | _MEANINGS
    fields = [*table.schema, *(pa.field(name, pa.string()) for name in texts)]
    schema = pa.schema(
        [f.with_metadata({"meaning": meanings[f.name]}) if meanings.get(f.name) else f for f in fields],
        metadata={"written_by": "rollout-traces", "project": store.project},
    )
    batches = _with_texts(store, table, texts) if with_texts else iter(table.to_batches())
    with unfinished(folder, folder=True) as made:
        ds.write_dataset(
            (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches),
            made,
            schema=schema,
            format="parquet",
            partitioning=ds.partitioning(pa.schema([schema.field(n) for n in partition_by]), flavor="hive"),
            basename_template="part-{i}.parquet",
            max_partitions=MOST_PARTITIONS,
            max_open_files=256,
            max_rows_per_group=TEXT_ROW_GROUP if with_texts else ROW_GROUP,
            file_options=ds.ParquetFileFormat().make_write_options(compression="zstd"),
        )
        _write_about(store, made, runs)
    return int(table.num_rows)


def _check_partitions(table: Any, partition_by: Sequence[str]) -> None:
    names = set(table.column_names)
    lists = [n for n in partition_by if n in names and pa.types.is_list(table.schema.field(n).type)]
    wrong = [name for name in partition_by if name not in names] or lists
    if wrong:
        raise ConfigError(f"partition_by: {', '.join(wrong)}: expected columns with one value a row.")


def _with_texts(store: Store, table: Any, texts: Sequence[str]) -> Iterator[Any]:
    """The rows with what their traces say, some at a time."""
    for batch in table.to_batches(max_chunksize=TEXT_ROW_GROUP):
        ids = batch["id"].to_pylist()
        found = store.source.texts_of([i for i in ids if i is not None], spans="spans" in texts)
        nothing = (None, None, None)
        columns = [
            pa.array([decoded(found.get(i, nothing)[at]) if i else None for i in ids], pa.string())
            for at in range(len(texts))
        ]
        yield pa.RecordBatch.from_arrays([*batch.columns, *columns], names=[*batch.schema.names, *texts])


def _write_about(store: Store, folder: Path, runs: Sequence[str] | None) -> None:
    """Writes all that is no column: the runs, their configurations, attempts, logged scalars and loss histograms."""
    chosen = [store.run(run) for run in runs] if runs is not None else store.runs()
    ids = {info.id for info in chosen}
    about = {
        "schema": SCHEMA_VERSION,
        "written_by": f"rollout-traces {VERSION}",
        "project": store.project,
        "runs": [
            {"id": r.id, "name": r.name, "started": r.started, "last_step": r.last_step}
            | {"config": store.config(r.id)}
            for r in chosen
        ],
        "attempts": [list(each) for each in store.attempts() if each[0] in ids],
    }
    (folder / ABOUT).parent.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).write_bytes(orjson.dumps(about, default=str))
    histograms = [
        (run.id, split, info.step, found)
        for run in chosen
        for split in run.splits
        for info in store.steps(run.id, split)
        for found in loss_histograms_in(store, run.id, split, info)
    ]
    (folder / HISTOGRAMS).write_bytes(orjson.dumps(histograms))
    text, number = pa.string(), pa.int64()
    schema = pa.schema({"run_id": text, "id": number, "step": number, "timestamp": text, "metrics": text})
    with (
        pa.OSFile(str(folder / METRICS), "wb") as file,
        pa.ipc.new_file(file, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer,
    ):
        for info in chosen:
            after = 0
            while rows := store.source.metrics(info.id, after):
                after = rows[-1][0]
                kept = [
                    dict(zip(schema.names, (info.id, n, step, at, decoded(said)), strict=True))
                    for n, step, at, said in rows
                    if type(step) is int
                ]
                writer.write_table(pa.Table.from_pylist(kept, schema=schema))
