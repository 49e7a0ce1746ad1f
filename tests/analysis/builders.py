"""Small tables of rollouts, written out."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tests.stories.relations import TEXTS, TableRelations

KINDS = {
    "flags": pa.list_(pa.string()),
    "error_signatures": pa.list_(pa.string()),
    "success": pa.int64(),
    "reward": pa.float64(),
    "reply": pa.string(),
    "discard_reason": pa.string(),
}


@functools.cache
def normal(*at: int) -> float:
    """A number drawn from the standard normal distribution, always the same one at a place; many tests ask for it."""
    return float(np.random.default_rng(at).normal())


@functools.cache
def uniform(*at: int) -> float:
    """A number drawn between 0 and 1, always the same one at a place."""
    return float(np.random.default_rng(at).random())


def table(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[Mapping[str, str]] | None = None
) -> TableRelations:
    """Relations of the given rollouts; run `run`, split `rollout`, and ids where they are not given.

    Args:
        rows: column -> value; a column that a row lacks is unknown in it.
        texts: what kept rollouts hold, by `uid`; none by default.
    """
    filled = [{"run": "run", "split": "rollout", "id": str(i), **row} for i, row in enumerate(rows)]
    names = list(dict.fromkeys(name for row in filled for name in row))
    return TableRelations(
        pa.table({name: pa.array([row.get(name) for row in filled], KINDS.get(name)) for name in names}),
        texts=None if texts is None else pa.Table.from_pylist(list(texts), TEXTS),
    )


def steps(n_steps: int, groups: int = 6, size: int = 4, **columns: Any) -> list[dict[str, Any]]:
    """Rows of a plain run; a column's value is a constant or a function of step, group and sample."""
    rows = []
    for step in range(n_steps):
        for group in range(groups):
            for sample in range(size):
                row: dict[str, Any] = {"step": step, "group": group, "prompt_key": f"p{step}-{group}"}
                for name, value in columns.items():
                    row[name] = value(step, group, sample) if callable(value) else value
                rows.append(row)
    return rows
