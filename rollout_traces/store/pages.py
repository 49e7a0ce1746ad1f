"""One page of rows in order: only the rows that can be on it are sorted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollout_traces.store import cursor
from rollout_traces.store.asking import Asked, Asking
from rollout_traces.store.columns.schema import quoted
from rollout_traces.store.columns.table import POSITION
from rollout_traces.store.query.compiler import EVERY, Sql

SORTED_WHOLE = 50_000
"""Rows up to which a page is sorted out of all of them at once."""
SORTED_AS_FOUND = 2_000
"""Rows up to which those that were found are sorted, and not thinned out by the first key before."""
SORTED_AS_VALUES = 256
"""Rows up to which Python's own values are sorted, and not columns."""


@dataclass(frozen=True)
class PageRows:
    """The rows of a page.

    Attributes:
        positions: where they are, int [K].
        sorted_by: the values of each sort key, and last the rows' numbers.
    """

    positions: np.ndarray
    sorted_by: Sequence[Sequence[Any]]

    @classmethod
    def of(cls, found: pa.Table) -> PageRows:
        """What a statement of a page gave: `position`, `k0`, `k1`, …, `last`."""
        keys = [found[name].to_pylist() for name in found.column_names if name != POSITION]
        return cls(found[POSITION].to_numpy(), keys)


def page_of(asking: Asking, asked: Asked, limit: int, after: str | None) -> tuple[PageRows, int | None]:
    """Where a page's rows are.

    Args:
        asking: the table.
        asked: the question, with at least one sort key.
        limit: most rows.
        after: the cursor of the page before.

    Returns:
        The page, and how many rows the question has where the same look at the table has counted it.
    """
    directions = [down for _, down in asked.order]
    keys = "".join(f", {key.text} AS k{at}" for at, (key, _) in enumerate(asked.order))
    sorting = tuple(p for key, _ in asked.order for p in key.parameters)
    order = f"{_sorted_by(directions)} LIMIT {int(limit)}"
    behind = _after(directions, after)
    matching = f"SELECT t.position{keys}, t.row AS last FROM rollouts t WHERE {asked.condition.text}"
    rows = Sql(
        f"({matching}) WHERE {behind.text}", (*sorting, *asked.condition.parameters, *behind.parameters)
    )
    total = None
    if _by_first_key(asking, asked, after):
        best, n_rows = _candidates(asking, asked, rows, limit, after)
        total = n_rows if after is None else None
        page = None if best is None else _by_numbers(asking, asked, best, limit)
        if page is not None:
            return page, total
        if best is not None:
            taken = asking.rows_at(best, [*dict.fromkeys([*asked.columns, "row"]), POSITION])
            statement = f"SELECT * FROM (SELECT t.position{keys}, t.row AS last FROM rollouts t){order}"
            return PageRows.of(asking.run_over(taken, statement, sorting)), total
    if total is None and after is None and asking.rows.n_rows <= SORTED_WHOLE:
        return _counted(
            asking.run(
                asked,
                f"WITH m AS MATERIALIZED ({matching}) SELECT *, (SELECT count(*) FROM m) AS n FROM m{order}",
                rows.parameters,
                [POSITION, "row"],
            )
        )
    statement = f"SELECT * FROM {rows.text}{order}"
    return PageRows.of(asking.run(asked, statement, rows.parameters, [POSITION, "row"])), total


def _counted(found: pa.Table) -> tuple[PageRows, int]:
    """A page without the column that says how many rows there are, and that number."""
    return PageRows.of(found.drop_columns("n")), found["n"][0].as_py() if found.num_rows else 0


def _by_first_key(asking: Asking, asked: Asked, after: str | None) -> bool:
    """Whether the values of the first sort key are looked at before anything is sorted."""
    if not _may_be_numbers(asking, asked):
        return False
    plain = _plain_column(asked, 0) is not None
    return (plain and after is None) or asking.rows.n_rows > SORTED_WHOLE


def _may_be_numbers(asking: Asking, asked: Asked) -> bool:
    """Whether the first sort key is no column of texts."""
    name = _plain_column(asked, 0)
    return name is None or asking.rows.kinds[name] in ("int", "float")


def _plain_column(asked: Asked, at: int) -> str | None:
    """The column that a sort key is; None for an expression."""
    key, _ = asked.order[at]
    return next((name for name in asked.columns if key.text == f"t.{quoted(name)}"), None)


def _candidates(
    asking: Asking, asked: Asked, rows: Sql, limit: int, after: str | None
) -> tuple[np.ndarray | None, int]:
    """Positions of the rows that can be on the page, int [K], and how many rows there are to choose from.

    None for the positions where they are not known by numbers alone, or would be too many.
    """
    name = _plain_column(asked, 0)
    positions = None
    if name is None or after is not None:
        found = asking.run(asked, f"SELECT k0, position FROM {rows.text}", rows.parameters, [POSITION, "row"])
        values, positions = found["k0"], found[POSITION].to_numpy()
    elif asked.condition == EVERY:
        values = asking.rows.arrow([name])[name]
    else:
        positions = _matching(asking, asked)
        if len(positions) <= SORTED_AS_FOUND:
            return positions, len(positions)
        values = asking.rows.arrow([name])[name].take(pa.array(positions))
    best = _best(asking, len(asked.order) == 1, values, positions, limit, asked.order[0][1])
    return best, len(values)


def _matching(asking: Asking, asked: Asked) -> np.ndarray:
    """Positions of the rows of a question, int [K]."""
    positions = asked.only_found
    if positions is None:
        statement = f"SELECT {asked.condition.text} AS hit FROM rollouts t"
        hits = asking.run(asked, statement, asked.condition.parameters)["hit"]
        positions = np.flatnonzero(hits.to_numpy())
    return positions


def _best(
    asking: Asking,
    only_key: bool,
    values: pa.ChunkedArray,
    positions: np.ndarray | None,
    limit: int,
    highest: bool,
) -> np.ndarray | None:
    """Positions of the rows that are at least as good by the first key as the last row of the page, int [K].

    None where that is not known by numbers alone, or would be too many rows.
    """
    if positions is not None and len(positions) <= SORTED_AS_FOUND:
        return positions
    bound = _bound(values, limit, highest)
    if bound is None:
        return positions if positions is not None and len(positions) <= SORTED_WHOLE else None
    better = _rows(values, bound, np.greater if highest else np.less, limit)
    equal = _rows(values, bound, np.equal, SORTED_WHOLE + 1)
    if len(equal) > SORTED_WHOLE:
        if not only_key or positions is not None or not asking.rows.in_order:
            return None
        equal = equal[: limit - len(better)]
    found = np.concatenate([better, equal])
    return found if positions is None else positions[found]


def _bound(values: pa.ChunkedArray, n: int, highest: bool) -> Any:
    """The n-th highest or lowest value; None where there are fewer, or they are not plain numbers."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    best = np.empty(0)
    for chunk in values.chunks:
        known = (chunk.drop_null() if chunk.null_count else chunk).to_numpy()
        if known.dtype.kind == "f" and np.isnan(known).any():
            return None
        if len(best) == n:
            known = known[known > best[0]] if highest else known[known < best[-1]]
        merged = np.concatenate([best.astype(known.dtype), known])
        if len(merged) > n:
            at = len(merged) - n if highest else n - 1
            parted = np.partition(merged, at)
            merged = parted[at:] if highest else parted[: at + 1]
        best = np.sort(merged)
    return None if len(best) < n else best[0] if highest else best[-1]


def _rows(values: pa.ChunkedArray, bound: Any, compare: np.ufunc, most: int) -> np.ndarray:
    """The first rows whose value compares so with a bound, at most about so many, int [K]."""
    found: list[np.ndarray] = [np.empty(0, np.int64)]
    start = n = 0
    for chunk in values.chunks:
        known = (chunk.fill_null(0) if chunk.null_count else chunk).to_numpy()
        rows = np.flatnonzero(compare(known, bound))
        if chunk.null_count:
            rows = rows[chunk.is_valid().to_numpy(zero_copy_only=False)[rows]]
        found.append(rows + start)
        start += len(chunk)
        n += len(rows)
        if n >= most:
            break
    return np.concatenate(found)


def _by_numbers(asking: Asking, asked: Asked, best: np.ndarray, limit: int) -> PageRows | None:
    """What the statement of a page gives; None where a sort key is more than a column of plain numbers."""
    names = [_plain_column(asked, at) for at in range(len(asked.order))]
    plain = [name for name in names if name is not None and asking.rows.kinds[name] in ("int", "float")]
    if len(plain) < len(names):
        return None
    if len(best) > SORTED_AS_VALUES:
        return _by_columns(asking, asked, plain, best, limit)
    found = asking.rows.values(best, list(dict.fromkeys([*plain, "row"])))
    if any(value != value for name in plain for value in found[name]):
        return None
    keys = [
        [(value is None, 0 if value is None else -value if down else value) for value in found[name]]
        for name, (_, down) in zip(plain, asked.order, strict=True)
    ]
    order = [at for *_, at in sorted(zip(*keys, found["row"], range(len(best)), strict=True))[:limit]]
    return PageRows(best[order], [[found[name][at] for at in order] for name in (*plain, "row")])


def _by_columns(
    asking: Asking, asked: Asked, plain: Sequence[str], best: np.ndarray, limit: int
) -> PageRows | None:
    """The same where so many rows are sorted that columns are quicker than their values."""
    rows = asking.rows.take(best, list(dict.fromkeys([*plain, "row"])))
    if any(_has_nan(rows[name]) for name in plain):
        return None
    keys = {f"k{at}": rows[name] for at, name in enumerate(plain)}
    found = pa.table({POSITION: pa.array(best), **keys, "last": rows["row"]})
    order = [(f"k{at}", "descending" if down else "ascending") for at, (_, down) in enumerate(asked.order)]
    places = pc.sort_indices(found, [*order, ("last", "ascending")])
    return PageRows.of(found.take(places.slice(0, limit)))


def _has_nan(column: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def _sorted_by(directions: Sequence[bool]) -> str:
    """ORDER BY the keys, unknown values last, and the rows' numbers."""
    keys = [f"k{at} {'DESC' if down else 'ASC'} NULLS LAST" for at, down in enumerate(directions)]
    return f" ORDER BY {', '.join([*keys, 'last'])}"


def _after(directions: Sequence[bool], after: str | None) -> Sql:
    """Rows that come after a cursor's; unknown values come last."""
    if after is None:
        return EVERY
    values = cursor.decoded(after, len(directions) + 1)
    result = Sql("last > ?", (values[-1],))
    for at, (down, value) in reversed(list(enumerate(zip(directions, values[:-1], strict=True)))):
        if value is None:
            result = Sql(f"(k{at} IS NULL AND {result.text})", result.parameters)
        else:
            sign = "<" if down else ">"
            result = Sql(
                f"(k{at} {sign} ? OR k{at} IS NULL OR (k{at} = ? AND {result.text}))",
                (value, value, *result.parameters),
            )
    return result
