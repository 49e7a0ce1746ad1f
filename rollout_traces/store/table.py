"""SQL of this package's own over the relations `rollouts` and `metrics`, inside this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rollout_traces.store.asking import Asking
from rollout_traces.store.columns.kinds import type_of
from rollout_traces.store.columns.schema import METRICS
from rollout_traces.store.finder import Finder
from rollout_traces.store.full_texts import FullText, FullTexts
from rollout_traces.store.rows import RunInfo
from rollout_traces.store.scalars import Scalars
from rollout_traces.store.scope import Scope

TEXTS = pa.schema([(name, pa.string()) for name in ("uid", *FullText._fields)])
_METRICS = pa.schema([(name, type_of(kind)) for name, kind in METRICS.items()])


@dataclass(eq=False)
class Table:
    """Answers SQL over `rollouts`, a row a rollout of every run, and `metrics`, a row a logged number.

    Attributes:
        finder: gives states of the table.
        scalars: the logged numbers.
        runs: gives the project's runs.
        full_texts: reads what kept rollouts hold.
        config: gives the config of a run by name.
        scope: which rollouts `rollouts` has.
    """

    finder: Finder
    scalars: Scalars
    runs: Callable[[], Sequence[RunInfo]]
    full_texts: FullTexts
    config: Callable[[str], Mapping[str, Any]]
    scope: Scope = Scope(rows="all")  # noqa: RUF009 - it is frozen

    @property
    def n_rows(self) -> int:
        """How many rollouts there are in it."""
        return self.finder.count(self.scope)

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
            if self.scope != Scope(rows="all"):
                within = " AND ".join(part.written for part in self.scope.place(asking.state))
                asking.cursor.execute(f"CREATE TEMP VIEW rollouts AS {asking.state.rollouts(within)}")
            if reads_metrics(asking, query):
                asking.cursor.register("metrics", self.metrics())
            return asking.run(query, parameters)

        return self.finder.ask(answer)

    def texts(self, uids: Sequence[str]) -> pa.Table:
        """What some kept rollouts hold in full, from their traces.

        Args:
            uids: uids, or trace ids of rollouts that have none.

        Returns:
            `uid, written, prompt, system, tools, ground_truth` of those that are there, null for unknown; see
            `FullText`. Tool schemas are read of `MOST_TOOLS` of them, evenly spread.
        """
        query = "select coalesce(uid, id) as uid, id from rollouts where traced and coalesce(uid, id) in (select unnest(?))"
        named = self.sql(query, [list(uids)]).to_pylist() if uids else []
        found = self.full_texts.of([row["id"] for row in named])
        rows = [{"uid": row["uid"], **found[row["id"]]._asdict()} for row in named if row["id"] in found]
        return pa.Table.from_pylist(rows, TEXTS)

    def metrics(self) -> pa.Table:
        """Every logged number: run, run_id, split, step, key, value, attempt, superseded."""
        parts = []
        for run in self.runs():
            for key, logged in self.scalars.by_attempt(run.id, run.attempts).items():
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


def reads_metrics(asking: Asking, query: str) -> bool:
    """Whether a statement reads the relation `metrics`, as DuckDB parses it."""
    said = asking.run("SELECT json_serialize_sql(?) AS said", [query])["said"][0].as_py().lower()
    return '"table_name":"metrics"' in said or '"error":true' in said
