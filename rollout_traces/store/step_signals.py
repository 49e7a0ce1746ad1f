"""The signals of a run's steps, as its incidents are derived from, read for many steps at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollout_traces.alarms.many_steps import RaisedSignals, StepRows, signals_of_steps
from rollout_traces.alarms.signals import DRAWN, ENTROPY, MISMATCH, explained_by
from rollout_traces.flags import REGISTRY
from rollout_traces.ledger.columns import NULL_INT
from rollout_traces.store.asking import Asking
from rollout_traces.store.columns.kinds import type_of
from rollout_traces.store.columns.table import POSITION
from rollout_traces.store.scope import Scope
from rollout_traces.store.store import Store
from rollout_traces.store.store_tables import Steps

COLUMNS = (
    "step", "group", "source", "flags", "attempt", "late_part", "trace_uid", "selected_by", "n_tool_calls",
    "n_tool_errors", "reward_status", "mismatch_k3", "mean_logprob",
)  # fmt: skip
"""What signals are counted from."""


def signals_by_step(store: Store, run: str, split: str, steps: Steps) -> dict[int, RaisedSignals]:
    """Step -> what `alarms.signals.signals_of` says of its closed rows, for each step with a ledger.

    Args:
        store: the store.
        run: id or name of the run.
        split: `rollout` or `eval-rollout`.
        steps: first and last step, both included; None at an end is open.
    """
    scope = Scope(store.run(run).id, split, steps, rows="all")
    return store.ask(lambda asking: signals_of_steps(_rows(asking, scope)))


def _rows(asking: Asking, scope: Scope) -> StepRows:
    asked = asking.asked(scope)
    found = asking.run(
        asked,
        f"SELECT t.position FROM rollouts t WHERE {asked.condition.text} AND coalesce(t.from_ledger, false) AND NOT t.superseded",
        asked.condition.parameters,
        [POSITION, "from_ledger", "superseded"],
    )
    table = asking.rows.take(found[POSITION].to_numpy(), COLUMNS)
    step = table["step"].to_numpy()
    if (step[1:] < step[:-1]).any():
        table = table.take(pa.array(np.argsort(step, kind="stable")))
        step = table["step"].to_numpy()
    source, sources = _coded(table["source"])
    selected, reasons = _coded(table["selected_by"])
    status, statuses = _coded(table["reward_status"])
    calls, errors = _numbers(table["n_tool_calls"]), _numbers(table["n_tool_errors"])
    known = (calls != NULL_INT) & (errors != NULL_INT)
    return StepRows(
        step=step,
        closed=_closed(table, step),
        group=_numbers(table["group"]),
        source=source,
        sources=sources,
        flags=_flagged(table["flags"]),
        kept=~_unknown(table["trace_uid"]),
        drawn=np.asarray([*(reason in DRAWN for reason in reasons), False])[selected],
        calls=np.where(known, calls, -1),
        errors=np.where(known, errors, 0),
        reward_status=np.asarray([*(int(name != "ok") for name in statuses), -1])[status],
        levels={MISMATCH: _floats(table["mismatch_k3"]), ENTROPY: -_floats(table["mean_logprob"])},
    )


def _closed(table: pa.Table, step: np.ndarray) -> np.ndarray:
    """bool [N]: not late, and of the step's last attempt; see `step_metrics.of_closed_step`."""
    on_time = _numbers(table["late_part"].fill_null(0)) == 0
    attempt, names = _coded(table["attempt"])
    if not names or not len(step):
        return on_time
    rank = np.argsort(np.argsort(np.asarray(names, object)))
    ranks = np.where(attempt < 0, -1, rank[attempt])
    starts = np.flatnonzero(np.diff(step, prepend=step[0] - 1))
    last = np.repeat(np.maximum.reduceat(ranks, starts), np.diff(starts, append=len(step)))
    return on_time & (ranks == last)


def _flagged(column: pa.ChunkedArray) -> dict[str, np.ndarray]:
    """Flag -> int64 [K], the rows that carry it."""
    if not pa.types.is_list(column.type):
        return {}
    lists = column.combine_chunks()
    lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
    codes, names = _coded(pc.list_flatten(lists))
    rows = pc.list_parent_indices(lists).to_numpy()
    wanted = {*REGISTRY, *(cause for name in REGISTRY for cause in explained_by(name))}
    return {name: rows[codes == at] for at, name in enumerate(names) if name in wanted}


def _coded(column: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """A text column as int64 [N], places in its values, -1 where unknown."""
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column
        column = column.combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    if column.null_count == len(column):
        return np.full(len(column), -1), []
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, column.dictionary.to_pylist()


def _unknown(column: pa.ChunkedArray) -> np.ndarray:
    return pc.is_null(column).to_numpy()


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(type_of("int"), safe=False).fill_null(NULL_INT).to_numpy()


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(type_of("float"), safe=False).to_numpy()
