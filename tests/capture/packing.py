"""A batch that was read packed again, as `capture` packs what a trainer hands over."""

from __future__ import annotations

import numpy as np

from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.transcript import INT_TRACKS
from rollout_traces.spool.record import ROLLOUTS, Record, float16_overflows, narrowest_int, record_meta

_ROW_GROUPS = ("row_floats", "reward_components", "sample_metrics")
_PLAIN_FIELDS = (
    "batch_id",
    "step",
    "split",
    "response_mask_source",
    "train_version",
    "pad_id",
    "handed_over_at",
    "notes",
    "attempt",
)


def batch_to_record(batch: PackedBatch) -> Record:
    """Packs a batch.

    Returns:
        The record.
    """
    arrays: dict[str, np.ndarray] = {
        "lengths": batch.n_tokens.astype(np.uint32),
        "has_tokens": batch.has_tokens.astype(np.uint8),
        "group_ids": batch.group_ids,
        "input_ids": batch.input_ids.astype(np.int32),
        "loss_mask": np.packbits(batch.loss_mask),
    }
    if batch.response_mask_source == "given":
        arrays["response_mask"] = np.packbits(batch.response_mask)
    for name, values in batch.tracks.items():
        arrays[f"track/{name}"] = (
            values.astype(narrowest_int(values))
            if name in INT_TRACKS
            else _narrow_floats(np.asarray(values, np.float32))
        )
    for group in _ROW_GROUPS:
        arrays |= {f"{group}/{name}": column for name, column in getattr(batch, group).items()}
    fields = {key: getattr(batch, key) for key in _PLAIN_FIELDS}
    not_given = {key: np.flatnonzero(rows).tolist() for key, rows in batch.not_given.items()}
    return Record(ROLLOUTS, record_meta(batch.row_lists, **fields, not_given=not_given), arrays)


def _narrow_floats(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float16)
    return values if float16_overflows(narrow, values) else narrow
