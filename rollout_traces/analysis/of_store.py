"""The relations of a project's store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_traces.analysis.relations import Relations

if TYPE_CHECKING:
    import pyarrow as pa

    from rollout_traces.store import Store

PAGE = 500
PREVIEWS = ("id", "uid", "run", "split", "step", "prompt", "reply")
"""What only a trace knows, and the analysis reads."""


def relations_of(store: Store) -> Relations:
    """`rollouts` and `metrics` of a store, for SQL inside this process."""
    table = getattr(store, "table", None)
    return table() if table is not None else LedgerRelations(store)


class LedgerRelations:
    """The relations built from the ledgers and the traces' previews, in a DuckDB of this process.

    Args:
        store: where to read; what comes later is not seen.
    """

    def __init__(self, store: Store) -> None:
        import duckdb
        import pyarrow as pa

        parts = [_rollouts(store, run.id, run.name) for run in store.runs()]
        self._connection = duckdb.connect(config={"threads": 2})
        schema = pa.schema([("run", pa.string()), ("split", pa.string()), ("step", pa.int64())])
        rollouts = pa.concat_tables(parts, promote_options="permissive") if parts else schema.empty_table()
        self._connection.register("given_rollouts", rollouts)
        self._connection.register("given_metrics", _metrics(store))
        for name in ("rollouts", "metrics"):
            self._connection.execute(f"create table {name} as select * from given_{name}")
            self._connection.unregister(f"given_{name}")
        self._connection.execute("set enable_external_access=false")
        self._connection.execute("set lock_configuration=true")

    def sql(self, query: str, params: Sequence[Any] = ()) -> pa.Table:
        """The rows of a SELECT."""
        return self._connection.cursor().sql(query, params=list(params)).to_arrow_table()


def _rollouts(store: Store, run_id: str, run_name: str) -> pa.Table:
    import pyarrow as pa

    from rollout_traces.ledger.columns import NULL_INT, kind_of

    ledger = store.ledger(run_id)
    columns: dict[str, Any] = {}
    for name, values in ledger.columns.items():
        if name == "run":
            continue
        kind = kind_of(name)
        if kind == "float":
            columns[name] = pa.array(values, pa.float64(), from_pandas=True)
        elif kind == "int":
            columns[name] = pa.array(values, pa.int64(), mask=values == NULL_INT)
        elif kind == "tags":
            columns[name] = pa.array(
                [list(v) if v is not None else None for v in values], pa.list_(pa.string())
            )
        else:
            columns[name] = pa.array(values.tolist(), pa.string())
    n = ledger.n_rows
    uids = ledger.get("uid").tolist()
    previews = _previews(store, run_id) if n else {}
    found = [previews.get(uid, (None, None, None)) for uid in uids]
    for i, name in enumerate(("id", "prompt", "reply")):
        columns[name] = pa.array([row[i] for row in found], pa.string())
    traced = np.asarray([v is not None for v in ledger.get("trace_uid").tolist()], bool)
    columns["traced"] = pa.array(traced)
    columns["superseded"] = pa.array(np.zeros(n, bool))
    columns["late"] = pa.array(np.zeros(n, bool))
    columns["run"] = pa.array([run_name] * n, pa.string())
    return pa.table(columns)


def _previews(store: Store, run_id: str) -> dict[Any, tuple[Any, Any, Any]]:
    """uid -> id, prompt and reply of the traced rollouts of a run."""
    known = {info.name for info in store.columns("traces")}
    asked = [name for name in PREVIEWS if name in known]
    found: dict[Any, tuple[Any, Any, Any]] = {}
    after: str | None = None
    while True:
        page = store.query(run=run_id, limit=PAGE, after=after)
        for row in page.rows:
            held = {name: row[name] for name in asked}
            found[held.get("uid")] = (row.id, held.get("prompt"), held.get("reply"))
        after = page.next
        if after is None:
            return found


def _metrics(store: Store) -> pa.Table:
    import pyarrow as pa

    rows: dict[str, list[Any]] = {name: [] for name in ("run", "split", "step", "key", "value", "attempt")}
    for run in store.runs():
        for key, (steps, values) in store.metrics(run.id).items():
            split = next((s for s in run.splits if key.startswith(f"{s}/")), None)
            for step, value in zip(steps, values, strict=True):
                for name, cell in zip(rows, (run.name, split, step, key, value, None), strict=True):
                    rows[name].append(cell)
    kinds = {"step": pa.int64(), "value": pa.float64()}
    return pa.table({name: pa.array(cells, kinds.get(name, pa.string())) for name, cells in rows.items()})
