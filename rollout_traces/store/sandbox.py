"""A person's own SQL, in a process that can reach nothing and has bounds of time and memory.

DuckDB's own memory limit does not count texts (`repeat('x', 2e9)` takes gigabytes under any), so the bound
is on the process's address space. Relations go in and the answer comes out as Arrow streams.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.bounded_reading import bound_memory, leave_pandas_out
from rollout_traces.model.text import SAID
from rollout_traces.model.units import GB, MB
from rollout_traces.store.engine import Engine
from rollout_traces.store.rollout_table import State

MOST_MEMORY = 2 * GB
"""Bytes of address space that a statement may take beyond what its process has when it starts."""
MOST_ANSWER = GB
"""Bytes of an answer."""
STARTING = 30.0
"""Seconds that the process itself may take."""


def run_apart(
    state: State, metrics: pa.Table | None, query: str, parameters: Sequence[Any], timeout: float
) -> pa.Table:
    """Runs one SELECT over `rollouts` and `metrics` in a process of its own.

    Args:
        state: what the table is.
        metrics: the logged numbers; None where the statement reads none.
        query: the statement, see `check_select`.
        parameters: its parameters, plain values.
        timeout: seconds after which it is stopped.

    Raises:
        FileNotFoundError: a segment was replaced meanwhile.
        StoreError: it fails, or is beyond a bound.
    """
    with tempfile.TemporaryDirectory(prefix="rollout-traces-sql-") as folder:
        tables = state.tables() | ({} if metrics is None else {"metrics": metrics})
        for name, table in tables.items():
            _write(Path(folder) / name, table)
        asked = {
            "query": query,
            "parameters": list(parameters),
            "timeout": timeout,
            "names": list(tables),
            "segments": {f"segment_{segment.number}": str(segment.path) for segment in state.segments},
            "views": [
                f"CREATE OR REPLACE VIEW stored AS {state.stored(lambda segment: f'segment_{segment.number}')}",
                *state.views(),
            ],
        }
        (Path(folder) / "asked.json").write_bytes(orjson.dumps(asked))
        try:
            done = subprocess.run(
                [sys.executable, "-m", __name__, folder],
                capture_output=True,
                timeout=timeout + STARTING,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StoreError(f"sql: took longer than {timeout:g} seconds and was stopped.") from None
        for segment in state.segments if done.returncode else ():
            segment.path.stat()
        return _answer(Path(folder), done)


def _write(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _answer(folder: Path, done: subprocess.CompletedProcess[bytes]) -> pa.Table:
    if (folder / "refused").exists():
        raise StoreError((folder / "refused").read_text("utf-8"))
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["killed"]
        raise StoreError(
            f"sql: its process ended with {done.returncode} ({said[0][:SAID]}); it may have taken more than"
            f" {MOST_MEMORY // MB} MB."
        )
    with pa.OSFile(str(folder / "answer"), "rb") as file:
        return pa.ipc.open_file(file).read_all()


def main(folder: Path) -> None:
    """Runs the process: opens relations, bounds itself, runs the statement, writes the answer."""
    leave_pandas_out()
    import pyarrow.dataset as ds

    asked = orjson.loads((folder / "asked.json").read_bytes())
    relations: dict[str, Any] = {name: ds.dataset(path) for name, path in asked["segments"].items()}
    for name in asked["names"]:
        with pa.memory_map(str(folder / name)) as file:
            relations[name] = pa.ipc.open_file(file).read_all()
    engine = Engine()
    cursor = engine.cursor()
    try:
        engine.run("SELECT 1", (), relations, on=cursor)
        for view in asked["views"]:
            cursor.execute(view.replace("CREATE OR REPLACE", "CREATE TEMP"))
        bound_memory(MOST_MEMORY)
        answer = engine.run(asked["query"], asked["parameters"], on=cursor, timeout=asked["timeout"])
        if answer.nbytes > MOST_ANSWER:
            raise StoreError(
                f"sql: an answer of {answer.nbytes // MB} MB; at most {MOST_ANSWER // MB}. Use LIMIT."
            )
        _write(folder / "answer", answer)
    except StoreError as error:
        (folder / "refused").write_text(str(error), "utf-8")
    except MemoryError:
        (folder / "refused").write_text(f"sql: took more than {MOST_MEMORY // MB} MB of memory.", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # a thread that still reads ahead would end the interpreter with an abort
