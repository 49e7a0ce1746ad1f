"""DuckDB inside this process: it reads the files of one folder, or none, and can reach nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.units import GB
from rollout_traces.store.time_limit import check_time, current_limit

MOST_THREADS = 4
MOST_MEMORY = 4 * GB
"""Bytes that DuckDB may take, half of the machine's memory where that is less."""

_SETTINGS = (
    "SET allocator_background_threads = true",
    "SET temp_directory = ''",
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET preserve_insertion_order = true",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
"""In this order: nothing can be set after the last. By the first of them memory that a statement is done with goes back
to the system within seconds, also where none follows."""


class Engine:
    """A DuckDB in memory that loads no extension.

    Args:
        folder: the only folder whose files it opens; none when None.
        threads: threads of one query; by default what the machine has, at most `MOST_THREADS`.
    """

    def __init__(self, folder: Path | None = None, threads: int | None = None) -> None:
        self._folder = folder
        self._threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
        self._database: duckdb.DuckDBPyConnection | None = None
        self._lock = threading.Lock()

    def run(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        relations: Mapping[str, Any] | None = None,
        *,
        on: duckdb.DuckDBPyConnection | None = None,
        timeout: float | None = None,
    ) -> pa.Table:
        """Runs one statement.

        Args:
            statement: the SQL, with `?` or `$name` for each parameter.
            parameters: their values.
            relations: Arrow tables or data sets by the names that the statement uses.
            on: what `cursor` gave; a new one when None.
            timeout: seconds after which it is interrupted; None for none but that of `time_limit`.

        Returns:
            The rows.

        Raises:
            StoreError: DuckDB refuses it, it takes too long or too much memory.
        """
        limit = current_limit()
        check_time()
        left = [timeout] if timeout is not None else []
        left += [limit.seconds_left] if limit is not None else []
        cursor = on or self.cursor()
        watch = threading.Timer(min(left), _interrupt, [cursor]) if left else None
        given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
        try:
            for name, relation in (relations or {}).items():
                cursor.register(name, relation)
            if watch is not None:
                watch.daemon = True
                watch.start()
            with nullcontext() if limit is None else limit.statement():
                return cursor.sql(statement, params=given).to_arrow_table()
        except duckdb.InterruptException:
            if limit is not None and not limit.seconds_left:
                raise limit.error() from None
            raise StoreError(f"sql: took longer than {timeout:g} seconds and was stopped.") from None
        except duckdb.Error as error:
            raise StoreError(f"sql: {error}") from error
        finally:
            if watch is not None:
                watch.cancel()
            if on is None:
                cursor.close()

    def close(self) -> None:
        """Lets go of its memory; the next statement opens it again."""
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            database.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of one thread's own; whoever asks closes it."""
        with self._lock:
            if self._database is None:
                self._database = duckdb.connect(":memory:")
                self._database.execute(f"SET threads = {self._threads}")
                self._database.execute(f"SET memory_limit = '{_memory()}B'")
                if self._folder is not None:
                    self._database.execute("SET allowed_directories = [?]", [str(self._folder.resolve())])
                self._database.execute("ATTACH ':memory:' AS condensed (COMPRESS)")
                for setting in _SETTINGS:
                    self._database.execute(setting)
            cursor = self._database.cursor()
        cursor.execute("USE condensed")
        return cursor


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


def _interrupt(cursor: duckdb.DuckDBPyConnection) -> None:
    with suppress(duckdb.Error):  # it may have been closed meanwhile
        cursor.interrupt()


def _memory() -> int:
    return min(MOST_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
