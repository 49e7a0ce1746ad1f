"""A step as it was logged, out of its traces: the kept rows as a `RolloutBatch`, to be trained on or tried again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import StoreError
from rollout_traces.sources.formats.own_export import batch_of_records

if TYPE_CHECKING:
    from rollout_traces.model.batch import RolloutBatch

log = logging.getLogger(__name__)
_PAGE = 500


def recorded_batch(store: Any, run: str, step: int, split: str, complete: bool) -> RolloutBatch:
    """The kept rollouts of a step; see `Store.batch`."""
    current = "superseded = 0"
    rows = list(_kept(store, run, step, split, current))
    n = store.count(run, split=split, where=current, steps=(step, step), rows="all")
    if not n:
        raise StoreError(f"step {step} of {split}: the run has no rollouts there.")
    without = sum(row.get("input_ids") is None for row in rows)
    said = f"step {step} of {split}: {len(rows):,} of {n:,} rollouts were kept, {without:,} of these without token ids"
    if not rows or (complete and (len(rows) < n or without)):
        raise StoreError(
            f"{said}. Log with a tokenizer, selection='all' and a cap of as many rollouts as a step has, to have a "
            "whole batch; import with --tokenizer."
        )
    if len(rows) < n or without:
        log.warning("%s.", said)
    return batch_of_records(rows)


def _kept(store: Any, run: str, step: int, split: str, where: str) -> Iterator[dict[str, Any]]:
    after = None
    while True:
        page = store.query(run, split, where, None, "group, sample", _PAGE, after, (step, step))
        for found in page.rows:
            if found.id is None:
                continue
            record = {
                **store.record(found.id).metadata,
                **{k: v for k, v in found.as_dict().items() if v is not None},
            }
            transcript = store.transcript(found.id)
            record["messages"] = store.messages(found.id)
            if transcript is not None and len(transcript.tokens):
                track = transcript.tokens
                record |= {name: getattr(track, name) for name in ("input_ids", "loss_mask", "response_mask")}
                record |= {name: values.tolist() for name, values in track.tracks.items()}
            yield {**record, "step": step, "split": split, "run": found.run}
        after = page.next
        if after is None:
            return
