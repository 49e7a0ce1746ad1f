"""Rows of tables that TRL logs among a run's scalars, as traces: they have ids and rowids, and are read like these.

A row's rowid is below zero, so that none is a trace's; its id says in which row of scalars the table lies.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.store.rows import StoredTrace

if TYPE_CHECKING:
    from rollout_traces.sources.formats.trl_parquet import LoggedTable, Select, TableReader

_LOG = logging.getLogger("rollout_traces")
_PREFIX = "table-"
_ID = re.compile(rf"{_PREFIX}([0-9]{{1,16}})-([0-9]{{1,16}})")
_FIRST = -(1 << 40)
_ROW_BITS = 15
_MOST_TABLES = -_FIRST >> _ROW_BITS
KEPT = 8
"""Tables kept in memory, so that the conversations of a page are not read one by one."""


def is_row_of_table(trace_id: str) -> bool:
    """Tells whether an id is that of a table's row and of no trace."""
    return _place(trace_id) is not None


class LoggedTables:
    """The tables of a project.

    Args:
        select: asks the project.
    """

    def __init__(self, select: Select) -> None:
        self._select = select
        self._kept = lru_cache(KEPT)(self._read)
        self._lock = threading.Lock()

    def between(self, after: int, up_to: int, page_bytes: int) -> Iterator[tuple[int, list[StoredTrace]]]:
        """Every table among the rows of scalars, page by page.

        Args:
            after: id of a row to start behind.
            up_to: id of the last row.
            page_bytes: bytes of a page, of which every one but a single larger table has fewer.

        Yields:
            How far the reading is, and the rows of a page's tables; the last page may have none.
        """
        reader = self._new_reader()
        found: list[StoredTrace] = []
        size = 0
        for number, n_bytes in reader.numbers(after, up_to):
            if found and size + n_bytes > page_bytes:
                yield number - 1, found
                found, size = [], 0
            table = reader.table(number)
            if table is not None and number < _MOST_TABLES:
                found += _rows(table).values()
            size += n_bytes
        yield up_to, found

    @cached_property
    def _reader(self) -> TableReader:
        return self._new_reader()

    def _new_reader(self) -> TableReader:
        from rollout_traces.sources.formats.trl_parquet import TableReader

        return TableReader(self._select)

    def ids(self, trace_ids: Iterable[str]) -> dict[str, StoredTrace]:
        """Rows by id; those that are gone are left out."""
        wanted = {trace_id: place for trace_id in trace_ids if (place := _place(trace_id)) is not None}
        found = {}
        for trace_id, (number, row) in sorted(wanted.items(), key=lambda each: each[1]):
            stored = self._table(number).get(row)
            if stored is not None:
                found[trace_id] = stored
        return found

    def rowids(self, rowids: Sequence[int]) -> list[StoredTrace]:
        """Rows by rowid, in that order; those that are gone are left out."""
        places = (divmod(rowid - _FIRST, 1 << _ROW_BITS) for rowid in sorted(rowids))
        found = (self._table(number).get(row) for number, row in places)
        return [stored for stored in found if stored is not None]

    def _table(self, number: int) -> dict[int, StoredTrace]:
        with self._lock:
            return self._kept(number)

    def _read(self, number: int) -> dict[int, StoredTrace]:
        self._reader.forget()
        table = self._reader.table(number)
        return {} if table is None else _rows(table)


def _rows(table: LoggedTable) -> dict[int, StoredTrace]:
    from rollout_traces.sources.formats.trl_parquet import TABLE, row_metadata

    found = {}
    for n, (row, record) in enumerate(zip(table.rollouts(), table.records, strict=True)):
        inside = table.first + n
        if inside >= 1 << _ROW_BITS:
            _LOG.warning(
                "rollout-traces: a table of run %r has %d rows; %d are read.",
                table.run,
                table.first + len(table.records),
                1 << _ROW_BITS,
            )
            break
        found[inside] = StoredTrace(
            rowid=_FIRST + (table.number << _ROW_BITS) + inside,
            trace_id=f"{_PREFIX}{table.number}-{inside}",
            run_id=table.run_id,
            run_name=table.run,
            step=row.step,
            key=TABLE,
            trace_index=inside,
            timestamp=table.timestamp,
            messages=_json(row.conversation() or []),
            metadata=_json(row_metadata(row, record)),
            spans=None,
        )
    return found


def _json(value: Any) -> bytes:
    """JSON text; what has none is empty text, which is read as damaged."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return b""


def _place(trace_id: str) -> tuple[int, int] | None:
    found = _ID.fullmatch(trace_id)
    return (int(found[1]), int(found[2])) if found else None
