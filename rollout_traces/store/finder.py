"""Answers questions about many rows: pages, counts, facets, histograms, whole tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.store import cursor
from rollout_traces.store.asking import Asked, Asking
from rollout_traces.store.columns.engine import Engine
from rollout_traces.store.columns.table import POSITION, Rows
from rollout_traces.store.index import Index
from rollout_traces.store.loading import plain_rows, shown_columns
from rollout_traces.store.pages import page_of
from rollout_traces.store.query.compiler import EVERY, Compiler
from rollout_traces.store.query.names import GROUP, QueryColumn
from rollout_traces.store.query.nodes import Place
from rollout_traces.store.remembered import RememberedAnswers
from rollout_traces.store.rows import Histogram, RowPage
from rollout_traces.store.scope import Scope

DEFAULT_ORDER = "-step, group, sample"
MAX_LIMIT = 10_000
"""Most rows in one page; ask for the next one with its cursor."""
PIECE = 32_768
"""Values that are binned together."""
FEW = 4
"""Rows up to one in so many are read where they lie, not out of whole columns."""

_COLUMN = re.compile(r'\bt\.("(?:[^"]|"")*"|\w+)')
Answer = TypeVar("Answer")


class Finder:
    """Questions over one index.

    Args:
        index: the index.
        engine: what runs statements.
    """

    def __init__(self, index: Index, engine: Engine) -> None:
        self._index = index
        self._engine = engine
        self._answers = RememberedAnswers()

    def ask(self, question: Callable[[Asking], Answer]) -> Answer:
        """The answer to a question about one state of the index."""
        return self._index.asked(
            lambda connection, rows: question(
                Asking(connection, rows, self._engine, self._index.source, self._remembering(rows))
            )
        )

    def page(
        self,
        scope: Scope,
        order_by: str | None,
        limit: int,
        after: str | None,
        columns: Sequence[str] | None = None,
    ) -> RowPage:
        """Some rows in order.

        Args:
            scope: which rows.
            order_by: sort keys; None for the filter's own, else the newest step first.
            limit: most rows.
            after: the cursor of the page before.
            columns: read these alone.

        Raises:
            QueryError: filter or sort cannot be understood.
            StoreError: the cursor or the limit is not one.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise StoreError(f"limit: {limit}, expected 1 to {MAX_LIMIT}. Page with `after`.")

        def page(asking: Asking) -> RowPage:
            asked = _ordered(asking, asking.asked(scope, order_by))
            found, n_rows = page_of(asking, asked, limit + 1, after)
            n_found = len(found.positions)
            if after is None and n_found <= limit:
                n_rows = n_found
            total = self._count(asking, asked, n_rows)
            rows = plain_rows(asking.rows, found.positions[:limit], shown_columns(asking.rows, columns))
            more = n_found > limit
            last = [values[limit - 1] for values in found.sorted_by] if more else []
            return RowPage(tuple(rows), total, cursor.encoded(last) if more else None)

        return self.ask(page)

    def count(self, scope: Scope) -> int:
        """How many rows there are."""
        return self.ask(lambda asking: self._count(asking, asking.asked(scope)))

    def facets(self, scope: Scope, column: str, limit: int) -> list[tuple[Any, int]]:
        """A column's values and how many rows have each, most frequent first; None for unknown.

        For a column of lists each name in them counts.
        """

        def facets(asking: Asking) -> list[tuple[Any, int]]:
            asked = asking.asked(scope)
            known = named(asking, column)
            condition = asked.condition
            values = f"SELECT {known.sql} AS v FROM rollouts t WHERE {condition.text}"
            if known.kind == "tags":
                values = f"SELECT unnest(CASE WHEN v IS NULL THEN [NULL] ELSE v END) AS v FROM ({values})"
            found = asking.run(
                _reading(asked, known.reads),
                f"SELECT v, count(*) AS n FROM ({values}) GROUP BY v ORDER BY n DESC, v NULLS LAST LIMIT ?",
                (*condition.parameters, limit),
            )
            return list(zip(found["v"].to_pylist(), found["n"].to_pylist(), strict=True))

        return self.ask(facets)

    def histogram(self, scope: Scope, column: str, bins: int) -> Histogram:
        """Counts of a numeric column in bins of equal width.

        Args:
            scope: which rows.
            column: the column.
            bins: number of bins.
        """
        if not 1 <= bins <= 1000:
            raise StoreError(f"bins: {bins}, expected 1 to 1000.")

        def histogram(asking: Asking) -> Histogram:
            asked = asking.asked(scope)
            known = named(asking, column)
            value = f"TRY_CAST({known.sql} AS DOUBLE)" if known.kind != "tags" else "CAST(NULL AS DOUBLE)"
            found = asking.run(
                _reading(asked, known.reads),
                f"SELECT {value} AS v FROM rollouts t WHERE {asked.condition.text}",
                asked.condition.parameters,
            )
            return _binned([c.to_numpy(zero_copy_only=False) for c in found["v"].chunks], bins)

        return self.ask(histogram)

    def table(
        self, scope: Scope, columns: Sequence[str] | None, limit: int | None, order_by: str | None
    ) -> pa.Table:
        """Rows as an Arrow table.

        Args:
            scope: which rows.
            columns: which columns; all but the store's own when None.
            limit: most rows.
            order_by: sort keys; None for the filter's own, else the order of arrival.
        """

        def table(asking: Asking) -> pa.Table:
            asked = asking.asked(scope, order_by)
            names = list(columns) if columns is not None else shown_columns(asking.rows, None)
            selected = [named(asking, name) for name in names]
            listed = ", ".join(
                f"{_uncast(column)} AS {_alias(name)}" for column, name in zip(selected, names, strict=True)
            )
            keys = [f"{key.text} {'DESC' if down else 'ASC'} NULLS LAST" for key, down in asked.order]
            # without an order of the question rows come as they lie
            keys += ["t.row"] if keys or not asking.rows.in_order else []
            order = f" ORDER BY {', '.join(keys)}" if keys else ""
            parameters = [p for key, _ in asked.order for p in key.parameters]
            most = "" if limit is None else f" LIMIT {int(limit)}"
            reads = dict.fromkeys(read for column in selected for read in column.reads)
            behind = f"FROM rollouts t WHERE {asked.condition.text}{order}{most}"
            given = (*asked.condition.parameters, *parameters)
            if asked.condition != EVERY and not any(name in GROUP for name in reads):
                found = asking.run(asked, f"SELECT t.position {behind}", given, ["row", POSITION])
                if found.num_rows * FEW <= asking.rows.n_rows:
                    positions = found[POSITION].to_numpy()
                    return asking.run_at(positions, f"SELECT {listed} FROM rollouts t", [*reads])
            return asking.run(_reading(asked, [*reads]), f"SELECT {listed} {behind}", given, ["row"])

        return self.ask(table)

    def forget(self) -> None:
        """Drops remembered answers."""
        self._answers.forget()

    def _count(self, asking: Asking, asked: Asked, known: int | None = None) -> int:
        """How many rows there are; `known` where somebody has just counted them."""

        def counted() -> int:
            if known is not None:
                return known
            if asked.condition == EVERY:
                return asking.rows.n_rows
            statement = f"SELECT count(*) AS n FROM rollouts t WHERE {asked.condition.text}"
            return int(asking.run(asked, statement, asked.condition.parameters)["n"][0].as_py())

        return int(self._remembering(asking.rows)(asked.condition, counted))

    def _remembering(self, rows: Rows) -> Callable[[Any, Callable[[], Any]], Any]:
        """Gives an answer from before, as long as the index has not changed."""
        return lambda key, compute: self._answers.answer((rows.state.stamp, key), compute)


def named(asking: Asking, name: str) -> QueryColumn:
    """The column of a name.

    Raises:
        QueryError: there is none.
    """
    compiler = Compiler(asking.names, name, asking._no_text)
    return compiler.column(name, Place(0, len(name)))


def sql_condition(asking: Asking, where: str) -> tuple[str, tuple[Any, ...]]:
    """A condition without an alias, and its parameters.

    What the filter language can say and one row's columns cannot (searches, figures of the group) is answered
    first and becomes a list of rows.

    Args:
        asking: a state of the table.
        where: the filter.

    Raises:
        QueryError: it cannot be understood.
    """
    asked = asking.asked(Scope(where=where, rows="all"))
    if not asked.found and not any(name in GROUP for name in asked.columns):
        return _COLUMN.sub(r"\1", asked.condition.text), asked.condition.parameters
    found = asking.run(
        asked,
        f"SELECT t.row FROM rollouts t WHERE {asked.condition.text}",
        asked.condition.parameters,
        ["row"],
    )
    return '"row" in (select unnest(?))', (found["row"].to_pylist(),)


def _ordered(asking: Asking, asked: Asked) -> Asked:
    if asked.order:
        return asked
    used = dict.fromkeys(asked.columns)
    order = asking.order(DEFAULT_ORDER, used)
    return Asked(asked.condition, order, tuple(used), asked.found)


def _reading(asked: Asked, columns: Sequence[str]) -> Asked:
    return Asked(asked.condition, asked.order, (*asked.columns, *columns), asked.found)


def _binned(parts: Sequence[np.ndarray], bins: int) -> Histogram:
    """A histogram of values that come in parts; each is small enough to stay in the processor's cache."""
    n = sum(map(len, parts))
    pieces = [part[at : at + PIECE] for part in parts for at in range(0, len(part), PIECE)]
    known = [piece if (finite := np.isfinite(piece)).all() else piece[finite] for piece in pieces]
    known = [piece for piece in known if len(piece)]
    if not known:
        return Histogram((), (), n)
    low, high = float(min(p.min() for p in known)), float(max(p.max() for p in known))
    high = high if high > low else low + bins
    edges, width = _edges(low, high, bins)
    counts = np.zeros(bins, np.int64)
    for piece in known:
        with np.errstate(over="ignore"):  # a range may be wider than a float
            where_to = (piece - low) / width if width > 0 else np.zeros(len(piece))
        at = np.minimum(where_to, bins - 1, out=where_to).astype(np.intp)
        # the division rounds: what lies on an edge, or beside it, goes by the edge itself
        at -= piece < edges[at]
        at += (piece >= edges[at + 1]) & (at < bins - 1)
        counts += np.bincount(at, minlength=bins)
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()), n - sum(map(len, known)))


def _edges(low: float, high: float, bins: int) -> tuple[np.ndarray, float]:
    """float64 [bins + 1] edges as `np.histogram` has them, and a bin's width."""
    width = high / bins - low / bins
    if np.isfinite(high - low):
        return np.linspace(low, high, bins + 1), width
    at = np.arange(bins + 1) / bins
    return low * (1 - at) + high * at, width


def _uncast(column: QueryColumn) -> str:
    """A column's SQL, booleans left as they are."""
    return (
        column.sql.removeprefix("CAST(").removesuffix(" AS TINYINT)")
        if column.sql.startswith("CAST(")
        else column.sql
    )


def _alias(name: str) -> str:
    from rollout_traces.store.columns.schema import quoted

    return quoted(name)
