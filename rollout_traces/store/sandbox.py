"""A person's own SQL, in a process that can reach nothing and has bounds of time and memory.

DuckDB's own memory limit does not count texts (`repeat('x', 2e9)` takes gigabytes under any), so the bound
is on the process's address space. Relations go in and the answer comes out as Arrow streams.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.store.columns.engine import Engine, check_select

MOST_MEMORY = 2 << 30
"""Bytes of address space that a statement may take beyond what its process has when it starts."""
MOST_ANSWER = 1 << 30
"""Bytes of an answer."""
STARTING = 30.0
"""Seconds that the process itself may take."""


def run_apart(
    relations_of: Callable[[str], Mapping[str, pa.Table]],
    query: str,
    parameters: Sequence[Any],
    timeout: float,
) -> pa.Table:
    """Runs one SELECT over relations in a process of its own.

    Args:
        relations_of: gives the relations that a statement reads, by name.
        query: the statement.
        parameters: its parameters, plain values.
        timeout: seconds after which it is stopped.

    Raises:
        StoreError: it is no single SELECT, it fails, or it is beyond a bound.
    """
    if timeout <= 0:
        raise StoreError(f"sql: timeout {timeout}, expected seconds above 0.")
    check_select(query)
    with tempfile.TemporaryDirectory(prefix="rollout-traces-sql-") as folder:
        relations = relations_of(query)
        for name, relation in relations.items():
            table = _of_one_dictionary(relation)
            with (
                pa.OSFile(str(Path(folder) / name), "wb") as file,
                pa.ipc.new_file(file, table.schema) as writer,
            ):
                writer.write_table(table)
        asked = {"query": query, "parameters": list(parameters), "timeout": timeout, "names": list(relations)}
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
        return _answer(Path(folder), done)


def _of_one_dictionary(table: pa.Table) -> pa.Table:
    """A table whose dictionaries, as a file has them, are the same in all pieces of a column."""
    for at, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            chunks = [
                pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), chunk.dictionary)
                for chunk in column.chunks
            ]
            table = table.set_column(at, table.column_names[at], pa.chunked_array(chunks))
    return table.unify_dictionaries()


def _answer(folder: Path, done: subprocess.CompletedProcess[bytes]) -> pa.Table:
    if (folder / "refused").exists():
        raise StoreError((folder / "refused").read_text("utf-8"))
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["killed"]
        raise StoreError(
            f"sql: its process ended with {done.returncode} ({said[0][:200]}); it may have taken more than"
            f" {MOST_MEMORY >> 20} MB."
        )
    with pa.OSFile(str(folder / "answer"), "rb") as file:
        return pa.ipc.open_file(file).read_all()


def main(folder: Path) -> None:
    """What the process does: reads relations, bounds itself, runs the statement, writes the answer."""
    asked = orjson.loads((folder / "asked.json").read_bytes())
    relations = {}
    for name in asked["names"]:
        with pa.memory_map(str(folder / name)) as file:
            relations[name] = pa.ipc.open_file(file).read_all()
    engine = Engine()
    try:
        engine.run("SELECT 1")
        _bound_memory()
        answer = engine.run(asked["query"], asked["parameters"], relations, timeout=asked["timeout"])
        if answer.nbytes > MOST_ANSWER:
            raise StoreError(
                f"sql: an answer of {answer.nbytes >> 20} MB; at most {MOST_ANSWER >> 20}. Use LIMIT."
            )
        with (
            pa.OSFile(str(folder / "answer"), "wb") as file,
            pa.ipc.new_file(file, answer.schema) as writer,
        ):
            writer.write_table(answer)
    except StoreError as error:
        (folder / "refused").write_text(str(error), "utf-8")
    except MemoryError:
        (folder / "refused").write_text(f"sql: took more than {MOST_MEMORY >> 20} MB of memory.", "utf-8")


def _bound_memory() -> None:
    """Bounds the address space to what is taken now and `MOST_MEMORY` more, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
