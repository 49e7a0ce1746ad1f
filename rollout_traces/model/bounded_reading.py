"""Parquet files from outside, decoded within bounds of memory.

A footer tells what a file says it takes; a page, a dictionary or a run of equal values may hold a thousand times
that. So everything is decoded in a child whose address space is bounded: what
comes back is Arrow, in pieces of at most `MOST_PIECE`. One child reads many files.

JSON of others is held against the memory that its values would take before it is decoded.
"""

from __future__ import annotations

import atexit
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rollout_traces.errors import FileRefused
from rollout_traces.model.text import SAID
from rollout_traces.model.units import GB, MB

if TYPE_CHECKING:
    import pyarrow as pa

MOST_MEMORY = 192 * MB
"""Bytes that decoding a file may take beside `PER_BYTE` for every byte that it has."""
PER_BYTE = 4
MOST_PIECE = 64 * MB
"""Bytes of the rows that are handed over together; of one row at least."""
MOST_ROWS = 1024
"""Rows decoded together."""
STATED_PIECE = 8 * MB
"""Bytes of rows decoded together, as the footer tells their size."""
MOST_FOOTER = 32 * MB
"""Bytes of a footer."""
MOST_RATIO = 200
"""Sizes of a file above which, where its footer says that it unpacks to as much, it is taken for a bomb."""
FREE = 64 * MB
"""Bytes that a file may unpack to whatever its size is."""
_LENGTH = struct.Struct("<q")


def batches(
    path: Path, columns: Sequence[str] | None = None, rows: int = 256, at: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some at a time.

    Args:
        columns: read these alone, those that it has; all when None.
        rows: most rows at a time; fewer where they are large.
        at: these rows alone, ascending.

    Raises:
        FileRefused: it is no parquet file, it is damaged, or it takes more memory than its size accounts for; the
            text names the file and what was found.
    """
    answer = _decoded(path, columns, rows, at)
    next(answer)
    yield from answer


def schema_of(path: Path) -> pa.Schema:
    """A file's schema, without its rows.

    Raises:
        FileRefused: as `batches`.
    """
    [schema] = _decoded(path, None, 0, None)
    return schema


def read(path: Path, columns: Sequence[str] | None = None, at: Sequence[int] | None = None) -> pa.Table:
    """A whole file, or some of its rows.

    Args:
        columns: read these alone, those that it has; all when None.
        at: read these rows alone, ascending.

    Raises:
        FileRefused: as `batches`; also where all rows together take more than its size accounts for.
    """
    import pyarrow as pa

    most = max(FREE, MOST_RATIO * path.stat().st_size)
    answer = _decoded(path, columns, MOST_ROWS, at)
    schema, found, taken = next(answer), [], 0
    for piece in answer:
        taken += piece.nbytes
        if taken > most:
            raise FileRefused(
                f"{path}: unpacks from {path.stat().st_size:,} to more than {taken:,} bytes; taken for a bomb, not read further."
            )
        found.append(piece)
    return pa.Table.from_batches(found, schema)


def _decoded(path: Path, columns: Sequence[str] | None, rows: int, at: Sequence[int] | None) -> Iterator[Any]:
    """The schema of a file, and then its rows."""
    import pyarrow as pa

    asked = {"columns": None if columns is None else list(columns), "at": None if at is None else list(at)}
    with _child() as child:
        child.ask({"path": str(path), "rows": rows, **asked})
        schema = None
        while (piece := child.answer(path)) is not None:
            data = pa.py_buffer(piece)
            if schema is None:
                yield (schema := pa.ipc.read_schema(data))
            else:
                yield pa.ipc.read_record_batch(data, schema)


@contextmanager
def on_disk(data: bytes, name: str) -> Iterator[Path]:
    """The bytes of a file as a file, which messages call by its name."""
    with tempfile.NamedTemporaryFile(prefix="rollout-traces-", suffix=".parquet") as file:
        file.write(data)
        file.flush()
        try:
            yield Path(file.name)
        except FileRefused as error:
            raise FileRefused(str(error).replace(file.name, name)) from None


class _Child:
    """A process that decodes; it can be asked for one file after another."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, question: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, path: Path) -> bytes | None:
        """The next piece; None behind the last one."""
        out = self.process.stdout
        assert out is not None
        head = out.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            self.end()
            raise FileRefused(
                f"{path}: decoding its {path.stat().st_size:,} bytes ended its process, as what takes more than "
                f"{_allowed(path) // MB} MB does; it is taken for a bomb or for damaged."
            )
        (length,) = _LENGTH.unpack(head)
        if length < 0:
            raise FileRefused(f"{path}: {out.read(-length).decode('utf-8', 'replace')}")
        return out.read(length) or None if length else None

    def end(self) -> None:
        with suppress(OSError):
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.process.wait()


def _allowed(path: Path) -> int:
    return MOST_MEMORY + PER_BYTE * path.stat().st_size


MOST_IDLE = min(os.cpu_count() or 1, 8)
"""Children that wait for their next files: as many as can work at the same time."""
_idle: list[tuple[int, _Child]] = []
"""These, each with the process it belongs to."""
_lending = threading.Lock()


@contextmanager
def _child() -> Iterator[_Child]:
    """Lends an idle child, or a new one; one that is left in the middle of an answer is ended."""
    with _lending:
        owner, child = _idle.pop() if _idle else (0, None)
    if child is None or owner != os.getpid() or child.process.poll() is not None:
        child = _Child()
    whole = False
    try:
        yield child
        whole = True
    except FileRefused:
        whole = True
        raise
    finally:
        with _lending:
            keep = whole and child.process.poll() is None and len(_idle) < MOST_IDLE
            if keep:
                _idle.append((os.getpid(), child))
        if not keep:
            child.end()


@atexit.register
def _end_idle() -> None:
    for owner, child in _idle:
        if owner == os.getpid():
            child.end()


def main() -> None:
    """Runs the child: reads questions, bounds itself, decodes, writes pieces."""
    leave_pandas_out()  # it would be imported within the bound
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        path = Path(asked["path"])
        try:
            _decode(path, asked["columns"], asked["rows"], asked["at"], out)
        except MemoryError:
            said = f"takes more than {_allowed(path) // MB} MB to decode, of {path.stat().st_size:,} bytes: taken for a bomb."
        except FileRefused as error:
            said = str(error).removeprefix(f"{path}: ")
        except Exception as error:  # noqa: BLE001  whatever a damaged file makes the library raise; it is said
            said = f"is no whole parquet file ({' '.join(str(error).split())[:SAID]}); its writer may still be at it."
        else:
            out.write(_LENGTH.pack(0))
            out.flush()
            continue
        reason = said.encode()
        out.write(_LENGTH.pack(-len(reason)) + reason)
        out.flush()


def _decode(
    path: Path, columns: Sequence[str] | None, rows: int, at: Sequence[int] | None, out: IO[bytes]
) -> None:
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
    bound_memory(_allowed(path))
    with pq.ParquetFile(path, thrift_string_size_limit=MOST_FOOTER, thrift_container_size_limit=MB) as file:
        stated = sum(file.metadata.row_group(g).total_byte_size for g in range(file.num_row_groups))
        size = path.stat().st_size
        if stated > max(FREE, MOST_RATIO * size):
            raise FileRefused(
                f"{path}: unpacks from {size:,} to {stated:,} bytes, it says itself: taken for a bomb."
            )
        fields = [f for f in file.schema_arrow if columns is None or not rows or f.name in columns]
        plain = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in fields]
        schema = pa.schema(plain, file.schema_arrow.metadata)
        _hand_over(schema.serialize(), out)
        # small enough that what the footer does not count, such as texts that many rows share, fits too
        n_rows = file.metadata.num_rows
        most = max(1, min(rows, MOST_ROWS, STATED_PIECE * n_rows // max(stated, 1)))
        first = 0
        for group in range(file.num_row_groups) if rows else ():
            after = first + file.metadata.row_group(group).num_rows
            if at is None or any(first <= row < after for row in at):
                for piece in file.iter_batches(most, [group], schema.names, use_threads=False):
                    arrays = [piece.column(field.name).cast(field.type) for field in schema]
                    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
                    whole.validate(full=True)
                    if at is not None:
                        whole = whole.take(
                            pa.array([r - first for r in at if first <= r < first + len(piece)], pa.int64())
                        )
                    for part in _parts(whole) if len(whole) else ():
                        _hand_over(part.serialize(), out)
                    first += len(piece)
            first = after


def _parts(piece: Any) -> Iterator[Any]:
    """A batch in parts of at most `MOST_PIECE`, a row at least."""
    n = max(1, piece.num_rows * MOST_PIECE // max(piece.nbytes, 1))
    for at in range(0, piece.num_rows, n):
        yield piece.slice(at, n)


def _hand_over(data: Any, out: IO[bytes]) -> None:
    out.write(_LENGTH.pack(len(data)))
    out.write(data)
    out.flush()


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=fullname)


def leave_pandas_out() -> None:
    """Keeps this process without pandas, which pyarrow would import, as on a machine that has none."""
    sys.meta_path.insert(0, _NoPandas())


def bound_memory(more: int) -> None:
    """Bounds the address space to what is taken now and so many bytes more, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))


MOST_DECODED = GB
"""Bytes that the values of one JSON text may take in memory."""
SMALL = 4 * MB
"""Bytes of JSON whose values are not counted: they cannot take a quarter of that."""


def check_values(raw: bytes) -> None:
    """Refuses JSON of many small values, such as `[{},{},...`, by counting its marks.

    Args:
        raw: the text.

    Raises:
        ValueError: its values would take more than `MOST_DECODED`.
    """
    if len(raw) <= SMALL:
        return
    # bytes that Python takes for an object, a list, and for a value of either
    most = len(raw) + 232 * raw.count(b"{") + 64 * raw.count(b"[") + 40 * raw.count(b",")
    if most > MOST_DECODED:
        raise ValueError(
            f"{len(raw):,} bytes that would take up to {most // MB:,} MB; expected at most {MOST_DECODED // MB:,}"
        )


if __name__ == "__main__":
    main()
