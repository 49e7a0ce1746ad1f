"""Side tables: further columns of traced rollouts that somebody computed, joined by trace id.

A side table is a parquet file, or a folder of them, with a column `id` and any others. Those of a project lie
in `rollout-columns/<project>/` beside it, those of an export in its folder `_columns/`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_traces.errors import FileRefused
from rollout_traces.model.bounded_reading import read, schema_of
from rollout_traces.store.columns.schema import Kind, kind_of_type, type_of

logger = logging.getLogger("rollout_traces")
KEY = "id"


@dataclass(frozen=True)
class SideColumns:
    """The columns of all side tables of a project at one moment.

    Attributes:
        stamp: changes with the files.
        files: column -> the files that hold it.
        kinds: column -> its kind.
        meanings: column -> what its field's metadata says under `meaning`.
    """

    stamp: tuple[tuple[str, int, int], ...] = ()
    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)

    def table(self, key: str, names: Sequence[str]) -> pa.Table:
        """Some columns by trace id, null where no side table speaks of a trace; the last file that speaks of it counts.

        Args:
            key: what the column of ids is called.
            names: the columns.
        """
        import pyarrow.compute as pc

        schema = pa.schema([(KEY, pa.string()), *((name, type_of(self.kinds[name])) for name in names)])
        paths = sorted({path for name in names for path in self.files[name]})
        blocks = [block for path in paths if (block := self._block(path, names)) is not None]
        whole = pa.concat_tables([schema.empty_table(), *blocks], promote_options="default")
        known = whole.filter(pc.is_valid(whole[KEY])).group_by(KEY, use_threads=False)
        newest = known.aggregate([(name, "last") for name in names])
        return newest.select([KEY, *(f"{name}_last" for name in names)]).rename_columns([key, *names])

    def _block(self, path: Path, names: Sequence[str]) -> pa.Table | None:
        """The columns of a file; None where it cannot be read."""
        mine = [name for name in names if path in self.files[name]]
        try:
            table = read(path, [KEY, *mine])
            columns = {name: table[name].cast(type_of(self.kinds[name]), safe=False) for name in mine}
            return pa.table({KEY: table[KEY].cast(pa.string()), **columns})
        except (FileRefused, pa.ArrowException, OSError, KeyError, ValueError) as error:
            logger.warning("rollout-traces: the side table %s is left out: %s", path, error)
            return None


def read_side_columns(folder: Path, known: SideColumns) -> SideColumns:
    """Reads the side tables of a folder as they are now.

    Args:
        folder: where they lie; it may be missing.
        known: what was read before; given back where no file changed.
    """
    if not folder.is_dir():
        return known if not known.stamp else SideColumns()
    paths = sorted(p for p in folder.rglob("*.parquet") if not p.name.startswith((".", "_")))
    stamp = tuple((str(path), (at := path.stat()).st_mtime_ns, at.st_size) for path in paths)
    if stamp == known.stamp:
        return known
    files: dict[str, list[Path]] = {}
    kinds: dict[str, Kind] = {}
    meanings: dict[str, str] = {}
    for path in paths:
        try:
            schema = schema_of(path)
        except (FileRefused, OSError) as error:
            logger.warning("rollout-traces: the side table %s is left out: %s", path, error)
            continue
        if KEY not in schema.names:
            logger.warning("rollout-traces: the side table %s is left out: it has no column id.", path)
            continue
        for column in schema:
            if column.name == KEY or pa.types.is_nested(column.type) or pa.types.is_null(column.type):
                continue
            files.setdefault(column.name, []).append(path)
            kinds.setdefault(column.name, kind_of_type(column.type))
            meaning = (column.metadata or {}).get(b"meaning")
            if meaning:
                meanings[column.name] = meaning.decode("utf-8", "replace")
    return SideColumns(stamp, files, kinds, meanings)


def remove_rows(folder: Path, trace_ids: Collection[str]) -> int:
    """Takes the rows of some traces out of every side table of a folder.

    Args:
        folder: where they lie; it may be missing.
        trace_ids: whose rows.

    Returns:
        How many rows went.
    """
    import pyarrow.compute as pc

    gone = 0
    ids = pa.array(sorted(trace_ids), pa.string())
    for path in sorted(folder.rglob("*.parquet")) if folder.is_dir() else ():
        table = read(path)
        if KEY not in table.column_names:
            continue
        kept = table.filter(pc.invert(pc.is_in(table[KEY].cast(pa.string()), value_set=ids)))
        if kept.num_rows < table.num_rows:
            unfinished = path.with_suffix(".unfinished")
            pq.write_table(kept, unfinished, compression="zstd")
            unfinished.replace(path)
            gone += table.num_rows - kept.num_rows
    return gone
