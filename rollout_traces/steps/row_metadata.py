"""A trace's data about its rollout that the ledger lacks: small values in the metadata, whole ones in the details."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_traces.ledger.columns import Ledger
from rollout_traces.packed_batch import PackedBatch


def extra_metadata(batch: PackedBatch, ledger: Ledger, row: int) -> dict[str, Any]:
    """Metadata of a row that its ledger lacks."""
    group = ledger.get("group")
    extras = batch.row_value("extras", row)
    extras = dict(extras) if isinstance(extras, Mapping) else {}
    came_without_tokens = not batch.has_tokens[row] and not batch.n_tokens[row]
    return {
        "n_tokens": None if came_without_tokens else int(batch.n_tokens[row]),
        "ids_from": "unobserved" if came_without_tokens else extras.pop("ids_from", None),
        "group_size": int((group == group[row]).sum()),
        "train_version": batch.train_version,
        "response_mask_from": None if came_without_tokens else batch.response_mask_source,
        "population": batch.n_rows,
        "parsed_answer": _short(batch.row_value("parsed_answers", row)),
        "ground_truth": _short(batch.row_value("ground_truths", row)),
        **{f"extra/{name}": value for name, value in extras.items() if isinstance(value, (str, int, float))},
    }


def details_of(batch: PackedBatch, row: int) -> dict[str, Any]:
    """Data that only a reader of the whole trace needs."""
    known = {
        "timings": batch.row_value("timings", row),
        "ground_truth": batch.row_value("ground_truths", row),
        "engine_id": batch.row_value("engine_ids", row),
        "sample_id": batch.row_value("sample_ids", row),
    }
    return {name: value for name, value in known.items() if value is not None}


def _short(value: Any, limit: int = 200) -> Any:
    """Metadata stays small: long answers are cut here and kept whole in the details."""
    if isinstance(value, (int, float)) or value is None:
        return value
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}…"
