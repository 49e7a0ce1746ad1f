"""An export as a source: texts are read where they lie, rows are indexed by `exports.index`."""

from __future__ import annotations

import io
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import orjson
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.packed_arrays import damage_said
from rollout_traces.store.columns.assemble import ROW_BITS
from rollout_traces.store.exports import ABOUT, MESSAGES, METADATA, METRICS, SIDE, SPANS
from rollout_traces.store.exports.address import Folder, FoundFile
from rollout_traces.store.exports.rows import read_texts
from rollout_traces.store.places import cached_index_path
from rollout_traces.store.rows import StoredTrace
from rollout_traces.store.source import Source, SourceRun, SqlValue

KEPT_BYTES = 256 << 20
"""Bytes of files that are kept in memory, so that the conversations of one step are fetched together."""


class Locations(Protocol):
    """Where the traces of an export are, as its index knows it."""

    def of_ids(self, trace_ids: Sequence[str]) -> dict[str, int]:
        """id -> number of its row, `file << ROW_BITS | row`."""

    def path_of(self, file: int) -> str:
        """The path of a file by its number."""


class ExportSource(Source):
    """The folder that `export --partition-by` wrote.

    Args:
        address: where it is, see `exports.address.Folder`.
        options: for fsspec's file system.

    Raises:
        StoreError: it cannot be reached, or holds no parquet file.
    """

    def __init__(self, address: str, options: Mapping[str, Any] | None = None) -> None:
        self.folder = Folder(address, options)
        self.address = self.folder.address
        self.project = address
        self.label = f"export {self.address}"
        self.locations: Locations | None = None
        self._about: dict[str, Any] | None = None
        self._scalars: dict[str, list[tuple[int, int, str, str | bytes]]] | None = None
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        if not self.files():
            raise StoreError(
                f"{self.address}: no parquet files. Write some with `rollout-traces export FOLDER --partition-by run,step`."
            )

    def files(self) -> list[FoundFile]:
        """The files of rollouts, by name."""
        return self.folder.files(".parquet")

    def about(self) -> dict[str, Any]:
        """What the export says of itself; empty where it says nothing."""
        if self._about is None:
            data = self.folder.read_named(ABOUT)
            with damage_said(f"{self.label}: {ABOUT}"):
                self._about = dict(orjson.loads(data)) if data else {}
        return self._about

    def forget(self) -> None:
        """Reads what may have changed again."""
        self._about = self._scalars = None
        with self._lock:
            self._files.clear()

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
        found = self._locations.of_ids([trace_id])
        if trace_id not in found:
            raise StoreError(f"{self.label}: no trace {trace_id!r}.")
        row = found[trace_id]
        texts = self._texts([row])[row]
        if texts.get(MESSAGES) is None:
            raise StoreError(
                f"{self.label}: it holds columns without conversations; write it again without --no-conversations."
            )
        return StoredTrace(
            row, trace_id, "", "", 0, "", None, "", texts.get(MESSAGES) or "[]",
            texts.get(METADATA) or "{}", texts.get(SPANS),
        )  # fmt: skip

    def messages(self, rowids: Sequence[int], having: str) -> Iterator[tuple[int, str | bytes]]:
        """Messages of some rows; all of them, whatever they hold."""
        for row, texts in self._texts(rowids).items():
            if texts.get(MESSAGES) is not None:
                yield row, str(texts[MESSAGES])

    def texts_of(self, trace_ids: Sequence[str], *, spans: bool) -> dict[str, tuple[Any, Any, Any]]:
        """JSON texts of some traces: messages, metadata, spans."""
        rows = self._locations.of_ids(trace_ids)
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

    def metrics(self, run_id: str, after: int, limit: int = 5000) -> list[tuple[int, int, str, str | bytes]]:
        """Rows of a run's logged scalars in order of arrival: id, step, timestamp, JSON text."""
        if self._scalars is None:
            self._scalars = self._read_scalars()
        rows = self._scalars.get(run_id, [])
        first = bisect_right(rows, after, key=itemgetter(0))
        return rows[first : first + limit]

    def _read_scalars(self) -> dict[str, list[tuple[int, int, str, str | bytes]]]:
        """Run id -> its logged scalars, in order of arrival."""
        data = self.folder.read_named(METRICS)
        if not data:
            return {}
        with damage_said(f"{self.label}: {METRICS}"):
            table = pa.ipc.open_file(io.BytesIO(data)).read_all()
        columns = (table[name].to_pylist() for name in ("run_id", "id", "step", "timestamp", "metrics"))
        found: dict[str, list[tuple[int, int, str, str | bytes]]] = {}
        for run, *row in zip(*columns, strict=True):
            found.setdefault(run, []).append(tuple(row))
        return {run: sorted(rows, key=itemgetter(0)) for run, rows in found.items()}

    @property
    def _locations(self) -> Locations:
        if self.locations is None:
            raise StoreError(f"{self.label} is not indexed yet.")
        return self.locations

    def _texts(self, rows: Sequence[int]) -> dict[int, dict[str, str | None]]:
        of_file: dict[int, list[int]] = {}
        for row in rows:
            of_file.setdefault(row >> ROW_BITS, []).append(row)
        found: dict[int, dict[str, str | None]] = {}
        for file, numbers in of_file.items():
            path = self._locations.path_of(file)
            inside = [number & ((1 << ROW_BITS) - 1) for number in numbers]
            with damage_said(f"{self.label}: {path}"):
                found.update(zip(numbers, read_texts(self._file(path), inside), strict=True))
        return found

    def _file(self, path: str) -> bytes:
        with self._lock:
            if path in self._files:
                self._files.move_to_end(path)
                return self._files[path]
        data = self.folder.read(path)
        with self._lock:
            self._files[path] = data
            while len(self._files) > 1 and sum(map(len, self._files.values())) > KEPT_BYTES:
                self._files.popitem(last=False)
        return data
