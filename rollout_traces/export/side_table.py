"""Writing a side table: columns that were computed from rollouts, which the store joins by trace id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import ConfigError
from rollout_traces.settings.run_settings import check_name, file_stem

if TYPE_CHECKING:
    import pyarrow as pa

    from rollout_traces.store import Store

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
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rollout_traces.model.private_files import make_folder
    from rollout_traces.store.exports.source import Folder

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
        table: Any = first
        while table is not None:
            writer.write_table(table.cast(schema))
            table = next(waiting, None)
    if folder.is_local:
        Path(unfinished).replace(path)
    return target
