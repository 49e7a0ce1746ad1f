"""Figures of a column by the values of others: `mean of mismatch_k3 by source`. Splits are never mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.store.asking import Asking
from rollout_traces.store.columns.schema import quoted
from rollout_traces.store.query.compiler import Sql
from rollout_traces.store.scope import Scope

Statistic = Literal["mean", "std", "min", "max", "sum", "p5", "p25", "p50", "p75", "p95", "p99"]
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
        column: of which column; unknown and non-finite values are left out.
    """

    statistic: str
    column: str

    @property
    def name(self) -> str:
        """What its column is called."""
        return f"{self.statistic}({self.column})"


def aggregate(asking: Asking, scope: Scope, by: Sequence[str], measures: Sequence[Measure]) -> pa.Table:
    """Figures by the values of some columns.

    Rows that a later attempt superseded are left out, unless the filter speaks of `superseded`.

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
        StoreError: no such statistic.
    """
    asked = asking.asked(scope)
    condition = asked.condition
    if "superseded" not in asked.columns:
        condition = condition.and_(Sql("NOT superseded"))
    several = len({run_id for run_id, _ in asking.state.runs.values()}) > 1 and scope.run_id is None
    keys = {
        name: asking.column(name) for name in dict.fromkeys([*(["run"] if several else []), "split", *by])
    }
    listed = [
        f"{f'unnest({column.sql})' if column.kind == 'tags' else column.sql} AS {quoted('by ' + name)}"
        for name, column in keys.items()
    ]
    reads = {read for column in keys.values() for read in column.reads}
    figures = ["count(*) AS rollouts"]
    for at, measure in enumerate(measures):
        if measure.statistic not in _SQL:
            raise StoreError(f"no statistic {measure.statistic!r}; there is {', '.join(STATISTICS)}.")
        column = asking.column(measure.column)
        reads.update(column.reads)
        listed.append(f"CASE WHEN isfinite({column.number}) THEN {column.number} END AS m{at}")
        figures.append(f"{_SQL[measure.statistic].format(f'm{at}')} AS {quoted(measure.name)}")
    grouped = ", ".join(quoted("by " + name) for name in keys)
    shown = ", ".join(f"{quoted('by ' + name)} AS {quoted(name)}" for name in keys)
    return asking.run(
        f"SELECT {shown}, {', '.join(figures)} FROM (SELECT {', '.join(listed)}"
        f" FROM {asking.relation({*asked.columns, *reads})} WHERE {condition.text})"
        f" GROUP BY {grouped} ORDER BY {grouped} LIMIT {MOST_GROUPS}",
        condition.parameters,
    )
