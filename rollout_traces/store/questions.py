"""Questions about many rows: pages, counts, facets, histograms, figures by other columns, whole tables, ledgers; each is one statement."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollout_traces.errors import StoreError
from rollout_traces.ledger.columns import NULL_INT, Kind, Ledger, is_column, kind_of
from rollout_traces.model.plain_values import INT64_MAX, INT64_MIN
from rollout_traces.model.text import BRIEF
from rollout_traces.store.asking import REWARD_FAILED, Asked, Asking, Scope
from rollout_traces.store.columns import INTERNAL, quoted
from rollout_traces.store.query.compiler import EVERY, GROUP, QueryColumn, Sql, composed
from rollout_traces.store.rows import Histogram, RowPage

DEFAULT_ORDER = "-step, group, sample"
MAX_LIMIT = 10_000
"""Most rows in one page; ask for the next one with its cursor."""
MOST_BINS = 1000
_CURSOR = re.compile(r"-?[0-9]{1,19}")


def page(
    asking: Asking,
    scope: Scope,
    order_by: str | None,
    limit: int,
    after: str | None,
    columns: Sequence[str] | None = None,
) -> RowPage:
    """Some rows in order.

    Args:
        asking: asks the table.
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
    asked = asking.asked(scope, order_by)
    if not asked.order:
        asked = asking.asked(scope, DEFAULT_ORDER)
    names = asking.shown_columns(columns)
    keys = "".join(f", {key.text} AS k{at}" for at, (key, _) in enumerate(asked.order))
    sorting = tuple(p for key, _ in asked.order for p in key.parameters)
    directions = [down for _, down in asked.order]
    order = ", ".join(f"k{at} {_direction(down)}" for at, down in enumerate(directions))
    keyed = f'SELECT "row" AS last{keys} FROM {asking.relation(asked.columns)} WHERE '
    behind = EVERY
    if after is not None:
        before = asking.run(f'{keyed} "row" = ?', (*sorting, _row(after))).to_pylist()
        if not before:
            raise _no_cursor(after)
        row, *values = before[0].values()
        behind = _after(directions, row, values)
    found = asking.run(
        f"SELECT * FROM ({keyed} {asked.condition.text}) WHERE {behind.text} ORDER BY {order}, last LIMIT {limit + 1}",
        (*sorting, *asked.condition.parameters, *behind.parameters),
    ).to_pylist()
    numbers = [row["last"] for row in found[:limit]]
    listed = ", ".join(map(str, numbers))
    which = f'"row" IN ({listed}) ORDER BY list_position([{listed}], "row")'
    rows = asking.rows(which, names) if numbers else []
    total = len(found) if after is None and len(found) <= limit else _count(asking, asked)
    return RowPage(tuple(rows), total, str(numbers[-1]) if len(found) > limit else None)


def count(asking: Asking, scope: Scope) -> int:
    """Counts the rows of a scope."""
    return _count(asking, asking.asked(scope))


def facets(asking: Asking, scope: Scope, column: str, limit: int) -> list[tuple[Any, int]]:
    """A column's values and how many rows have each, most frequent first; None for unknown.

    For a column of lists each name in them counts.
    """
    asked, known = asking.asked(scope), asking.column(column)
    values = _select(asking, asked, f"{known.sql} AS v", known)
    if known.kind == "tags":
        values = f"SELECT unnest(CASE WHEN v IS NULL THEN [NULL] ELSE v END) AS v FROM ({values})"
    found = asking.run(
        f"SELECT v, count(*) AS n FROM ({values}) GROUP BY v ORDER BY n DESC, v NULLS LAST LIMIT ?",
        (*asked.condition.parameters, limit),
    )
    return list(zip(found["v"].to_pylist(), found["n"].to_pylist(), strict=True))


def histogram(asking: Asking, scope: Scope, column: str, bins: int) -> Histogram:
    """Counts of a numeric column in bins of equal width.

    Args:
        asking: asks the table.
        scope: which rows.
        bins: number of bins.
    """
    if not 1 <= bins <= MOST_BINS:
        raise StoreError(f"bins: {bins}, expected 1 to {MOST_BINS}.")
    asked, known = asking.asked(scope), asking.column(column)
    found = asking.run(_select(asking, asked, f"{known.number} AS v", known), asked.condition.parameters)
    return _binned(found["v"].to_numpy(), bins)


def table(
    asking: Asking, scope: Scope, columns: Sequence[str] | None, limit: int | None, order_by: str | None
) -> pa.Table:
    """Rows as an Arrow table.

    Args:
        asking: asks the table.
        scope: which rows.
        columns: which columns; all but the store's own when None.
        limit: most rows.
        order_by: sort keys; None for the filter's own, else the order of arrival.
    """
    asked = asking.asked(scope, order_by)
    names = list(columns) if columns is not None else asking.shown_columns()
    selected = [asking.column(name) for name in names]
    listed = ", ".join(f"{c.uncast} AS {quoted(name)}" for c, name in zip(selected, names, strict=True))
    keys = [f"{key.text} {_direction(down)}" for key, down in asked.order]
    most = "" if limit is None else f" LIMIT {int(limit)}"
    return asking.run(
        f"{_select(asking, asked, listed, *selected)} ORDER BY {', '.join([*keys, quoted('row')])}{most}",
        (*asked.condition.parameters, *(p for key, _ in asked.order for p in key.parameters)),
    )


def sql_condition(asking: Asking, where: str) -> tuple[str, tuple[Any, ...]]:
    """A filter as a condition over `rollouts`, and its parameters.

    What the filter language can say and one row's columns cannot (searches, figures of the group) is answered
    first and becomes a list of rows; it is null where the row does not know what is asked.

    Args:
        asking: a state of the table.
        where: the filter.

    Raises:
        QueryError: it cannot be understood.
    """
    asked = asking.asked(Scope(where=where, rows="all"))
    if "found_" not in asked.condition.text and asked.columns.isdisjoint(GROUP):
        return asked.condition.text, asked.condition.parameters
    found = asking.run(_select(asking, asked, '"row"'), asked.condition.parameters)
    holds = '"row" in (select unnest(?))'
    if "found_" in asked.condition.text:  # what a rollout without a trace says is not known
        holds = f"if(traced, {holds}, null)"
    return holds, (found["row"].to_pylist(),)


def _select(asking: Asking, asked: Asked, what: str, *columns: QueryColumn) -> str:
    """The statement that selects something of the rows that are asked for, some columns among what it reads."""
    reads = {read for column in columns for read in column.reads}
    return f"SELECT {what} FROM {asking.relation(asked.columns | reads)} WHERE {asked.condition.text}"


def _count(asking: Asking, asked: Asked) -> int:
    statement = _select(asking, asked, "count(*) AS n")
    return int(asking.run(statement, asked.condition.parameters)["n"][0].as_py())


def _direction(down: bool) -> str:
    return f"{'DESC' if down else 'ASC'} NULLS LAST"


def _row(cursor: str) -> int:
    """The number of the row that a cursor stands behind.

    Raises:
        StoreError: it is none.
    """
    if _CURSOR.fullmatch(cursor) and INT64_MIN <= int(cursor) <= INT64_MAX:
        return int(cursor)
    raise _no_cursor(cursor)


def _no_cursor(cursor: str) -> StoreError:
    return StoreError(
        f"after: {cursor[:BRIEF]!r} is no cursor of this query and sort. Start at the first page."
    )


def _after(directions: Sequence[bool], last: int, keys: Sequence[Any]) -> Sql:
    """Rows that come after one.

    Args:
        directions: of each sort key, True for highest first; unknown values come last.
        last: the row's number.
        keys: its sort keys.
    """
    result = Sql("last > ?", (last,))
    for at, (down, value) in reversed(list(enumerate(zip(directions, keys, strict=True)))):
        if value is None:
            result = composed(f"(k{at} IS NULL AND {{}})", result)
        else:
            sign, given = "<" if down else ">", Sql("?", (value,))
            result = composed(
                f"(k{at} {sign} {{}} OR k{at} IS NULL OR (k{at} = {{}} AND {{}}))", given, given, result
            )
    return result


def _binned(values: np.ndarray, bins: int) -> Histogram:
    known = values[np.isfinite(values)]
    infinite = tuple((each, n) for each in (-np.inf, np.inf) if (n := int((values == each).sum())))
    unknown = len(values) - len(known) - sum(n for _, n in infinite)
    if not len(known):
        return Histogram((), (), unknown, infinite)
    low, high = float(known.min()), float(known.max())
    high = high if high > low else low + bins
    # a range may be wider than a float, or hold fewer floats than bins
    scale = 1.0 if np.isfinite(high - low) else 2.0
    edges = np.linspace(low / scale, high / scale, bins + 1)
    even = (edges[1:] > edges[:-1]).all()
    counts, edges = np.histogram(known / scale, bins if even else edges, (low / scale, high / scale))
    return Histogram(tuple((edges * scale).tolist()), tuple(counts.tolist()), unknown, infinite)


_SQL: Mapping[str, str] = {
    "mean": "avg({})",
    "std": "stddev_pop({})",
    "min": "min({})",
    "max": "max({})",
    "sum": "sum({})",
    **{f"p{q}": f"quantile_cont({{}}, {q / 100})" for q in (5, 25, 50, 75, 95, 99)},
}
STATISTICS = tuple(_SQL)
"""`std` is the population standard deviation; `p95` interpolates linearly at 0.95 (n - 1)."""
MOST_GROUPS = 100_000


@dataclass(frozen=True)
class Measure:
    """A figure that is asked for.

    Attributes:
        statistic: one of `STATISTICS`.
        column: of which column; unknown and non-finite values are left out, and rewards of a function that failed.
    """

    statistic: str
    column: str

    @property
    def name(self) -> str:
        """The name of its column."""
        return f"{self.statistic}({self.column})"


def aggregate(asking: Asking, scope: Scope, by: Sequence[str], measures: Sequence[Measure]) -> pa.Table:
    """Figures by the values of some columns.

    Args:
        asking: asks the table.
        scope: which rows.
        by: columns; of a list of names every name counts.
        measures: the figures.

    Returns:
        A row a combination of values: `run` where there are several, `split`, those of `by`, `rollouts`,
        and the figures; null where nothing is known.

    Raises:
        QueryError: no such column.
        StoreError: no such statistic, or one of a column of text.
    """
    asked = asking.asked(scope)
    several = len(asking.state.runs) > 1 and scope.run_ids is None
    keys = {
        name: asking.column(name) for name in dict.fromkeys([*(["run"] if several else []), "split", *by])
    }
    listed = [
        f"{f'unnest({column.sql})' if column.kind == 'tags' else column.sql} AS {quoted('by ' + name)}"
        for name, column in keys.items()
    ]
    figures, measured = ["count(*) AS rollouts"], list(keys.values())
    for at, measure in enumerate(measures):
        if measure.statistic not in _SQL:
            raise StoreError(f"no statistic {measure.statistic!r}; there is {', '.join(STATISTICS)}.")
        column = asking.column(measure.column)
        if column.kind == "text":
            raise StoreError(
                f"{measure.name}: {measure.column} is text; expected a column of numbers. --by tells its values apart."
            )
        measured.append(column)
        of_reward = measure.column == "reward" or measure.column.startswith("component/")
        known = f"isfinite({column.number}){f' AND NOT ({REWARD_FAILED})' if of_reward else ''}"
        listed.append(f"CASE WHEN {known} THEN {column.number} END AS m{at}")
        figures.append(f"{_SQL[measure.statistic].format(f'm{at}')} AS {quoted(measure.name)}")
    grouped = ", ".join(quoted("by " + name) for name in keys)
    shown = ", ".join(f"{quoted('by ' + name)} AS {quoted(name)}" for name in keys)
    return asking.run(
        f"SELECT {shown}, {', '.join(figures)} FROM ({_select(asking, asked, ', '.join(listed), *measured)})"
        f" GROUP BY {grouped} ORDER BY {grouped} LIMIT {MOST_GROUPS}",
        asked.condition.parameters,
    )


LARGE = frozenset({"timings"})
"""Columns of long texts that no figure is made of: they are asked for by name."""


@dataclass(frozen=True)
class MaskedLedger(Ledger):
    """A ledger whose whole numbers are masked arrays: what is unknown is masked, and counts in no figure.

    Unknown floats are NaN and unknown texts None, as in every ledger.
    """

    def get(self, name: str) -> np.ndarray:
        """A column, full of unknowns when it is absent."""
        return _masked(super().get(name))

    @classmethod
    def of(cls, ledger: Ledger) -> MaskedLedger:
        """A ledger with its unknown whole numbers masked."""
        return cls({name: _masked(column) for name, column in ledger.columns.items()})


def _masked(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind != "i" or isinstance(column, np.ma.MaskedArray):
        return column
    return np.ma.masked_equal(column, NULL_INT)


def ledger_of(asking: Asking, scope: Scope, *, from_ledgers: bool) -> Ledger:
    """The rows of a scope that ledgers know, in the order of steps; superseded ones are left out.

    Args:
        asking: asks the table.
        scope: run, split and steps.
        from_ledgers: those; else the rows that traces alone know, as of trainers that keep no ledger.
    """
    asked = asking.asked(replace(scope, attempts="newest"))
    names = [name for name in asking.shown_columns() if name not in LARGE | INTERNAL and is_column(name)]
    found = asking.run(
        f"SELECT {', '.join(map(quoted, names))} FROM {asking.relation({*names, *asked.columns})}"
        f" WHERE {asked.condition.text} AND coalesce(from_ledger, false) = ?"
        ' ORDER BY run_no, step, split, "row"',
        (*asked.condition.parameters, from_ledgers),
    )
    if not found.num_rows:
        return Ledger({})
    return Ledger({name: _numpy(found[name], _kind_of(name, found[name])) for name in names})


def _kind_of(name: str, column: pa.ChunkedArray) -> Kind:
    """A column's kind; an extra is of numbers where it is stored as such, of whole ones where no float holds them."""
    whole, floating = pa.types.is_integer(column.type), pa.types.is_floating(column.type)
    if not name.startswith("extra/") or not (whole or floating):
        return kind_of(name)
    as_floats = column.cast(pa.float64(), safe=False)
    is_exact = floating or pc.all(pc.equal(as_floats.cast(pa.int64(), safe=False), column)).as_py()
    return "float" if is_exact else "int"


def _numpy(column: pa.ChunkedArray, kind: Kind) -> np.ndarray:
    if kind == "float":
        return column.cast(pa.float64()).to_numpy()
    if kind == "int":
        return column.cast(pa.int64(), safe=False).fill_null(NULL_INT).to_numpy()
    found = np.empty(len(column), object)
    values = column.to_pylist()
    found[:] = [tuple(names or ()) for names in values] if kind == "tags" else values
    return found
