"""Filling the index: one batch of stored traces inside one transaction."""

from __future__ import annotations

import base64
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.store.damage import damage_said
from rollout_traces.store.reading import Reading, Tags, read_trace, spaced
from rollout_traces.store.schema import MAX_COLUMNS, Registry
from rollout_traces.store.source import Source, StoredTrace

if TYPE_CHECKING:
    from rollout_traces.ledger.columns import Ledger

logger = logging.getLogger("rollout_traces")


@dataclass(frozen=True)
class Read:
    """A stored trace, and what the index keeps of it.

    Attributes:
        stored: the trace, its texts let go.
        reading: what is kept.
        words: the conversation's text as it is indexed.
        packed: the packed ledger of a digest.
    """

    stored: StoredTrace
    reading: Reading
    words: str
    packed: bytes | None


def read_batch(source: Source, after: int) -> list[Read]:
    """Reads the next traces of a source; touches no index, so that it can run beside the writing.

    Args:
        source: the source.
        after: rowid to start behind.
    """
    batch = []
    for stored in source.traces(after):
        reading = read_trace(stored)
        words = "" if reading.kind == "digest" else spaced(reading.text)
        packed = _packed_ledger(stored) if reading.kind == "digest" else None
        batch.append(Read(replace(stored, messages="", spans=None), replace(reading, text=""), words, packed))
    return batch


class Writer:
    """Adds traces to the index on a connection whose transaction the caller holds.

    Args:
        connection: the connection.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._runs: dict[str, int] = dict(connection.execute("SELECT run_id, run FROM runs").fetchall())
        self._traces = Registry(connection, "traces")
        self._ledger = Registry(connection, "ledger")

    def add(self, batch: Sequence[Read]) -> None:
        """Adds traces, each replacing an older one of the same rollout.

        Args:
            batch: the traces, in order of arrival.
        """
        for read in batch:
            if read.reading.kind == "digest":
                self._add_digest(read)
            else:
                self._add_trace(read)
        for table in (self._traces, self._ledger):
            if table.left_out:
                logger.warning(
                    "rollout-traces: %d metadata names have no column in the index, which holds %d; they stay in"
                    " the traces. The first: %s.",
                    len(table.left_out),
                    MAX_COLUMNS,
                    sorted(table.left_out)[0],
                )

    def _add_trace(self, read: Read) -> None:
        stored, reading = read.stored, read.reading
        run = self._run(stored)
        self._drop_older(run, reading)
        place = {
            "src": stored.rowid,
            "run": run,
            "split": reading.split,
            "step": reading.step,
            "kind": reading.kind,
        }
        doc = self._insert("traces", self._traces, place, reading.fields)
        self._connection.execute(
            "INSERT INTO heads VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                doc,
                stored.trace_id,
                stored.key,
                stored.trace_index,
                stored.timestamp,
                reading.n_messages,
                reading.prompt,
                reading.reply,
            ),
        )
        self._connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (doc, read.words))

    def _add_digest(self, read: Read) -> None:
        stored, reading = read.stored, read.reading
        run = self._run(stored)
        fields = orjson.dumps(dict(reading.fields)).decode()
        cursor = self._connection.execute(
            "INSERT INTO digests (src, id, run, split, step, n_rows, fields, packed) VALUES (?, ?, ?, ?, ?, 0, ?, ?)",
            (stored.rowid, stored.trace_id, run, reading.split, reading.step, fields, read.packed),
        )
        if read.packed is None:
            return
        digest = cursor.lastrowid
        try:
            rows = _ledger_rows(read.packed)
        except StoreError as error:
            logger.warning("rollout-traces: the ledger of %s is left out: %s", stored.trace_id, error)
            return
        place = {"digest": digest, "run": run, "split": reading.split, "step": reading.step}
        slot = self._ledger.slot("uid", "")
        for row in rows:
            self._connection.execute(
                f"DELETE FROM ledger WHERE m{slot} = ? AND run = ?", (row.get("uid"), run)
            )
            self._insert("ledger", self._ledger, place, row)
        self._connection.execute(
            "UPDATE digests SET n_rows = (SELECT count(*) FROM ledger l WHERE l.digest = digests.digest)"
            " WHERE run = ? AND split = ? AND step = ?",
            (run, reading.split, reading.step),
        )

    def _insert(
        self, table: str, registry: Registry, fixed: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> int:
        values = dict(fixed)
        for name, value in fields.items():
            slot = registry.slot(name, value)
            if slot is not None:
                values[f"m{slot}"] = value
        holes = ", ".join("?" * len(values))
        cursor = self._connection.execute(
            f"INSERT INTO {table} ({', '.join(values)}) VALUES ({holes})", tuple(values.values())
        )
        return int(cursor.lastrowid or 0)

    def _drop_older(self, run: int, reading: Reading) -> None:
        uid = reading.fields.get("uid")
        if uid is None:
            return
        slot = self._traces.slot("uid", "")
        for (doc,) in self._connection.execute(
            f"SELECT doc FROM traces WHERE m{slot} = ? AND run = ?", (uid, run)
        ).fetchall():
            self._connection.execute("DELETE FROM traces WHERE doc = ?", (doc,))
            self._connection.execute("DELETE FROM heads WHERE doc = ?", (doc,))

    def _run(self, stored: StoredTrace) -> int:
        if stored.run_id not in self._runs:
            cursor = self._connection.execute(
                "INSERT INTO runs (run_id, name, started, last_step) VALUES (?, ?, ?, ?)",
                (stored.run_id, stored.run_name, stored.timestamp, stored.step),
            )
            self._runs[stored.run_id] = int(cursor.lastrowid or 0)
        return self._runs[stored.run_id]


def forget_all_but(connection: sqlite3.Connection, there: Mapping[int, str]) -> int:
    """Drops the traces and digests that a source no longer has under the same rowid and id.

    Args:
        connection: a connection whose transaction the caller holds.
        there: rowid -> id of every trace of the source.

    Returns:
        How many were dropped.
    """
    found = connection.execute(
        "SELECT t.doc, t.src, h.id FROM traces t JOIN heads h ON h.doc = t.doc"
    ).fetchall()
    docs = [(doc,) for doc, src, trace_id in found if there.get(src) != trace_id]
    found = connection.execute("SELECT digest, src, id FROM digests").fetchall()
    digests = [(digest,) for digest, src, trace_id in found if there.get(src) != trace_id]
    connection.executemany("DELETE FROM traces WHERE doc = ?", docs)
    connection.executemany("DELETE FROM heads WHERE doc = ?", docs)
    connection.executemany("DELETE FROM ledger WHERE digest = ?", digests)
    connection.executemany("DELETE FROM digests WHERE digest = ?", digests)
    return len(docs) + len(digests)


def _packed_ledger(stored: StoredTrace) -> bytes | None:
    from rollout_traces.trace.conversion import LEDGER_KEY

    try:
        with damage_said(f"the ledger of {stored.trace_id}"):
            spans = orjson.loads(stored.spans or b"[]")
            text = next((span[LEDGER_KEY] for span in spans if span.get(LEDGER_KEY)), None)
            return None if text is None else base64.b64decode(text, validate=True)
    except StoreError as error:
        logger.warning("rollout-traces: %s", error)
        return None


def _ledger_rows(packed: bytes) -> list[dict[str, Any]]:
    from rollout_traces.ledger import columns as ledgers

    with damage_said("ledger"):
        return _rows_of(ledgers.unpack(packed))


def _rows_of(ledger: Ledger) -> list[dict[str, Any]]:
    from rollout_traces.ledger import columns as ledgers

    kinds = {name: ledgers.kind_of(name) for name in ledger.columns}
    rows = []
    for b in range(ledger.n_rows):
        known = ledger.row(b)
        rows.append(
            {
                name: Tags.of(value) if kinds[name] == "tags" else value
                for name, value in known.items()
                if value is not None and name not in ("split", "step")
            }
        )
    return rows
