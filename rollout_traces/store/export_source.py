"""A partitioned export as a source, on this machine or reached through fsspec, without Trackio: texts are read where they
lie, rows are indexed by `export_index`.

`export.export_partitioned` writes it:

    run=run-001/step=12/part-0.parquet     a row a rollout
    _rollout_traces/about.json             project, runs, their configurations and attempts
    _rollout_traces/metrics.arrow          the logged scalars as they were stored
    _rollout_traces/loss_histograms.json   the histograms of loss tokens: run id, split, step, packed
    _columns/<name>/*.parquet              further columns by trace id, see `store.columns`

Names that begin with `_` are no data to readers of hive folders.
"""

from __future__ import annotations

import io
import re
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from rollout_traces.errors import ConfigError, StoreError, extra
from rollout_traces.model.bounded_reading import on_disk, read
from rollout_traces.model.packed_arrays import damage_said
from rollout_traces.model.text import SAID
from rollout_traces.store.columns import ROW_BITS
from rollout_traces.store.places import cached_index_path
from rollout_traces.store.rows import StoredTrace
from rollout_traces.store.source import SCALARS, LoggedRows, Source, SourceRun, SqlValue

ABOUT = "_rollout_traces/about.json"
METRICS = "_rollout_traces/metrics.arrow"
HISTOGRAMS = "_rollout_traces/loss_histograms.json"
SIDE = "_columns"
SCHEMA_VERSION = 1
MESSAGES, METADATA, SPANS = "messages", "metadata", "spans"
TEXTS = (MESSAGES, METADATA, SPANS)
"""Columns of traced rollouts that hold JSON text as Trackio stored it; `spans` hold the packed token track."""
PROTOCOLS = ("file", "s3", "gs", "gcs", "az", "abfs", "abfss", "hf")
"""Beginnings that an address may have; fsspec knows more, among them some that run or unpack what they find."""
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}


@dataclass(frozen=True)
class FoundFile:
    """A file below an address.

    Attributes:
        path: its path inside the file system.
        name: its path below the address, with `/`.
        size: bytes.
        stamp: changes with its content, as far as the file system says.
    """

    path: str
    name: str
    size: int
    stamp: str


class Folder:
    """A folder that fsspec reaches, read only.

    Args:
        address: a folder of this machine, `s3://bucket/path`, `hf://datasets/user/name/path` and the like.
        options: for fsspec's file system, such as `endpoint_url`; credentials come from the environment.

    Raises:
        ConfigError: the package for this kind of address is missing.
        StoreError: it is no address that is read.
    """

    def __init__(self, address: str, options: Mapping[str, Any] | None = None) -> None:
        protocol, there, _ = address.partition("://")
        protocol = protocol if there else "file"
        if protocol not in PROTOCOLS or "::" in address:
            raise StoreError(f"{address}: seen {protocol}://, expected one of {', '.join(PROTOCOLS)}.")
        self.address = address if there else str(Path(address).expanduser().resolve())
        self._protocol = protocol
        with extra("reading", f"reading {address}"):
            import fsspec
        try:
            self.fs, root = fsspec.core.url_to_fs(self.address, **dict(options or {}))
        except ImportError as error:
            package = _PACKAGES.get(protocol, "huggingface_hub")
            raise ConfigError(
                f"{address}: reading it needs {package}: pip install 'rollout-traces[remote]'"
                + ("." if package in ("s3fs", "huggingface_hub") else f" {package}.")
            ) from error
        except Exception as error:
            raise self._unreachable(error) from error
        self.root = str(root).rstrip("/")

    @property
    def is_local(self) -> bool:
        """True when it is of this machine."""
        return self._protocol == "file"

    def files(self, below: str = "") -> list[FoundFile]:
        """The parquet files, by name; those below `_` and `.` folders are left out.

        Args:
            below: look below this folder of it alone.

        Raises:
            StoreError: it cannot be listed, or is not there.
        """
        top = f"{self.root}/{below}" if below else self.root
        try:
            self.fs.invalidate_cache()
            found = self.fs.find(top, detail=True)
            if not found and not below:
                self.fs.info(top)
        except FileNotFoundError:
            if below:
                return []
            raise StoreError(f"{self.address}: nothing there.") from None
        except Exception as error:
            raise self._unreachable(error) from error
        files = []
        for path, info in sorted(found.items(), key=lambda each: _in_order(each[0])):
            name = path[len(top) :].lstrip("/")
            hidden = any(part.startswith(("_", ".")) for part in name.split("/"))
            if path.endswith(".parquet") and not hidden:
                files.append(FoundFile(path, name, int(info.get("size") or 0), _stamp(info)))
        return files

    def read(self, path: str) -> bytes:
        """A whole file.

        Args:
            path: inside the file system.

        Raises:
            StoreError: it cannot be read.
        """
        try:
            return bytes(self.fs.cat_file(path))
        except Exception as error:
            raise self._unreachable(error) from error

    def read_named(self, name: str) -> bytes | None:
        """A file below the address by its name; None where there is none."""
        try:
            return self.read(f"{self.root}/{name}")
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _unreachable(self, error: Exception) -> StoreError:
        said = str(error).strip().splitlines()[:1] or [""]
        return StoreError(
            f"{self.address} cannot be read: {type(error).__name__}: {said[0][:SAID]}. Look at the address, the"
            " network and the credentials in the environment."
        )


def _in_order(path: str) -> list[tuple[int, str]]:
    """Sorts `step=2` before `step=10`."""
    return [
        (int(part), "") if part.isascii() and part.isdigit() else (-1, part)
        for part in re.split(r"([0-9]{1,15})", path)
    ]


def _stamp(info: Mapping[str, Any]) -> str:
    keys = ("ETag", "etag", "blob_id", "md5Hash", "mtime", "LastModified", "last_modified", "created")
    return str(next((info[key] for key in keys if info.get(key) is not None), ""))


KEPT_FILES = 4
"""Files that are kept in memory, so that the conversations of one step are fetched together."""


class ExportSource(Source):
    """The folder that `export --partition-by` wrote.

    Args:
        address: where it is, see `Folder`.
        options: for fsspec's file system.

    Raises:
        StoreError: it cannot be reached, or holds no parquet file.
    """

    def __init__(self, address: str, options: Mapping[str, Any] | None = None) -> None:
        self.folder = Folder(address, options)
        self.address = self.folder.address
        self.project = address
        self.label = f"export {self.address}"
        self.reading: Callable[[], AbstractContextManager[sqlite3.Connection]] | None = None
        self._about: dict[str, Any] | None = None
        self._scalars: dict[str, LoggedRows] | None = None
        self._file = lru_cache(KEPT_FILES)(self.folder.read)
        if not self.files():
            raise StoreError(
                f"{self.address}: no parquet files. Write some with `rollout-traces export FOLDER --partition-by run,step`."
            )

    def files(self) -> list[FoundFile]:
        """The files of rollouts, by name."""
        return self.folder.files()

    def about(self) -> dict[str, Any]:
        """Reads the export's description of itself; empty where it has none."""
        if self._about is None:
            data = self.folder.read_named(ABOUT)
            with damage_said(f"{self.label}: {ABOUT}"):
                self._about = dict(orjson.loads(data)) if data else {}
        return self._about

    def forget(self) -> None:
        """Reads what may have changed again."""
        self._about = self._scalars = None
        self._file.cache_clear()

    def select(self, sql: str, parameters: Sequence[SqlValue] = ()) -> list[tuple[Any, ...]]:
        """An export has no tables of Trackio."""
        raise StoreError(f"{self.label} has no tables of Trackio; ask the store.")

    def index_path(self) -> Path:
        """In the user's cache."""
        return cached_index_path(self.address)

    def side_folder(self) -> str:
        """In the export."""
        return f"{self.address.rstrip('/')}/{SIDE}"

    def close(self) -> None:
        """Lets go of files in memory."""
        self.forget()

    def count(self, up_to: int | None = None) -> int:
        """Files of rollouts."""
        return len(self.files())

    def trace(self, trace_id: str) -> StoredTrace:
        """One whole trace."""
        found = self._of_ids([trace_id])
        if trace_id not in found:
            raise StoreError(f"{self.label}: no trace {trace_id!r}.")
        row = found[trace_id]
        texts = self._texts([row])[row]
        if texts.get(MESSAGES) is None:
            raise StoreError(
                f"{self.label}: it holds columns without conversations; write it again without --no-conversations."
            )
        messages, metadata = str(texts[MESSAGES]), texts.get(METADATA) or "{}"
        return StoredTrace(row, trace_id, "", "", 0, "", None, "", messages, metadata, texts.get(SPANS))

    def messages(self, rowids: Sequence[int], having: str) -> Iterator[tuple[int, str | bytes]]:
        """Messages of some rows; all of them, whatever they hold."""
        for row, texts in self._texts(rowids).items():
            if texts.get(MESSAGES) is not None:
                yield row, str(texts[MESSAGES])

    def texts_of(self, trace_ids: Sequence[str], *, spans: bool) -> dict[str, tuple[Any, Any, Any]]:
        """JSON texts of some traces: messages, metadata, spans."""
        rows = self._of_ids(trace_ids)
        texts = self._texts(list(rows.values()))
        return {
            i: (texts[row].get(MESSAGES), texts[row].get(METADATA), texts[row].get(SPANS) if spans else None)
            for i, row in rows.items()
            if texts[row].get(MESSAGES) is not None
        }

    def runs(self) -> list[SourceRun]:
        """The runs that the export speaks of."""
        return [
            SourceRun(str(r["id"]), str(r["name"]), str(r.get("started") or ""), int(r.get("last_step") or 0))
            for r in self.about().get("runs", [])
        ]

    def run_config(self, run_id: str) -> dict[str, Any]:
        """A run's configuration, empty when none was exported."""
        for run in self.about().get("runs", []):
            if run["id"] == run_id:
                return dict(run.get("config") or {})
        return {}

    def attempts(self) -> list[tuple[str, str, str, int]]:
        """Run id, split, attempt and the first step that the attempt wrote of it."""
        return [tuple(each) for each in self.about().get("attempts", [])]

    def metrics(self, run_id: str, after: int) -> LoggedRows:
        """Rows of a run's logged scalars in order of arrival: id, step, timestamp, JSON text."""
        if self._scalars is None:
            self._scalars = self._read_scalars()
        rows = self._scalars.get(run_id, [])
        first = bisect_right(rows, after, key=itemgetter(0))
        return rows[first : first + SCALARS]

    def loss_histograms(self, run_id: str, split: str, step: int) -> list[str]:
        """Reads the packed histograms of a step's loss tokens, one a part of it."""
        data = self.folder.read_named(HISTOGRAMS) or b"[]"
        with damage_said(f"{self.label}: {HISTOGRAMS}"):
            return [text for *of, text in orjson.loads(data) if of == [run_id, split, step]]

    def _read_scalars(self) -> dict[str, LoggedRows]:
        """Run id -> its logged scalars, in order of arrival."""
        data = self.folder.read_named(METRICS)
        if not data:
            return {}
        with damage_said(f"{self.label}: {METRICS}"):
            table = pa.ipc.open_file(io.BytesIO(data)).read_all()
            columns = [table[name].to_pylist() for name in ("run_id", "id", "step", "timestamp", "metrics")]
        found: dict[str, LoggedRows] = {}
        for run, *row in zip(*columns, strict=True):
            found.setdefault(run, []).append(tuple(row))
        return {run: sorted(rows, key=itemgetter(0)) for run, rows in found.items()}

    def _of_ids(self, trace_ids: Sequence[str]) -> dict[str, int]:
        """id -> number of its row."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT id, src FROM docs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY doc",
                (orjson.dumps(list(trace_ids)).decode(),),
            )
            return dict(rows.fetchall())

    def _path_of(self, file: int) -> str:
        """The path of a file by its number."""
        with self._reading() as connection:
            found = connection.execute("SELECT path FROM files WHERE file = ?", (file,)).fetchone()
        if found is None:
            raise StoreError(f"{self.label} changed; refresh and ask again.")
        return str(found[0])

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        if self.reading is None:
            raise StoreError(f"{self.label} is not indexed yet.")
        return self.reading()

    def _texts(self, rows: Sequence[int]) -> dict[int, dict[str, str | None]]:
        of_file: dict[int, list[int]] = {}
        for row in rows:
            of_file.setdefault(row >> ROW_BITS, []).append(row)
        found: dict[int, dict[str, str | None]] = {}
        for file, numbers in of_file.items():
            path = self._path_of(file)
            inside = [number & ((1 << ROW_BITS) - 1) for number in numbers]
            with damage_said(f"{self.label}: {path}"):
                found.update(zip(numbers, _read_texts(self._file(path), inside), strict=True))
        return found


def _read_texts(data: bytes, rows: Sequence[int]) -> list[dict[str, str | None]]:
    """The JSON texts of some rows of a file, by column name.

    Args:
        rows: which rows.
    """
    asked = sorted(set(rows))
    with on_disk(data, "the file of the export") as path:
        found = dict(zip(asked, read(path, TEXTS, asked).to_pylist(), strict=True))
    return [found[row] for row in rows]
