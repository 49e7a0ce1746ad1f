"""Answers questions about many rows: pages, counts, facets, histograms."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.store import schema, search
from rollout_traces.store.index import Index, stamp
from rollout_traces.store.loading import load_rows
from rollout_traces.store.names import known_names
from rollout_traces.store.paging import Order, cursor_of, newest_of, page_and_total_sql, page_sql
from rollout_traces.store.query.compiler import Compiler, Sql
from rollout_traces.store.query.nodes import Name, Substring, Text
from rollout_traces.store.query.parser import parse_sort
from rollout_traces.store.rows import Histogram, Page
from rollout_traces.store.scope import Scope
from rollout_traces.store.selection import Selection

DEFAULT_ORDER = "-step, group, sample"
MAX_LIMIT = 10_000
"""Most rows in one page; ask for the next one with its cursor."""
KEPT_ANSWERS = 64


class Finder:
    """Questions over one index.

    Args:
        index: the index.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._answers: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()

    def page(self, scope: Scope, order_by: str | None, limit: int, after: str | None) -> Page:
        """Some rows in order.

        Args:
            scope: which rows.
            order_by: sort keys; None for the newest step first.
            limit: most rows.
            after: the cursor of the page before.

        Raises:
            QueryError: filter or sort cannot be understood.
            StoreError: the cursor or the limit is not one.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise StoreError(f"limit: {limit}, expected 1 to {MAX_LIMIT}. Page with `after`.")
        with self._prepared(scope) as (connection, compiler, selection):
            order = self._order(compiler, order_by or DEFAULT_ORDER)
            found = self._newest(connection, selection, scope, order, limit + 1, after)
            if found is None and not scope.filtered:
                rows_in = _by_index(scope) if _is_indexed(scope, compiler, order) else selection
                found = connection.execute(*page_sql(rows_in, order, limit + 1, after)).fetchall()
            if found is not None:
                total = self._count(connection, scope, selection)
            else:
                total, found = self._counted_page(connection, selection, order, limit + 1, after)
            more, found = len(found) > limit, found[:limit]
            rows = load_rows(connection, scope.rows, [row[0] for row in found])
        return Page(tuple(rows), total, cursor_of(found[-1]) if more else None)

    def _newest(
        self,
        connection: sqlite3.Connection,
        selection: Selection,
        scope: Scope,
        order: Order,
        limit: int,
        after: str | None,
    ) -> list[tuple[Any, ...]] | None:
        """The page, where the newest steps fill it."""
        newest = newest_of(connection, selection, scope, order, limit, after)
        if newest is None:
            return None
        found = connection.execute(*page_sql(newest, order, limit, after)).fetchall()
        return found if len(found) == limit else None

    def _counted_page(
        self,
        connection: sqlite3.Connection,
        selection: Selection,
        order: Order,
        limit: int,
        after: str | None,
    ) -> tuple[int, list[tuple[Any, ...]]]:
        """Total and page: one scan gives both, where the total is not remembered."""
        found: list[tuple[Any, ...]] | None = None

        def counted() -> int:
            nonlocal found
            found = connection.execute(*page_and_total_sql(selection, order, limit, after)).fetchall()
            return int(found.pop()[0])

        total = self._remember(connection, selection, counted)
        if found is None:
            found = connection.execute(*page_sql(selection, order, limit, after)).fetchall()
        return total, found

    def count(self, scope: Scope) -> int:
        """How many rows there are."""
        with self._prepared(scope) as (connection, _, selection):
            return self._count(connection, scope, selection)

    def facets(self, scope: Scope, column: str, limit: int) -> list[tuple[Any, int]]:
        """A column's values and how many rows have each, most frequent first; None for unknown.

        For a column of lists each name in them counts.
        """
        with self._prepared(scope) as (connection, compiler, selection):
            known, where = _named(compiler, column), selection.where
            counted = connection.execute(
                f"SELECT {known.sql} AS value, count(*) FROM {selection.tables} WHERE {where.text}"
                " GROUP BY value ORDER BY 2 DESC, 1",
                where.parameters,
            ).fetchall()
        if known.kind == "tags":
            counted = _count_names(counted)
        return counted[:limit]

    def histogram(self, scope: Scope, column: str, bins: int) -> Histogram:
        """Counts of a numeric column in bins of equal width.

        Args:
            scope: which rows.
            column: the column.
            bins: number of bins.
        """
        if not 1 <= bins <= 1000:
            raise StoreError(f"bins: {bins}, expected 1 to 1000.")
        import numpy as np

        with self._prepared(scope) as (connection, compiler, selection):
            value, where = _named(compiler, column).sql, selection.where
            found = connection.execute(
                f"SELECT iif({value} > -9e999 AND {value} < 9e999, {value}, NULL)"
                f" FROM {selection.tables} WHERE {where.text}",
                where.parameters,
            ).fetchall()
        values = np.array([number for (number,) in found], np.float64)
        known = values[~np.isnan(values)]
        if not len(known):
            return Histogram((), (), len(values))
        low, high = float(known.min()), float(known.max())
        high = high if high > low else low + bins
        width = high / bins - low / bins
        with np.errstate(over="ignore"):  # a range may be wider than a float
            where_to = (known - low) / width if width > 0 else np.zeros(len(known))
        places = np.clip(where_to, 0, bins - 1).astype(np.int64)
        counts = np.bincount(places, minlength=bins)
        edges = tuple(low * (1 - b / bins) + high * (b / bins) for b in range(bins + 1))
        return Histogram(edges, tuple(counts.tolist()), len(values) - len(known))

    def forget(self) -> None:
        """Drops remembered answers."""
        with self._lock:
            self._answers.clear()

    def phrases(self, scope: Scope) -> list[str]:
        """What a scope searches for."""
        return [node.phrase if isinstance(node, Text) else node.piece for node in scope.conditions()[1]]

    @contextmanager
    def _prepared(self, scope: Scope) -> Iterator[tuple[sqlite3.Connection, Compiler, Selection]]:
        """A connection inside one snapshot, a compiler for the scope's rows, and which rows they are."""
        with self._index.snapshot() as connection:
            compiler = Compiler(
                schema.queryable(connection, scope.rows), known_names(scope.rows), _no_search, scope.where
            )
            yield connection, compiler, self._selection(connection, compiler, scope)

    def _selection(self, connection: sqlite3.Connection, compiler: Compiler, scope: Scope) -> Selection:
        selection = Selection(scope.rows, Sql(*scope.place()), access=scope.access)

        def compile_text(node: Text | Substring) -> Sql:
            if scope.rows == "ledger":
                raise StoreError("the ledger has no text to search; search traces instead.")
            expression = search.expression_of(node)
            if expression is not None:
                return Sql("t.doc IN (SELECT rowid FROM words WHERE words MATCH ?)", (expression,))
            piece = node.phrase if isinstance(node, Text) else node.piece
            return self._remember(
                connection,
                (piece, selection),
                lambda: search.scan(connection, self._index.source, piece, selection),
            )

        compiler = replace(compiler, compile_text=compile_text)
        plain, searches = scope.conditions()
        for node in [*sorted(plain, key=compiler.reach), *searches]:
            expression = search.expression_of(node) if scope.rows == "traces" else None
            if expression is not None:
                selection = selection.matching(expression)
            else:
                selection = selection.narrowed(compiler.filter(node))
        return selection

    def _order(self, compiler: Compiler, order_by: str) -> Order:
        return replace(compiler, source_text=order_by).order(parse_sort(order_by))

    def _count(self, connection: sqlite3.Connection, scope: Scope, selection: Selection) -> int:
        def counted() -> int:
            rows_in = selection if scope.filtered else _by_index(scope)
            where = rows_in.where
            sql = f"SELECT count(*) FROM {rows_in.tables} WHERE {where.text}"
            return int(connection.execute(sql, where.parameters).fetchone()[0])

        return self._remember(connection, selection, counted)

    def _remember(self, connection: sqlite3.Connection, key: Any, answer: Callable[[], Any]) -> Any:
        """An answer from before, as long as the index has not changed."""
        key = (stamp(connection), key)
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        found = answer()
        with self._lock:
            self._answers[key] = found
            while len(self._answers) > KEPT_ANSWERS:
                self._answers.popitem(last=False)
        return found


def _by_index(scope: Scope) -> Selection:
    """The rows of a scope without a filter, found through whichever index serves."""
    return Selection(scope.rows, Sql(*scope.place()), access="")


def _is_indexed(scope: Scope, compiler: Compiler, order: Order) -> bool:
    return scope.run_id is not None and order[0][0] in [compiler.columns[name].sql for name in schema.SORTED]


def _no_search(node: Text | Substring) -> Sql:
    raise StoreError("text cannot be searched here.")


def _named(compiler: Compiler, column: str) -> schema.Column:
    compiler = replace(compiler, source_text=column)
    return compiler.column(Name(column, 0, len(column)))


def _count_names(counted: Sequence[tuple[Any, int]]) -> list[tuple[Any, int]]:
    names: dict[Any, int] = {}
    for value, count in counted:
        for name in [None] if value is None else [n for n in value.split("|") if n]:
            names[name] = names.get(name, 0) + count
    return sorted(names.items(), key=lambda item: (-item[1], str(item[0])))
