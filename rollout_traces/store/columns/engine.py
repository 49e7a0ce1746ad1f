"""DuckDB inside this process: relations are handed to it, and it can reach nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import duckdb
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.store.columns.interrupter import Interrupter
from rollout_traces.store.time_limit import check_time, current_limit

MOST_THREADS = 4
MEMORY_SHARE = 0.5
"""Share of the machine's memory that a query may take for itself, at most `MOST_MEMORY`."""
MOST_MEMORY = 4 << 30
SCANNED = 122_880
"""Rows that one thread scans together; DuckDB's own number."""

_SETTINGS = (
    "SET temp_directory = ''",
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET preserve_insertion_order = true",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
"""In this order: nothing can be set after the last."""


class Engine:
    """A DuckDB in memory that opens no file and loads no extension.

    Args:
        threads: threads of one query; by default what the machine has, at most `MOST_THREADS`.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
        self._database: duckdb.DuckDBPyConnection | None = None
        self._lock = threading.Lock()
        self._interrupter = Interrupter()

    def run(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        relations: Mapping[str, pa.Table] | None = None,
        *,
        timeout: float | None = None,
    ) -> pa.Table:
        """Runs one statement over some relations.

        Args:
            statement: the SQL, with `?` or `$name` for each parameter.
            parameters: their values.
            relations: Arrow tables by the names that the statement uses.
            timeout: seconds after which it is interrupted; None for none but that of `time_limit`.

        Returns:
            The rows.

        Raises:
            StoreError: DuckDB refuses it, it takes too long or too much memory.
        """
        limit = current_limit()
        check_time()
        left = [] if timeout is None else [timeout]
        left += [] if limit is None else [limit.seconds_left]
        cursor = self._cursor()
        try:
            for name, table in (relations or {}).items():
                cursor.register(name, pa.Table.from_batches(table.to_batches(SCANNED), table.schema))
            counted = nullcontext() if limit is None else limit.statement()
            with counted, self._interrupter.after(min(left, default=None), cursor.interrupt):
                return cursor.sql(statement, params=_listed(parameters)).to_arrow_table()
        except duckdb.InterruptException:
            if limit is not None and not limit.seconds_left:
                raise limit.error() from None
            raise StoreError(f"sql: took longer than {timeout:g} seconds and was stopped.") from None
        except duckdb.Error as error:
            raise StoreError(f"sql: {error}") from error
        finally:
            cursor.close()

    def close(self) -> None:
        """Lets go of its memory; the next statement opens it again."""
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            database.close()

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._database is None:
                self._database = duckdb.connect(":memory:")
                self._database.execute(f"SET threads = {self._threads}")
                self._database.execute(f"SET memory_limit = '{_memory()}B'")
                for setting in _SETTINGS:
                    self._database.execute(setting)
            return self._database.cursor()


def check_select(statement: str) -> None:
    """Refuses what is not exactly one SELECT.

    Raises:
        StoreError: it is several statements, another kind of statement, or none.
    """
    try:
        found = duckdb.extract_statements(statement)
    except duckdb.Error as error:
        raise StoreError(f"sql: {error}") from error
    if len(found) != 1:
        raise StoreError(f"sql: {len(found)} statements; expected one SELECT.")
    if found[0].type != duckdb.StatementType.SELECT:
        raise StoreError(
            f"sql: {found[0].type.name} is refused; expected one SELECT, the table is read only."
        )
    if found[0].query.strip().rstrip(";").rstrip() not in statement:  # DuckDB 1 turns PRAGMA into SELECT
        raise StoreError("sql: PRAGMA is refused; expected one SELECT, the table is read only.")


def _listed(parameters: Sequence[Any] | Mapping[str, Any]) -> Any:
    return dict(parameters) if isinstance(parameters, Mapping) else list(parameters)


def _memory() -> int:
    there = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else MOST_MEMORY
    )
    return int(min(MOST_MEMORY, MEMORY_SHARE * there))
