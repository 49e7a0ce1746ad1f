"""A store's rows as whole tables: Arrow, ledgers, SQL, logged numbers; and all of one kept rollout: its trace, transcript, details, images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.ledger.columns import Ledger
from rollout_traces.model.packed_arrays import damage_said
from rollout_traces.model.text import encodable
from rollout_traces.model.transcript import Transcript
from rollout_traces.model.units import MINUTE
from rollout_traces.store import questions, steps
from rollout_traces.store.asking import EVERYTHING, Asking, Attempts, Scope, Steps, Which, groups_table
from rollout_traces.store.columns import METRICS, type_of
from rollout_traces.store.engine import check_select
from rollout_traces.store.index import Index
from rollout_traces.store.reading import shown_record
from rollout_traces.store.rows import RunInfo, StoredTrace
from rollout_traces.store.scalars import Scalars, Series
from rollout_traces.store.search import FullText, full_texts
from rollout_traces.trace.conversion import TraceRecord, read_details, read_transcript
from rollout_traces.trace.images import IMAGES_KEY

Answer = TypeVar("Answer")
TEXTS = pa.schema([(name, pa.string()) for name in ("uid", *FullText._fields)])
_METRICS = pa.schema([(name, type_of(kind)) for name, kind in METRICS.items()])


@dataclass(eq=False)
class Table:
    """Answers SQL over `rollouts`, a row a rollout of every run, and `metrics`, a row a logged number.

    Attributes:
        store: whose they are.
    """

    store: StoreTables

    def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> pa.Table:
        """The rows of a statement; nulls where a value is unknown.

        Args:
            query: the statement, with `?` or `$name` for each parameter. Of this package's own: nothing
                that a person typed may be part of it.
            parameters: their values.

        Raises:
            StoreError: it cannot be run.
        """

        def answer(asking: Asking) -> pa.Table:
            if reads_metrics(asking, query):
                asking.cursor.register("metrics", self.metrics())
            return asking.run(query, parameters)

        return self.store.ask(answer)

    def texts(self, uids: Sequence[str]) -> pa.Table:
        """Reads the texts of some kept rollouts in full, from their traces.

        Args:
            uids: uids, or trace ids of rollouts that have none.

        Returns:
            `uid, written, tool_results, prompt, system, tools, ground_truth` of those that are there, null for unknown; see
            `FullText`. Tool schemas are read of `MOST_TOOLS` of them, evenly spread.
        """
        query = "select coalesce(uid, id) as uid, id from rollouts where traced and coalesce(uid, id) in (select unnest(?))"
        named = self.sql(query, [list(uids)]).to_pylist() if uids else []
        found = full_texts(self.store.source, [row["id"] for row in named])
        rows = [{"uid": row["uid"], **found[row["id"]]._asdict()} for row in named if row["id"] in found]
        return pa.Table.from_pylist(rows, TEXTS)

    def metrics(self) -> pa.Table:
        """Every logged number: run, run_id, split, step, key, value, attempt, superseded."""
        parts = []
        for run in self.store.runs():
            for key, logged in self.store.scalars.by_attempt(run.id, run.attempts).items():
                n = len(logged.steps)
                columns = {
                    "run": pa.repeat(pa.scalar(run.name), n),
                    "run_id": pa.repeat(pa.scalar(run.id), n),
                    "split": pa.repeat(next((s for s in run.splits if key.startswith(f"{s}/")), None), n),
                    "step": logged.steps,
                    "key": pa.repeat(pa.scalar(key), n),
                    "value": pa.array(logged.values, pa.float64(), from_pandas=True),
                    "attempt": logged.attempts,
                    "superseded": [step in logged.superseded for step in logged.steps],
                }
                parts.append(pa.table(columns).cast(_METRICS))
        return pa.concat_tables(parts) if parts else _METRICS.empty_table()

    def config(self, run: str) -> dict[str, Any]:
        """A run's configuration as it was logged."""
        return self.store.config(run)


def reads_metrics(asking: Asking, query: str) -> bool:
    """Tells whether a statement reads the relation `metrics`, as DuckDB parses it."""
    said = asking.run("SELECT json_serialize_sql(?) AS said", [query])["said"][0].as_py().lower()
    return '"table_name":"metrics"' in said or '"error":true' in said


class StoreTables:
    """The tables of one project, and its kept rollouts by trace id or uid.

    Args:
        index: the project's index.
        scalars: its logged numbers.
    """

    def __init__(self, index: Index, scalars: Scalars) -> None:
        self._index = index
        self.source = index.source
        self.scalars = scalars

    def ask(self, question: Callable[[Asking], Answer]) -> Answer:
        """The answer to a question about one state of the index, for the store's own modules."""
        return self._index.ask(question)

    def runs(self) -> list[RunInfo]:
        """The project's runs, oldest first."""
        with self._index.snapshot() as connection:
            return steps.list_runs(connection)

    def groups_table(self) -> pa.Table:
        """Every group of every step: run, split, step, group, attempt, and the figures of its rewards."""
        return self.ask(groups_table)

    def ledger(
        self, run: str | None = None, split: str | None = None, steps: Steps | int = EVERYTHING
    ) -> Ledger:
        """The rollouts that ledgers know, traced or not, as numpy columns; `rollouts` gives all as Arrow.

        Left out are rollouts that a later attempt of the run superseded, and those that traces alone know.

        Args:
            run: id or name of the run; all runs when None.
            split: the split; all when None.
            steps: first and last step, both included, None for an open end; or one step.

        Returns:
            The ledger, with the columns `run`, `split` and `step`; without rows where there are none.
            Unknown whole numbers are masked, unknown floats NaN, unknown texts None.
        """
        return questions.MaskedLedger.of(self.ledger_rows(run, split, steps))

    def ledger_rows(
        self, run: str | None = None, split: str | None = None, steps: Steps | int = EVERYTHING
    ) -> Ledger:
        """As `ledger`, with `NULL_INT` for unknown whole numbers, as the functions of `metrics` take it."""
        return self._ledger_of(run, split, steps, from_ledgers=True)

    def kept_rows(
        self, run: str | None = None, split: str | None = None, steps: Steps | int = EVERYTHING
    ) -> Ledger:
        """As `ledger_rows`, of the rollouts that traces alone know: trainers that write their own keep no ledger."""
        return self._ledger_of(run, split, steps, from_ledgers=False)

    def _ledger_of(
        self, run: str | None, split: str | None, steps: Steps | int, *, from_ledgers: bool
    ) -> Ledger:
        scope = self._scope(run, split, steps=steps, rows="all")
        return self.ask(lambda asking: questions.ledger_of(asking, scope, from_ledgers=from_ledgers))

    def rollouts(
        self,
        where: str = "",
        columns: Sequence[str] | None = None,
        runs: Sequence[str] | None = None,
        splits: Sequence[str] | None = None,
        steps: Steps | int = EVERYTHING,
        limit: int | None = None,
        order_by: str | None = None,
        text: str | None = None,
    ) -> pa.Table:
        """Every rollout that satisfies a filter, traced or not, as an Arrow table.

        `.to_pandas()` makes a data frame of it, `polars.from_arrow` takes it as it is.

        Args:
            where: a filter (docs/query.md); `traced` leaves the traced ones.
            columns: which columns; all when None.
            runs: ids or names of runs; all when None.
            splits: which splits; all when None.
            steps: first and last step, both included, None for an open end; or one step.
            limit: most rows.
            order_by: sort keys; by default those of the filter, else the order of arrival.
            text: words and "quoted phrases" that the conversation must hold.

        Returns:
            A row a rollout; nulls where a value is unknown.

        Raises:
            QueryError: filter, sort or a column cannot be understood.
            StoreError: no such run.
        """
        scope = self._scope(runs, splits, where, text, steps, "all")
        return self.ask(lambda asking: questions.table(asking, scope, columns, limit, order_by))

    def table(self) -> Table:
        """The relations `rollouts` and `metrics` for SQL of this package's own, inside this process."""
        return Table(self)

    def sql_condition(self, where: str) -> tuple[str, tuple[Any, ...]]:
        """A filter of the query language as a condition for `table().sql`, and its parameters.

        Args:
            where: the filter; an empty one holds for every row.

        Raises:
            QueryError: it cannot be understood.
        """
        return self.ask(lambda asking: questions.sql_condition(asking, where))

    def sql(self, query: str, parameters: Sequence[Any] = (), *, timeout: float = 1.0 * MINUTE) -> pa.Table:
        """The answer to one SELECT over `rollouts` and `metrics`, of a process of its own with bounds.

        Args:
            query: the statement, with `?` for each parameter.
            parameters: their values.
            timeout: seconds after which it is stopped.

        Returns:
            The rows as an Arrow table.

        Raises:
            StoreError: it is no single SELECT, reaches for files, takes too long or too much memory.
        """
        from rollout_traces.store.sandbox import run_apart

        if timeout <= 0:
            raise StoreError(f"sql: timeout {timeout}, expected seconds above 0.")
        check_select(query)

        def answer(asking: Asking) -> pa.Table:
            metrics = self.metrics_table() if reads_metrics(asking, query) else None
            return run_apart(asking.state, metrics, query, parameters, timeout)

        return self.ask(answer)

    def metrics_table(self) -> pa.Table:
        """Every logged number of every run: run, run_id, split, step, key, value, attempt, superseded."""
        return self.table().metrics()

    def metrics(self, run: str) -> Series:
        """A run's logged scalars: key -> steps and values, in order of arrival.

        Args:
            run: id or name of the run.
        """
        return self.scalars.of(self._run_id(run))

    def superseded_metrics(self, run: str) -> dict[str, frozenset[int]]:
        """By key, the steps of a run's scalars that only an older attempt has, past where a newer one began.

        Args:
            run: id or name of the run.
        """
        run_id = self._run_id(run)
        attempts = next(info.attempts for info in self.runs() if info.id == run_id)
        logged = self.scalars.by_attempt(run_id, attempts)
        return {key: found.superseded for key, found in logged.items() if found.superseded}

    def config(self, run: str) -> dict[str, Any]:
        """A run's configuration as it was logged."""
        return self.source.run_config(self._run_id(run))

    def _run_id(self, run: str) -> str:
        with self._index.reading() as connection:
            return steps.find_run_id(connection, run)

    def _scope(
        self,
        run: str | Sequence[str] | None = None,
        split: str | Sequence[str] | None = None,
        where: str = "",
        text: str | None = None,
        steps: Steps | int = EVERYTHING,
        rows: Which = "traces",
        attempts: Attempts = "all",
    ) -> Scope:
        """The rows that are meant; one run or split stands for a list of one."""
        runs, splits = ((each,) if isinstance(each, str) else each for each in (run, split))
        run_ids = None if runs is None else tuple(map(self._run_id, runs))
        between = (steps, steps) if isinstance(steps, int) else steps
        named = None if splits is None else tuple(splits)
        return Scope(run_ids, named, between, encodable(where), encodable(text or ""), rows, attempts)

    def uid(self, trace_id: str) -> str:
        """Looks up the id that a rollout's labels are kept under: its uid; its trace id where it has none."""
        return str(self.record(trace_id).metadata.get("uid") or trace_id)

    def find(self, wanted: str) -> str:
        """The id of the trace that is meant.

        Args:
            wanted: a trace id or uid, or the beginning of one that no other shares.

        Raises:
            StoreError: there is none, or there are several.
        """
        with self._index.snapshot() as connection:
            return steps.find_trace(connection, encodable(wanted))

    def record(self, trace_id: str) -> TraceRecord:
        """One whole trace.

        Args:
            trace_id: its id or uid, or the beginning of one.

        Raises:
            StoreError: there is none, or its JSON is damaged.
        """
        stored = self._stored(encodable(trace_id))
        with damage_said(f"trace {trace_id!r}: its stored JSON"):
            messages, metadata, spans = (
                orjson.loads(text) for text in (stored.messages, stored.metadata, stored.spans or b"[]")
            )
            spans = [span for span in spans if isinstance(span, dict)]
            return shown_record(stored, TraceRecord(list(messages), dict(metadata), spans))

    def _stored(self, wanted: str) -> StoredTrace:
        """Reads the trace of an id; else of the id that a uid, or the beginning of either, means."""
        try:
            return self.source.trace(wanted)
        except StoreError:
            found = self.find(wanted)
            if found == wanted:
                raise
            return self.source.trace(found)

    def transcript(self, trace_id: str) -> Transcript | None:
        """The transcript of a trace, None where another tool wrote it.

        Args:
            trace_id: its id or uid, or the beginning of one.

        Raises:
            StoreError: there is no such trace, or its packed data is damaged or of a newer schema.
        """
        record = self.record(trace_id)
        with damage_said(f"trace {trace_id!r}: its token track"):
            return read_transcript(record)

    def details(self, trace_id: str) -> dict[str, Any]:
        """Reads what is kept beside a trace: flags with their sentences, warnings, timings.

        Args:
            trace_id: its id or uid, or the beginning of one.

        Raises:
            StoreError: there is no such trace, or it is damaged.
        """
        record = self.record(trace_id)
        with damage_said(f"trace {trace_id!r}: its details"):
            return read_details(record)

    def image(self, trace_id: str, number: int) -> bytes:
        """An image of a rollout.

        Args:
            trace_id: its trace's id.
            number: which of its images, from 0.

        Raises:
            StoreError: there is none, or its file cannot be read.
        """
        images = self.details(trace_id).get(IMAGES_KEY)
        named = images[number] if isinstance(images, list) and 0 <= number < len(images) else None
        path = named.get("file_path") if isinstance(named, dict) else None
        if not isinstance(path, str):
            raise StoreError(f"trace {trace_id!r} has no image {number}.")
        return self.source.media(path)

    def messages(self, trace_id: str) -> list[dict[str, Any]]:
        """The conversation of a traced rollout.

        Args:
            trace_id: its id or uid, or the beginning of one.

        Raises:
            StoreError: there is none, or its JSON is damaged.
        """
        return [dict(message) for message in self.record(trace_id).messages]
