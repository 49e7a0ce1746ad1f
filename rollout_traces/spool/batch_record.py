"""PackedBatch <-> the compact record that crosses the spool.

Ids take 4 bytes, masks a bit, integer tracks 1, 2 or 4 bytes as their values need, float tracks 2 (4 where a finite value exceeds
float16's 65504), scalars stay float64, lists are JSON. `capture` writes the same layout straight from
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollout_traces.model.packed_batch import SCHEMA_VERSION, PackedBatch
from rollout_traces.model.transcript import INT_TRACKS
from rollout_traces.spool.record import Record, RecordError

ROLLOUTS = "rollouts"
"""Kind of a record that carries a batch."""
_INTS = (np.iinfo(np.int8), np.iinfo(np.int16))
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


def batch_from_record(record: Record) -> PackedBatch:
    """Reads a batch.

    Args:
        record: what `capture` or `batch_to_record` made.

    Returns:
        The batch; float tracks as float32 with the precision they were stored with.

    Raises:
        RecordError: the record is of another kind or of a newer schema.
    """
    meta, arrays = record.meta, record.arrays
    if record.kind != ROLLOUTS:
        raise RecordError(f"record: kind {record.kind!r}. Expected {ROLLOUTS!r}.")
    if meta["schema"] > SCHEMA_VERSION:
        raise RecordError(
            f"record: batch schema {meta['schema']}, this version reads up to {SCHEMA_VERSION}. Upgrade rollout-traces."
        )
    lengths = arrays["lengths"].astype(np.int64)
    has_tokens = arrays["has_tokens"].astype(bool)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(has_tokens, lengths, 0))])
    n = int(offsets[-1])
    loss_mask = _bits(arrays["loss_mask"], n)
    tracks = {
        name[len("track/") :]: array.astype(np.int32 if name[len("track/") :] in INT_TRACKS else np.float32)
        for name, array in arrays.items()
        if name.startswith("track/")
    }
    mask_source = meta["response_mask_source"]
    if mask_source == "versions" and (tracks["versions"] >= 0).all() and not loss_mask.all():
        mask_source = "loss_mask"  # versions that mark no prompt, of a batch that was copied from a GPU
    if mask_source == "given":
        response_mask = _bits(arrays["response_mask"], n)
    elif mask_source == "versions":
        response_mask = tracks["versions"] >= 0
    else:
        response_mask = loss_mask.copy()
    return PackedBatch(
        offsets=offsets,
        input_ids=arrays["input_ids"].astype(np.int64),
        loss_mask=loss_mask,
        response_mask=response_mask,
        tracks=tracks,
        n_tokens=lengths,
        has_tokens=has_tokens,
        group_ids=arrays["group_ids"].astype(np.int64),
        row_lists=meta["row_lists"],
        row_floats=_named(arrays, "row_floats/"),
        reward_components=_named(arrays, "reward_components/"),
        sample_metrics=_named(arrays, "sample_metrics/"),
        batch_id=meta["batch_id"],
        step=meta["step"],
        split=meta["split"],
        response_mask_source=mask_source,
        train_version=meta["train_version"],
        pad_id=meta["pad_id"],
        handed_over_at=meta["handed_over_at"],
        notes=tuple(meta["notes"]),
        attempt=meta.get("attempt", ""),
        not_given={
            key: np.isin(np.arange(len(lengths)), rows) for key, rows in meta.get("not_given", {}).items()
        },
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


def record_meta(row_lists: Mapping[str, Sequence[Any]], **fields: Any) -> dict[str, Any]:
    """The header of a batch's record."""
    return {"schema": SCHEMA_VERSION, "row_lists": row_lists, **fields}


def narrowest_int(values: np.ndarray) -> Any:
    """int8, int16 or int32: the narrowest that holds all values."""
    if not len(values):
        return np.int8
    low, high = int(values.min()), int(values.max())
    return next((kind.dtype for kind in _INTS if kind.min <= low and high <= kind.max), np.int32)


def float16_overflows(narrow: np.ndarray, wide: np.ndarray) -> bool:
    """True when float16 turned a finite float32 value into an infinite one.

    Args:
        narrow: float16 [N].
        wide: float32 [N] that it was made from.
    """
    bits = narrow.view(np.uint16)
    if not len(bits) or (bits.max() < 0xFC00 and narrow.view(np.int16).max() < 0x7C00):
        return False
    infinite = (bits & 0x7FFF) == 0x7C00
    return bool(infinite.any()) and bool(np.isfinite(wide[infinite]).any())


def _narrow_floats(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float16)
    return values if float16_overflows(narrow, values) else narrow


def _bits(packed: np.ndarray, n: int) -> np.ndarray:
    return np.unpackbits(packed, count=n).astype(bool)


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
