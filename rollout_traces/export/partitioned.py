"""Every rollout as a hive-partitioned parquet data set, which DuckDB, Ray Data, Spark and polars read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import ConfigError

if TYPE_CHECKING:
    from rollout_traces.store import Store

ROW_GROUP = 65_536
"""Rows in one row group: large enough for scans, small enough to be skipped."""
MOST_PARTITIONS = 1 << 20


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
) -> int:
    """Writes the columns of every rollout of a filter, traced or not: `folder/run=…/step=…/part-0.parquet`.

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

    Returns:
        How many rows were written.

    Raises:
        ConfigError: the folder is not empty, or a column to partition by is a list of names.
        QueryError: the filter or a column cannot be understood.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; expected a new folder.")
    table = store.rollouts(where, None, runs, splits, steps, None, None, text)
    missing = [name for name in partition_by if name not in table.column_names]
    lists = [
        name
        for name in partition_by
        if name not in missing and pa.types.is_list(table.schema.field(name).type)
    ]
    if missing or lists:
        raise ConfigError(
            f"partition_by: {', '.join(missing or lists)}: expected columns with one value a row."
        )
    table = _described(store, table)
    ds.write_dataset(
        table,
        folder,
        format="parquet",
        partitioning=ds.partitioning(pa.schema([table.schema.field(n) for n in partition_by]), flavor="hive"),
        basename_template="part-{i}.parquet",
        max_partitions=MOST_PARTITIONS,
        max_open_files=256,
        max_rows_per_group=ROW_GROUP,
        file_options=ds.ParquetFileFormat().make_write_options(compression="zstd"),
    )
    return int(table.num_rows)


def _described(store: Store, table: Any) -> Any:
    """The table with the meaning of each column, and where it came from."""
    import pyarrow as pa

    meanings = {info.name: info.meaning for info in store.columns("all")}
    fields = [
        field.with_metadata({"meaning": meanings[field.name]}) if meanings.get(field.name) else field
        for field in table.schema
    ]
    about = {"written_by": "rollout-traces", "project": store.project}
    return table.cast(pa.schema(fields, metadata=about))
