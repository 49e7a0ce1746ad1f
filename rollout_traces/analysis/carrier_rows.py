"""The rows that carry a spike, by name."""

from __future__ import annotations

from rollout_traces.analysis.detect import Moved
from rollout_traces.analysis.diagnosis import Carrier
from rollout_traces.analysis.relations import known_number
from rollout_traces.analysis.scope import RunScope


def carriers_of(scope: RunScope, found: Moved) -> list[Carrier]:
    """The rows that carry a spike, those that make most of it first.

    Args:
        scope: the run.
        found: the spike.
    """
    column = found.panel.names[0].column
    key = next((name for name in ("uid", "id") if scope.columns.has(name)), None)
    if key is None or not scope.columns.has(column):
        return []
    step = int(found.panel.steps[found.template.start])
    x = known_number(column)
    query = (
        f"select {key} as uid, x, abs(x - middle) as size, sum(abs(x - middle)) filter (step = {step}) over () as total "
        f"from (select {key}, step, {x} as x, median({x}) over () as middle from rollouts where {scope.scope}) "
        f"where step = {step} and x is not null order by size desc limit {found.n_carriers}"
    )
    rows = scope.relations.sql(query, scope.params).to_pylist()
    return [Carrier(str(row["uid"]), step, float(row["size"] / row["total"])) for row in rows]
