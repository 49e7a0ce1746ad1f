"""Filling the index: a page of stored traces becomes words and a segment, inside one transaction."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.store import manifest
from rollout_traces.store.columns import ROW_BITS, assemble, read_ledger
from rollout_traces.store.reading import DIGEST, Reading, read_trace
from rollout_traces.store.rollout_table import write_segment
from rollout_traces.store.source import Source

logger = logging.getLogger("rollout_traces")

PLACES_AT_ONCE = 100
"""Places whose rows are read again and replaced together."""


class IndexWriter:
    """Adds rows and words to the index on a connection whose transaction the caller holds.

    Args:
        folder: where segments go.
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self.names = manifest.ColumnNames(connection)
        self._connection = connection
        self._folder = folder
        self._runs: dict[str, int] = dict(connection.execute("SELECT run_id, run FROM runs").fetchall())
        self._places: dict[tuple[int, str, int], int] = {}

    def run_no(self, run_id: str, name: str, started: str = "", last_step: int = 0) -> int:
        """The number of a run, a new one where it has none."""
        if run_id not in self._runs:
            cursor = self._connection.execute(
                f"INSERT INTO runs ({manifest.RUN}) VALUES (?, ?, ?, ?)",
                (run_id, name, started, last_step),
            )
            self._runs[run_id] = int(cursor.lastrowid or 0)
        return self._runs[run_id]

    def place(self, run_no: int, split: str, step: int) -> int:
        """The number of a step of a split of a run, a new one where it has none."""
        key = (run_no, split, step)
        if key not in self._places:
            self._places[key] = manifest.place_of(self._connection, *key)
        return self._places[key]

    def add_docs(
        self, docs: Sequence[tuple[int, str, str | None, int, str]], words: Iterable[bytes | None]
    ) -> range:
        """Adds conversations and their words.

        Args:
            docs: rowid in the source, id, uid, place and kind of each.
            words: its words; None for what is not searched.

        Returns:
            Their numbers, which are never given out again.
        """
        highest = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'docs'").fetchone()
        first = 1 + (highest[0] if highest else 0)
        numbers = range(first, first + len(docs))
        self._connection.executemany(
            "INSERT INTO docs (doc, src, id, uid, place, kind) VALUES (?, ?, ?, ?, ?, ?)",
            ((number, *doc) for number, doc in zip(numbers, docs, strict=True)),
        )
        self._connection.executemany(
            "INSERT INTO words (rowid, text) VALUES (?, ?)",
            ((number, text) for number, text in zip(numbers, words, strict=True) if text is not None),
        )
        return numbers

    def add_segment(self, table: pa.Table) -> None:
        """Adds rows of the table; nothing is written where there are none."""
        if not table.num_rows:
            return
        written = write_segment(self._folder, table)
        manifest.add_segment(self._connection, written, table)
        manifest.remember_attempts(self._connection, table)

    def say_left_out(self) -> None:
        """Warns of names for which there is no column left."""
        if self.names.left_out:
            logger.warning(
                "rollout-traces: %d names have no column in the index, which holds %d; they stay in the"
                " traces. The first: %s.",
                len(self.names.left_out),
                manifest.MAX_COLUMNS,
                sorted(self.names.left_out)[0],
            )
            self.names.left_out.clear()


class StepWriter(IndexWriter):
    """Adds traces to the index.

    Args:
        folder: where segments go.
        source: where a step is read from again when more of it comes.
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path, source: Source) -> None:
        super().__init__(connection, folder)
        self._source = source

    def add(self, batch: Sequence[Reading]) -> None:
        """Adds traces; a step of which something is stored already is put together anew.

        Args:
            batch: the traces, in order of arrival.
        """
        if not batch:
            return
        places = [self._place(reading) for reading in batch]
        docs = self.add_docs(
            [_document(reading, place) for reading, place in zip(batch, places, strict=True)],
            (None if reading.kind == DIGEST else reading.words for reading in batch),
        )
        arrived: dict[int, list[tuple[Reading, int]]] = {}
        for reading, place, doc in zip(batch, places, docs, strict=True):
            arrived.setdefault(place, []).append((reading, doc))
        again = [  # where a summary came, or a trace whose rollout may have a row already
            place
            for place, reads in arrived.items()
            if self._has_rows(place) and any(r.kind == DIGEST or "uid" in r.fields for r, _ in reads)
        ]
        self.put_together(again)
        self._write({place: reads for place, reads in arrived.items() if place not in set(again)})
        self.say_left_out()
        _say_unreadable(batch)

    def put_together(self, places: Sequence[int]) -> None:
        """Reads places from the source again, and replaces their rows.

        Args:
            places: their numbers; those of which the source has nothing any more lose their rows.
        """
        for at in range(0, len(places), PLACES_AT_ONCE):
            chunk = list(places[at : at + PLACES_AT_ONCE])
            holes = ", ".join("?" * len(chunk))
            docs = {
                src: (doc, place)
                for src, doc, place in self._connection.execute(
                    f"SELECT src, doc, place FROM docs WHERE place IN ({holes})", chunk
                )
            }
            reads: dict[int, list[tuple[Reading, int]]] = {}
            for stored in self._source.traces_at(list(docs)):
                doc, place = docs[stored.rowid]
                reads.setdefault(place, []).append((read_trace(stored), doc))
            self._connection.executemany("UPDATE parts SET dead = 1 WHERE place = ?", [(p,) for p in chunk])
            self._write(reads)

    def _write(self, places: Mapping[int, Sequence[tuple[Reading, int]]]) -> None:
        ledgers: list[pa.Table] = []
        traces: list[dict[str, Any]] = []
        n = 0
        for place, reads in places.items():
            first = reads[0][0]
            placed: dict[str, int | str] = {
                "place": place,
                "run_no": self._runs[first.stored.run_id],
                "split": first.split,
                "step": first.step,
            }
            found = [self._ledger(reading, placed) for reading, _ in reads if reading.kind == DIGEST]
            kept = [self._fields(reading, doc) | placed for reading, doc in reads if reading.kind != DIGEST]
            ledgers += [ledger for ledger in found if ledger is not None]
            traces += kept
            n += len(kept) + sum(ledger.num_rows for ledger in found if ledger is not None)
            if n >= manifest.SEGMENT_ROWS:
                self.add_segment(assemble(ledgers, traces))
                ledgers, traces, n = [], [], 0
        self.add_segment(assemble(ledgers, traces))

    def _fields(self, reading: Reading, doc: int) -> dict[str, Any]:
        """The columns that a trace knows."""
        stored = reading.stored
        named: dict[Any, Any] = {self.names.stored(name): value for name, value in reading.fields.items()}
        named.pop(None, None)
        return named | {
            "row": stored.rowid << ROW_BITS,
            "doc": doc,
            "id": stored.trace_id,
            "kind": reading.kind,
            "key": stored.key,
            "trace_index": stored.trace_index,
            "timestamp": stored.timestamp,
            "n_messages": reading.n_messages,
            "prompt": reading.prompt,
            "reply": reading.reply,
        }

    def _ledger(self, digest: Reading, placed: Mapping[str, int | str]) -> pa.Table | None:
        """The rows of a step summary's ledger; None where there is none, or it is damaged."""
        if digest.packed is None:
            return None
        try:
            n, columns = read_ledger(digest.packed)
        except StoreError as error:
            logger.warning("rollout-traces: the ledger of %s is left out: %s", digest.stored.trace_id, error)
            return None
        named = {self.names.stored(name): column for name, column in columns.items()}
        named.pop(None, None)
        named |= {name: pa.repeat(value, n) for name, value in placed.items()}
        first = digest.stored.rowid << ROW_BITS
        row, from_ledger = pa.array(range(first, first + n), pa.int64()), pa.repeat(True, n)
        return pa.table({**named, "row": row, "from_ledger": from_ledger})

    def _has_rows(self, place: int) -> bool:
        found = self._connection.execute("SELECT 1 FROM parts WHERE place = ? AND NOT dead LIMIT 1", (place,))
        return found.fetchone() is not None

    def _place(self, reading: Reading) -> int:
        stored = reading.stored
        run_no = self.run_no(stored.run_id, stored.run_name, stored.timestamp, stored.step)
        return self.place(run_no, reading.split, reading.step)


def runs_of_ours(connection: sqlite3.Connection, run_ids: set[str]) -> set[str]:
    """Finds, among some runs, those of which a rollout was logged by this package."""
    found = connection.execute(
        "SELECT run_id FROM runs WHERE run_id IN (SELECT value FROM json_each(?)) AND EXISTS"
        " (SELECT 1 FROM places JOIN docs USING (place) WHERE places.run = runs.run AND kind <> 'other')",
        (orjson.dumps(list(run_ids)).decode(),),
    )
    return {run_id for (run_id,) in found}


def _say_unreadable(batch: Sequence[Reading]) -> None:
    unreadable = [reading.stored.trace_id for reading in batch if reading.fields.get("unreadable")]
    if unreadable:
        logger.warning(
            "rollout-traces: %d traces of %d cannot be read whole, the first is %s. They are listed where"
            " `unreadable = 1`.",
            len(unreadable),
            len(batch),
            unreadable[0],
        )


def _document(reading: Reading, place: int) -> tuple[int, str, str | None, int, str]:
    uid, stored = reading.fields.get("uid"), reading.stored
    return stored.rowid, stored.trace_id, None if uid is None else str(uid), place, reading.kind
