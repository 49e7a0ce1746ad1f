"""The batch that was handed over: a step's kept rows as the `RolloutBatch` that was logged, and the record that a rollout was imported from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import StoreError
from rollout_traces.model.transcript import columns_of
from rollout_traces.sources.formats.own_export import batch_of_records
from rollout_traces.sources.state import raw_record
from rollout_traces.store.query.nodes import literal
from rollout_traces.store.questions import MAX_LIMIT
from rollout_traces.store.rows import every_row
from rollout_traces.store.source import LocalSource

if TYPE_CHECKING:
    from rollout_traces.model.batch import RolloutBatch


log = logging.getLogger(__name__)


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
    at = {"run": run, "split": split, "where": where, "steps": (step, step)}
    for found in every_row(store, MAX_LIMIT, order_by="group, sample", **at):
        if found.id is None:
            continue
        known = {k: v for k, v in found.as_dict().items() if v is not None}
        record = {**store.record(found.id).metadata, **known, "messages": store.messages(found.id)}
        transcript = store.transcript(found.id)
        if transcript is not None and len(transcript.tokens):
            record |= columns_of(transcript.tokens)
        yield {**record, "step": step, "split": split, "run": found.run}


def raw_record_of(store: Any, trace_id: str) -> str:
    """The text of the record that a rollout was read from.

    Args:
        store: where the rollout is.
        trace_id: its trace's id or uid, or the beginning of one; of a rollout without a trace its uid.

    Raises:
        StoreError: it was not imported, not on this machine, or the record cannot be read any more.
    """
    origin = _origin_of(store, trace_id)
    if not isinstance(origin, str):
        raise StoreError(f"{trace_id!r} was not imported from a file: it has no raw record.")
    if not isinstance(store.source, LocalSource):
        raise StoreError(f"{origin}: read on the machine that imported it, from its own project.")
    return raw_record(store.source.path.parent, store.project, origin).decode("utf-8", "replace")


def _origin_of(store: Any, trace_id: str) -> Any:
    """Looks up the place a rollout was read from: its trace says it, and its row, also where it has no trace."""
    try:
        return store.record(trace_id).metadata.get("origin")
    except StoreError:
        found = store.query(where=f"uid = {literal(trace_id)}", rows="all", limit=1).rows
        if not found:
            raise
        return found[0].get("origin")
