"""Small steps for the metrics' tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_traces.ledger.columns import NULL_INT, Ledger, kind_of
from rollout_traces.metrics import rollout_metrics
from rollout_traces.model.packed_batch import PackedBatch
from tests.builders import make_packed_batch


def make_ledger(**columns: Any) -> Ledger:
    """A ledger from lists, None where unknown; `component__x` stands for `component/x`."""
    made: dict[str, np.ndarray] = {}
    for key, values in columns.items():
        name = key.replace("__", "/")
        kind = kind_of(name)
        if kind == "float":
            made[name] = np.asarray([np.nan if v is None else v for v in values], np.float64)
        elif kind == "int":
            made[name] = np.asarray([NULL_INT if v is None else int(v) for v in values], np.int64)
        else:
            made[name] = np.empty(len(values), object)
            made[name][:] = values
    n = len(next(iter(made.values())))
    if "group" not in made:
        made["group"] = np.zeros(n, np.int64)
    return Ledger(made)


def of_ledger(ledger: Ledger, **options: Any) -> dict[str, float]:
    """All metrics of a ledger alone, without the split in front."""
    return without_split(rollout_metrics(None, ledger, **{"keys": "full", **options}))


def of_batch(batch: PackedBatch, **options: Any) -> dict[str, float]:
    """All metrics of a batch, without the split in front."""
    return without_split(rollout_metrics(batch, **{"keys": "full", **options}))


def without_split(values: dict[str, float]) -> dict[str, float]:
    return {key.split("/", 1)[1]: value for key, value in values.items()}


def sampled_rows(*rows: list[int], groups: list[int] | None = None, **fields: Any) -> PackedBatch:
    """A batch in which every token was sampled; tracks are given flat, as lists."""
    tracks = {
        name: np.asarray(v, np.int32 if name in ("versions", "turn_ids") else np.float32)
        for name, v in fields.pop("tracks", {}).items()
    }
    group_ids = np.asarray(groups if groups is not None else [0] * len(rows))
    return make_packed_batch(
        list(rows), [[1] * len(row) for row in rows], group_ids=group_ids, tracks=tracks, **fields
    )
