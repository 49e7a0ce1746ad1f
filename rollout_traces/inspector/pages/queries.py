"""The figures of a sentence, computed again by the queries that the page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rollout_traces.analysis.relations import Relations

MOST_ROWS = 200
"""Rows of a query's answer that are shown."""


@dataclass(frozen=True)
class AnsweredQuery:
    """A statement with its answer, the first of its rows."""

    sql: str
    columns: list[str]
    rows: list[list[Any]]
    n_rows: int


@dataclass(frozen=True)
class QueriesAnswer:
    """The figures of a sentence, computed again."""

    queries: list[AnsweredQuery]


def answered_all(relations: Relations, queries: Sequence[str]) -> QueriesAnswer:
    """Queries of the analysis, each with its rows."""
    return QueriesAnswer([_answered(relations, query) for query in queries])


def _answered(relations: Relations, query: str) -> AnsweredQuery:
    found = relations.sql(query)
    rows = [[_plain(value) for value in row.values()] for row in found.slice(0, MOST_ROWS).to_pylist()]
    return AnsweredQuery(query, found.column_names, rows, found.num_rows)


def _plain(value: Any) -> Any:
    """A value as JSON has it: DuckDB sums whole numbers as decimals."""
    return int(value) if isinstance(value, Decimal) else value
