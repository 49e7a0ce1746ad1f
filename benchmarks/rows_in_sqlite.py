"""The old way beside the table of columns: a row of SQLite for each rollout, put in by `executemany` (making the rows is
not counted)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.spent import spent


def rows_in_sqlite(
    rows: Sequence[Mapping[str, Any]], asked: Mapping[str, str], scale: float = 1.0
) -> dict[str, dict[str, float]]:
    """What filling and asking takes, as `spent` gives it, times `scale`.

    Args:
        rows: the rollouts; lists of names are stored as text.
        asked: statements over the table `rollouts`, by what they are called in the figures.
        scale: how many times as many rows the figures speak of.
    """
    database = sqlite3.connect(":memory:")
    names = ", ".join(f'"{name}"' for name in rows[0])
    database.execute(f"CREATE TABLE rollouts ({names})")

    def fill() -> None:
        plain = [[str(v) if isinstance(v, list) else v for v in row.values()] for row in rows]
        database.executemany(f"INSERT INTO rollouts VALUES ({', '.join('?' * len(rows[0]))})", plain)

    found = {"fill": spent(fill, lambda: None, repeats=1)}
    for name, statement in asked.items():
        found[name] = spent(partial(_answer, database, statement), lambda: None)
    return {
        name: {clock: round(value * scale, 1) for clock, value in took.items()}
        for name, took in found.items()
    }


def _answer(database: sqlite3.Connection, statement: str) -> list[Any]:
    return database.execute(statement).fetchall()
