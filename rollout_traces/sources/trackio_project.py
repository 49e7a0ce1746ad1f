"""`trackio:PROJECT`: the traces that a trainer wrote to a local Trackio project, as rollouts to be imported."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollout_traces.errors import ConfigError
from rollout_traces.sources.lines import loads
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import RolloutRow
from rollout_traces.sources.trackio_traces import rollout_of
from rollout_traces.sources.trl_tables import TableReader

PREFIX = "trackio:"


def project_path(folder: Path, project: str) -> Path:
    """The database of a project.

    Raises:
        ConfigError: there is no such project.
    """
    stem = "".join(c for c in project if c.isalnum() or c in "-_").rstrip() or "default"
    path = folder / f"{stem}.db"
    if not path.is_file():
        raise ConfigError(f"{PREFIX}{project}: no such project in {folder}.")
    return path


def rows_of_project(path: Path, problems: Problems) -> Iterator[tuple[RolloutRow, str, int]]:
    """The rollouts of a project that others wrote, run by run and step by step.

    Args:
        path: its database, which is only read.
        problems: where traces that cannot be read, or that show no rollout, are noted.

    Yields:
        Each rollout with the name of its run, the table that it lies in, and its number there.
    """
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10)
    try:
        tables = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if "traces" in tables:
            yield from _traces(connection, path, problems)
        if "metrics" in tables:
            yield from _tables(connection, path, problems)
    except sqlite3.Error as error:
        problems.add(path, "unreadable_files", f"cannot be read ({error}).")
    finally:
        connection.close()


def _traces(
    connection: sqlite3.Connection, path: Path, problems: Problems
) -> Iterator[tuple[RolloutRow, str, int]]:
    own = others = 0
    for rowid, name, step, key, messages, metadata in connection.execute(
        "SELECT rowid, run_name, step, key, messages, metadata FROM traces ORDER BY run_name, step, rowid"
    ):
        try:
            fields = _json(metadata, dict)
            row = rollout_of(key, int(step or 0), _json(messages, list), fields)
        except (ValueError, TypeError, KeyError) as error:
            problems.add(path, "rows_refused", f"a trace of {name} cannot be understood ({error!r}).", rowid)
            continue
        if row is None:
            is_own = "schema" in fields and fields.get("kind") in ("rollout", "digest")
            own, others = own + is_own, others + (not is_own)
            continue
        row.run = name
        yield row, "traces", rowid
    if own:
        text = f"{own} traces were logged by rollout-traces, which reads them here: rollout-traces show -p {path.stem}"
        problems.add(path, "own_traces", text)
    if others:
        text = f"{others} traces show no rollout of a trainer that is known; they are passed over."
        problems.add(path, "traces_of_others", text)


def _tables(
    connection: sqlite3.Connection, path: Path, problems: Problems
) -> Iterator[tuple[RolloutRow, str, int]]:
    reader = TableReader(lambda sql, values: connection.execute(sql, values).fetchall())
    [(last,)] = connection.execute("SELECT coalesce(max(id), 0) FROM metrics")
    repeated = 0
    for number, _ in sorted(reader.numbers(0, last), key=lambda found: _run_first(connection, found[0])):
        table = reader.table(number)
        if table is None:
            continue
        repeated += table.repeated
        for row in table.rollouts():
            yield row, "metrics", number
    if repeated:
        text = f"{repeated} rows of tables repeat those of the table before; they are passed over."
        problems.add(path, "repeated_rows", text)


def _run_first(connection: sqlite3.Connection, number: int) -> tuple[str, int]:
    """Sorts tables by their run: each run of a copy has a logger, one after the other."""
    [(name,)] = connection.execute("SELECT run_name FROM metrics WHERE id = ?", (number,))
    return str(name), number


def _json(raw: Any, kind: type) -> Any:
    value = loads(raw if isinstance(raw, bytes) else str(raw or "null").encode())
    return value if isinstance(value, kind) else kind()
