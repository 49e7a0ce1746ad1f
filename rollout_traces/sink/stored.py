"""Reads back what Trackio stored of a run, to decide whether a record is removed or sent again.

Only new rows are read each time, by their row number; the questions go through Trackio's own read-only SQL,
which a local project, a self-hosted server and a Space all answer.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.model.packed_batch import StepKey
from rollout_traces.trace.conversion import STEPS, TRAJECTORIES, TraceRecord, read_details, read_ledger

PAGE = 5000
"""Rows asked for at once; Trackio answers with 10,000 at most."""
Query = Callable[[str], list[dict[str, Any]]]


@dataclass(frozen=True)
class StoredRow:
    """One rollout's trace in the store.

    Attributes:
        uid: the rollout's uid.
        selected_by: the selection's reason.
        probability: chance of having been traced.
    """

    uid: str
    selected_by: str
    probability: float


@dataclass(eq=False)
class Stored:
    """The stored part of one run: its traces, summaries and scalars.

    Attributes:
        query: answers read-only SQL with rows; raises when the store cannot be read now.
        project: Trackio project.
        run_id: Trackio's id of the run.
        uids: uids of all our traces, step summaries included.
        summarised: ids of the hand-overs whose rows are in a stored step summary.
        scalars: signatures of stored scalars, as far as they were asked for.
        expected: signatures to look out for.
        every_scalar: look out for all of them, as before records are sent again.
    """

    query: Query
    project: str
    run_id: str
    uids: set[str] = field(default_factory=set)
    summarised: set[str] = field(default_factory=set)
    scalars: set[int] = field(default_factory=set)
    expected: set[int] = field(default_factory=set)
    every_scalar: bool = False
    _rows: dict[str, dict[str, StoredRow]] = field(default_factory=lambda: defaultdict(dict))
    _traced: dict[StepKey, set[str]] = field(default_factory=lambda: defaultdict(set))
    _closes: dict[str, tuple[StepKey, tuple[str, ...]]] = field(default_factory=dict)
    _n_closed: Counter[StepKey] = field(default_factory=Counter)
    _prompts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _expected_keys: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _last: dict[str, int] = field(default_factory=lambda: {"traces": 0, "metrics": 0})

    def refresh(self) -> None:
        """Reads what is new.

        Raises:
            Exception: whatever the store raises while it cannot be read; try again later.
        """
        names = ("uid", "batches", "selected_by", "selected_probability", "prompt_key", "attempt", "late")
        fields = ", ".join(f"json_extract(metadata, '$.{name}') AS {name}" for name in names)
        while rows := self._page("traces", f"key, {fields}"):
            for row in rows:
                self._take_trace(row)
        if self.expected or self.every_scalar:
            while rows := self._page("metrics", "metrics"):
                for row in rows:
                    self._take_metrics(row)

    def reload(self) -> None:
        """Reads everything again, scalars included: before records are sent again.

        Raises:
            Exception: as `refresh`.
        """
        fresh = Stored(self.query, self.project, self.run_id, every_scalar=True)
        fresh.refresh()
        vars(self).update(vars(fresh) | {"every_scalar": self.every_scalar})

    def rows_of(self, batch_id: str) -> Mapping[str, StoredRow]:
        """uid -> stored trace of a hand-over's rows."""
        return self._rows.get(batch_id, {})

    def chosen_in_summary(self, batch_id: str) -> dict[str, StoredRow]:
        """uid -> row of a hand-over that a stored step summary lists as traced, whether or not its trace is stored.

        Raises:
            Exception: as `refresh`.
        """
        rows = self._ask(
            f"SELECT spans FROM traces WHERE run_id = {_quoted(self.run_id)} AND key LIKE '%/{STEPS}' "
            f"AND json_extract(metadata, '$.batches') LIKE {_quoted(f'%{batch_id}%')} LIMIT 1"
        )
        if not rows:
            return {}
        ledger = read_ledger(TraceRecord((), {}, _loaded(rows[0]["spans"])))
        if ledger is None:
            return {}
        names = ("trace_uid", "selected_by", "selected_probability")
        columns = [ledger.get(name).tolist() for name in names]
        return {
            uid: StoredRow(uid, str(reason), float(probability))
            for uid, reason, probability in zip(*columns, strict=True)
            if uid is not None and uid.startswith(f"{batch_id}-")
        }

    def traced_at(self, step: StepKey) -> set[str]:
        """uids of the rollouts traced at a step, late parts included."""
        return self._traced.get(step._replace(late=0), set())

    def close_of(self, batch_id: str) -> tuple[StepKey, tuple[str, ...]] | None:
        """The step, and the hand-overs, of the stored step summary that includes a hand-over."""
        return self._closes.get(batch_id)

    def n_closed(self, step: StepKey) -> int:
        """Step summaries that are stored of a step: one, and one for each late part."""
        return self._n_closed[step._replace(late=0)]

    def traced_prompts(self) -> dict[str, Counter[str]]:
        """Split -> prompt key -> traces of it in this run."""
        return {split: Counter(prompts) for split, prompts in self._prompts.items()}

    def details(self, n: int) -> list[tuple[str, dict[str, Any]]]:
        """Split and details of the newest step summaries, n at most, oldest first.

        Raises:
            Exception: as `refresh`.
        """
        rows = self._ask(
            f"SELECT key, spans FROM traces WHERE run_id = {_quoted(self.run_id)} AND key LIKE '%/{STEPS}' "
            f"ORDER BY rowid DESC LIMIT {int(n)}"
        )
        return [
            (
                str(row["key"]).rpartition("/")[0],
                read_details(TraceRecord((), {}, _loaded(row["spans"]) or [])),
            )
            for row in reversed(rows)
        ]

    def logged(self, n: int) -> list[tuple[int, dict[str, Any]]]:
        """Step and scalars of what was logged last, n calls at most, oldest first.

        Only what was there at the last look: what has been logged since then is known to whoever logged it.

        Raises:
            Exception: as `refresh`.
        """
        rows = self._ask(
            f"SELECT step, metrics FROM metrics WHERE run_id = {_quoted(self.run_id)} "
            f"AND rowid <= {self._last['metrics']} ORDER BY rowid DESC LIMIT {int(n)}"
        )
        return [(int(row["step"]), _loaded(row["metrics"])) for row in reversed(rows)]

    def totals(self) -> dict[str, float]:
        """The newest `<split>/total/...` scalars of the run, empty when there are none.

        Raises:
            Exception: as `refresh`.
        """
        newest: dict[str, float] = {}
        rows = self._ask(
            f"SELECT metrics FROM metrics WHERE run_id = {_quoted(self.run_id)} "
            "AND CAST(metrics AS TEXT) LIKE '%/total/samples\"%' ORDER BY rowid DESC LIMIT 20"
        )
        for row in rows:
            splits = {key.split("/")[0] for key in newest}
            newest |= {
                key: float(value)
                for key, value in _loaded(row["metrics"]).items()
                if "/total/" in key and key.split("/")[0] not in splits
            }
        return newest

    def has_totals(self, step: int, split: str) -> bool:
        """True when a step's totals are stored: it was closed.

        Raises:
            Exception: as `refresh`.
        """
        pattern = _quoted(f"%{orjson.dumps(f'{split}/total/samples').decode()}%")
        return bool(
            self._ask(
                f"SELECT 1 AS found FROM metrics WHERE run_id = {_quoted(self.run_id)} AND step = {int(step)} "
                f"AND CAST(metrics AS TEXT) LIKE {pattern} LIMIT 1"
            )
        )

    def has_alert(self, step: int, title: str, text: str) -> bool:
        """True when an alert is stored."""
        return bool(
            self._ask(
                f"SELECT 1 AS found FROM alerts WHERE run_id = {_quoted(self.run_id)} AND step = {int(step)} "
                f"AND title = {_quoted(title)} AND text = {_quoted(text)} LIMIT 1"
            )
        )

    def close(self) -> None:
        """Closes what it reads from, where that is open."""
        if isinstance(self.query, LocalDatabase):
            self.query.close()

    def expect(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds scalars to those that `refresh` looks for.

        Args:
            values: what was logged.
        """
        token = scalar_signature(step, values)
        self.scalars.discard(token)
        self.expected.add(token)
        self._expected_keys[keys_signature(step, values)].append(token)

    def _page(self, table: str, columns: str) -> list[dict[str, Any]]:
        """The next rows of the run in a table."""
        rows = self._ask(
            f"SELECT rowid AS r, step, {columns} FROM {table} WHERE run_id = {_quoted(self.run_id)} "
            f"AND rowid > {self._last[table]} ORDER BY rowid LIMIT {PAGE}"
        )
        self._last[table] = max((row["r"] for row in rows), default=self._last[table])
        return rows

    def _ask(self, sql: str) -> list[dict[str, Any]]:
        try:
            return self.query(sql)
        except FileNotFoundError:
            return []
        except ValueError as error:
            if "no such table" in str(error) or f"'{self.project}' not found" in str(error):
                return []
            raise

    def _take_trace(self, row: Mapping[str, Any]) -> None:
        uid, key = row["uid"], str(row["key"])
        if uid is None:
            return
        self.uids.add(uid)
        split, _, kind = key.rpartition("/")
        step_key = StepKey(str(row["attempt"] or ""), int(row["step"]), split)
        if kind == STEPS:
            parts = tuple(str(row["batches"] or "").split(","))
            self.summarised.update(parts)
            self._closes.update(dict.fromkeys(parts, (step_key._replace(late=int(row["late"] or 0)), parts)))
            self._n_closed[step_key] += 1
        elif kind == TRAJECTORIES:
            probability = float(row["selected_probability"] or 0.0)
            self._rows[uid.rpartition("-")[0]][uid] = StoredRow(uid, str(row["selected_by"]), probability)
            self._traced[step_key].add(uid)
            self._prompts[split][str(row["prompt_key"])] += 1

    def _take_metrics(self, row: Mapping[str, Any]) -> None:
        values, step = _loaded(row["metrics"]), int(row["step"])
        found = scalar_signature(step, values)
        same_keys = self._expected_keys.get(keys_signature(step, values), [])
        if found in self.expected:
            same_keys.remove(found)
        elif same_keys:
            found = same_keys.pop(0)
        elif not self.every_scalar:
            return
        self.scalars.add(found)
        self.expected.discard(found)


def scalar_signature(step: int, values: Mapping[str, Any]) -> int:
    """A number that identifies scalars at a step; Trackio's underscores before reserved keys do not matter."""
    known = {key.lstrip("_"): value for key, value in values.items()}
    text = orjson.dumps([step, known], option=orjson.OPT_SORT_KEYS)
    return zlib.crc32(text) << 32 | zlib.adler32(text)


def keys_signature(step: int, values: Mapping[str, Any]) -> int:
    """A number that identifies the names of scalars at a step: a value that Trackio changed is not sent again and
    again."""
    return scalar_signature(step, dict.fromkeys(values))


def query_of(run: Any) -> Query:
    """Read-only SQL on the project that a `trackio.Run` writes to."""
    if run.url is not None:
        return _remote_query(run)
    from trackio.sqlite_storage import SQLiteStorage

    return LocalDatabase(SQLiteStorage.get_project_db_path(run.project))


def _remote_query(run: Any) -> Query:
    from trackio.remote_client import RemoteClient

    client: list[Any] = []

    def query(sql: str) -> list[dict[str, Any]]:
        if not client:
            token = run._hf_token_for_remote()
            client.append(RemoteClient(run.url, hf_token=token, write_token=run._write_token, verbose=False))
        try:
            return client[0].predict(run.project, sql, api_name="/query_project")["rows"]
        except Exception as error:
            answer = getattr(getattr(error, "response", None), "text", "")
            raise ValueError(f"{error} {answer}") from error

    return query


def _loaded(stored: Any) -> Any:
    """A value that a local database stores as JSON, and a server answers as plain values."""
    return orjson.loads(stored) if isinstance(stored, (str, bytes)) else stored


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


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
