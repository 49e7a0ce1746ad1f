"""The table for analysis: SQL over the relations `rollouts` and `metrics`, inside this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_traces.store.asking import Asking
from rollout_traces.store.columns.engine import Engine
from rollout_traces.store.columns.kinds import type_of
from rollout_traces.store.columns.schema import METRICS
from rollout_traces.store.columns.table import POSITION, Rows
from rollout_traces.store.finder import Finder
from rollout_traces.store.full_texts import FullText, FullTexts
from rollout_traces.store.rows import RunInfo
from rollout_traces.store.scalars import Scalars
from rollout_traces.store.scope import Scope

HIDDEN = frozenset({"row", "place", "run_no", "doc", "late_part"})
"""Columns of the store's own, which SQL finds when it names them and `*` leaves out."""

TEXTS = pa.schema([(name, pa.string()) for name in ("uid", *FullText._fields)])

_STAR = re.compile(
    r"(?:[,.(]|\b(?:select|distinct|all)|\bon\s*\([^()]*\)|\*/)\s*\*(?!\s*\))|\bcolumns\s*\(", re.IGNORECASE
)
"""What may mean all columns; a star between two values multiplies them."""
_NO_ROWS = re.compile(r"\blimit\s+0\s*;?\s*$", re.IGNORECASE)
_COUNT_STAR = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)


@dataclass(eq=False)
class Table:
    """Answers SQL over `rollouts`, a row a rollout of every run, and `metrics`, a row a logged number.

    Attributes:
        finder: gives states of the table.
        engine: what runs statements.
        scalars: the logged numbers.
        runs: gives the project's runs.
        full_texts: reads what kept rollouts hold.
        config: gives the config of a run by name.
    """

    finder: Finder
    engine: Engine
    scalars: Scalars
    runs: Callable[[], Sequence[RunInfo]]
    full_texts: FullTexts
    config: Callable[[str], Mapping[str, Any]]

    def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> pa.Table:
        """The rows of a statement; nulls where a value is unknown.

        Args:
            query: the statement, with `?` or `$name` for each parameter. Of this package's own: nothing
                that a person typed may be part of it.
            parameters: their values.

        Raises:
            StoreError: it cannot be run.
        """
        return self.engine.run(query, parameters, self.relations(query))

    def relations(self, query: str) -> dict[str, pa.Table]:
        """The relations that a statement reads, with the columns that it may name."""
        found = {}
        if re.search(r"\brollouts\b", query, re.IGNORECASE):
            found["rollouts"] = self.finder.ask(lambda asking: self._rollouts(asking, query))
        if re.search(r"\bmetrics\b", query, re.IGNORECASE):
            found["metrics"] = self.metrics()
        return found

    def texts(self, uids: Sequence[str]) -> pa.Table:
        """What some kept rollouts hold in full, from their traces.

        Args:
            uids: uids, or trace ids of rollouts that have none.

        Returns:
            `uid, written, prompt, system, tools, ground_truth` of those that are there, null for unknown; see
            `FullText`. Tool schemas are read of `MOST_TOOLS` of them, evenly spread.
        """
        query = (
            "select coalesce(uid, cast(id as varchar)) as uid, cast(id as varchar) as id from rollouts where traced "
            "and coalesce(uid, cast(id as varchar)) in (select unnest(?))"
        )
        named = self.sql(query, [list(uids)]).to_pylist() if uids else []
        found = self.full_texts.of([row["id"] for row in named])
        rows = [{"uid": row["uid"], **found[row["id"]]._asdict()} for row in named if row["id"] in found]
        return pa.Table.from_pylist(rows, TEXTS)

    def metrics(self) -> pa.Table:
        """Every logged number: run, run_id, split, step, key, value, attempt, superseded."""
        return metrics_table(self.scalars, self.runs())

    def _rollouts(self, asking: Asking, query: str) -> pa.Table:
        """The columns that a statement may name; no rows where it wants none."""
        names = columns_in(query, asking.rows)
        return asking.rows.nothing(names) if _NO_ROWS.search(query) else asking.rows.coded(names)


@dataclass(eq=False)
class PartOfTable(Table):
    """The same for the rollouts of a few steps: only their rows are read, once a column.

    Attributes:
        scope: which rollouts `rollouts` has.
    """

    scope: Scope
    _rows: Rows | None = None
    _positions: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    _columns: dict[str, pa.ChunkedArray] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """How many rollouts there are in it."""
        return int(self.finder.ask(self._at)[0].size)

    def _at(self, asking: Asking) -> tuple[np.ndarray, dict[str, pa.ChunkedArray]]:
        """The positions of the rollouts in a state of the table, and what was read of them in it."""
        if self._rows is not asking.rows:
            self._rows, self._columns = asking.rows, {}
            self._positions = asking.positions(asking.asked(self.scope))
        return self._positions, self._columns

    def _rollouts(self, asking: Asking, query: str) -> pa.Table:
        names = columns_in(query, asking.rows)
        if _NO_ROWS.search(query):
            return asking.rows.nothing(names)
        positions, columns = self._at(asking)
        missing = [name for name in names if name not in columns]
        if missing:
            taken = asking.rows.take(positions, missing)
            columns.update(zip(missing, taken.columns, strict=True))
        return pa.table({name: columns[name] for name in names})


def columns_in(query: str, rows: Rows) -> list[str]:
    """The columns whose names occur in a statement; all where it may mean all by `*`."""
    if _STAR.search(_COUNT_STAR.sub("", query)):
        return [name for name in rows.kinds if name not in HIDDEN and name != POSITION]
    text = query.lower()
    named = [name for name in rows.kinds if name.replace('"', '""').lower() in text]
    return named or ["step"]


def metrics_table(scalars: Scalars, runs: Sequence[RunInfo]) -> pa.Table:
    """The relation `metrics`.

    Args:
        scalars: the logged numbers.
        runs: the runs.
    """
    parts = []
    for run in runs:
        for key, logged in scalars.by_attempt(run.id, run.attempts).items():
            n = len(logged.steps)
            split = next((s for s in run.splits if key.startswith(f"{s}/")), None)
            parts.append(
                pa.table(
                    {
                        "run": pa.repeat(pa.scalar(run.name), n),
                        "run_id": pa.repeat(pa.scalar(run.id), n),
                        "split": pa.repeat(pa.scalar(split, pa.string()), n),
                        "step": pa.array(logged.steps, pa.int64()),
                        "key": pa.repeat(pa.scalar(key), n),
                        "value": pa.array(logged.values, pa.float64(), from_pandas=True),
                        "attempt": pa.array(logged.attempts, pa.string()),
                        "superseded": pa.array(
                            [step in logged.superseded for step in logged.steps], pa.bool_()
                        ),
                    }
                )
            )
    schema = pa.schema([(name, type_of(kind)) for name, kind in METRICS.items()])
    return pa.concat_tables(parts) if parts else schema.empty_table()
