"""Reads what a project's database on this machine holds, over one connection that stays open.

Trackio opens a connection for every question, and SQLite tidies its log up whenever the last one closes: that was half of
what a step cost that comes alone.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

TIMEOUT = 30.0
"""Seconds to wait for whoever has locked the database."""


class LocalDatabase:
    """Answers SQL that only reads.

    Args:
        path: the database; it may be removed and made again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None

    def __call__(self, sql: str) -> list[dict[str, Any]]:
        """The rows of an answer.

        Raises:
            FileNotFoundError: there is no such database.
            ValueError: it cannot be read now.
        """
        with self._lock:
            stat = self._path.stat()
            if self._opened != (stat.st_dev, stat.st_ino):
                self._open()
                self._opened = stat.st_dev, stat.st_ino
            assert self._connection is not None
            try:
                return [dict(row) for row in self._connection.execute(sql).fetchall()]
            except sqlite3.DatabaseError as error:
                self._close()
                raise ValueError(str(error)) from error

    def close(self) -> None:
        """Closes the connection; another question opens one again."""
        with self._lock:
            self._close()

    def _open(self) -> None:
        self._close()
        try:
            self._connection = sqlite3.connect(
                self._path, timeout=TIMEOUT, isolation_level=None, check_same_thread=False
            )
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA query_only = 1")
        except sqlite3.Error as error:
            self._close()
            raise ValueError(str(error)) from error

    def _close(self) -> None:
        connection, self._connection, self._opened = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
