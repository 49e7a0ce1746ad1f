"""A packed ledger as Arrow columns, without a Python object a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rollout_traces.ledger.columns import NULL_INT, Coded, unpack_coded
from rollout_traces.model.packed_arrays import damage_said

_PLACED = ("split", "step", "run")
"""Columns of a ledger that its place says already."""


def read_ledger(packed: bytes) -> tuple[int, dict[str, pa.Array]]:
    """Unpacks a ledger.

    Args:
        packed: what `ledger.columns.pack` made.

    Returns:
        Number of rows B, and the columns [B] with nulls where unknown.

    Raises:
        StoreError: the bytes are damaged or of a newer schema.
    """
    with damage_said("ledger"):
        n, columns = unpack_coded(packed)
        found = {str(name): _array(column) for name, column in columns.items() if name not in _PLACED}
        if any(len(column) != n for column in found.values()):
            raise ValueError("columns of different lengths")
        return n, found


def _array(column: np.ndarray | Coded) -> pa.Array:
    if isinstance(column, Coded):
        return _texts(column.values).take(pa.array(column.codes))
    if column.dtype.kind == "f":
        return pa.array(column, mask=np.isnan(column))
    return pa.array(column, mask=column == NULL_INT)


def _texts(values: Any) -> pa.Array:
    if any(isinstance(value, tuple) for value in values):
        return pa.array([None if v is None else list(map(str, v)) for v in values], pa.list_(pa.string()))
    return pa.array([None if v is None else str(v) for v in values], pa.string())
