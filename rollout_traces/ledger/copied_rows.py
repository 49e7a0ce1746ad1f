"""Rows that are copied with their ledger: what was stored of them holds, not what their new step says of them.

A copy may lack the tokens of some rows, and a row's share of an update, or its flags, speak of all rows of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollout_traces.ledger.columns import COLUMNS, NULL_INT, Ledger
from rollout_traces.packed_batch import PackedBatch

_NUMERIC = {
    column.name: column.kind
    for column in COLUMNS
    if column.kind in ("float", "int")
    and column.name not in ("step", "group", "sample", "selected_probability")
    and "/" not in column.name
}
OF_THE_WHOLE_STEP = ("update_share", "equal_to")
"""Columns that other rows' tokens decide: unknown where the stored row does not have them."""


def stored_row(batch: PackedBatch, row: int) -> Mapping[str, Any] | None:
    """The ledger's row that a rollout came with; None for one that is not copied."""
    stored = batch.row_value("ledger_rows", row)
    return stored if isinstance(stored, Mapping) else None


def stored_flags(batch: PackedBatch, row: int) -> tuple[str, ...] | None:
    """The names of a copied rollout's flags; None where they are not known."""
    stored = stored_row(batch, row)
    flags = None if stored is None else stored.get("flags")
    return tuple(str(name) for name in flags) if isinstance(flags, (list, tuple)) else None


def with_stored(ledger: Ledger, batch: PackedBatch) -> Ledger:
    """A ledger in which the numbers of copied rows are those that were stored.

    Args:
        ledger: B rows.
        batch: their rollouts.

    Returns:
        The ledger; what no copied row knows stays as it was computed.
    """
    if "ledger_rows" not in batch.row_lists:
        return ledger
    rows = [(row, stored) for row in range(batch.n_rows) if (stored := stored_row(batch, row)) is not None]
    names = {name for _, stored in rows for name in stored if name in _NUMERIC} | {*OF_THE_WHOLE_STEP}
    changed = {}
    for name in sorted(names):
        kind = _NUMERIC[name]
        unknown = NULL_INT if kind == "int" else np.nan
        column = ledger.get(name).copy()
        for row, stored in rows:
            value = stored.get(name)
            if isinstance(value, (int, float)) and np.isfinite(value):
                column[row] = value
            elif name in OF_THE_WHOLE_STEP:
                column[row] = unknown
        known = column != NULL_INT if kind == "int" else np.isfinite(column)
        if known.any() or name in ledger.columns:
            changed[name] = column
    return ledger.with_columns(**changed)
