"""SQL of one page of rows, and the cursor that says where it ended."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.store.query.compiler import Sql
from rollout_traces.store.scope import Scope
from rollout_traces.store.selection import Selection

Order = Sequence[tuple[str, bool]]
"""SQL expressions to sort by, each with True for highest first."""

NEWEST_FIRST = ("t.step", True)
LOOKED_AT = 64
"""Rows of the newest steps that are looked at for each row of a page, before all are."""


def page_sql(
    selection: Selection, order: Order, limit: int, after: str | None
) -> tuple[str, tuple[Any, ...]]:
    """The keys of a page's rows, each with what it is sorted by."""
    columns = "".join(f", {expression}" for expression, _ in order)
    if after is not None:
        selection = selection.narrowed(_behind(order, selection.key, _decode(after, len(order))))
    where = selection.where
    sql = (
        f"SELECT {selection.key}{columns} FROM {selection.tables} WHERE {where.text}"
        f" ORDER BY {_sorting(order)}{selection.key} LIMIT ?"
    )
    return sql, (*where.parameters, limit)


def page_and_total_sql(
    selection: Selection, order: Order, limit: int, after: str | None
) -> tuple[str, tuple[Any, ...]]:
    """The same, and as a last row the number of all rows that match."""
    columns = "".join(f", {expression} AS k{at}" for at, (expression, _) in enumerate(order))
    named = [(f"k{at}", down) for at, (_, down) in enumerate(order)]
    behind = Sql("1") if after is None else _behind(named, "key", _decode(after, len(order)))
    padding = ", NULL" * len(order)
    where = selection.where
    sql = (
        f"WITH found AS (SELECT {selection.key} AS key{columns} FROM {selection.tables} WHERE {where.text})"
        f" SELECT * FROM (SELECT * FROM found WHERE {behind.text} ORDER BY {_sorting(named)}key LIMIT ?)"
        f" UNION ALL SELECT count(*){padding} FROM found"
    )
    return sql, (*where.parameters, *behind.parameters, limit)


def newest_of(
    connection: sqlite3.Connection,
    selection: Selection,
    scope: Scope,
    order: Order,
    limit: int,
    after: str | None,
) -> Selection | None:
    """The rows of the newest steps, where a page that begins with the newest step is likely to end.

    Args:
        connection: the index.
        selection: all rows that are asked for.
        scope: run, split and steps they are of.
        order: how they are sorted.
        limit: rows wanted.
        after: the cursor of the page before.

    Returns:
        Those of the selection in the newest whole steps behind the cursor; None where another order is asked
        for, or where there are too few rows for it to matter.
    """
    if order[0] != NEWEST_FIRST:
        return None
    last = None if after is None else _decode(after, len(order))[1]
    if isinstance(last, int):
        scope = replace(scope, steps=(scope.steps[0], last))
    place = Sql(*scope.place())
    looked_at = limit * LOOKED_AT
    n, step, key = connection.execute(
        f"SELECT count(*), min(step), min(key) FROM (SELECT step, {selection.key} AS key FROM {selection.table} t"
        f" INDEXED BY {selection.table}_newest WHERE {place.text} ORDER BY step DESC LIMIT ?)",
        (*place.parameters, looked_at),
    ).fetchone()
    if n < looked_at:
        return None
    return selection.narrowed(Sql(f"{selection.outer_key} >= ? AND +t.step > ?", (key, step)))


def _sorting(order: Order) -> str:
    return "".join(f"{expression} {'DESC' if down else 'ASC NULLS LAST'}, " for expression, down in order)


def _behind(order: Order, key: str, values: Sequence[Any]) -> Sql:
    """Rows that come after a given one; unknown values come last."""
    result = Sql(f"{key} > ?", (values[0],))
    for (expression, down), value in reversed(list(zip(order, values[1:], strict=True))):
        if value is None:
            result = Sql(f"({expression} IS NULL AND {result.text})", result.parameters)
        else:
            sign = "<" if down else ">"
            result = Sql(
                f"({expression} {sign} ? OR {expression} IS NULL OR ({expression} = ? AND {result.text}))",
                (value, value, *result.parameters),
            )
    return result


def cursor_of(row: Sequence[Any]) -> str:
    """The cursor behind a row of `page_sql`."""
    return base64.urlsafe_b64encode(json.dumps(list(row)).encode()).decode().rstrip("=")


def _decode(cursor: str, n_keys: int) -> list[Any]:
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, list) and len(values) == n_keys + 1 and all(map(_is_value, values)):
        return values
    raise StoreError(f"after: {cursor[:40]!r} is no cursor of this query and sort. Start at the first page.")


def _is_value(value: Any) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, str | float)
