"""Records of a store, as `export` writes them, as the batch that an import of them would hand over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rollout_traces.model.batch import RolloutBatch
from rollout_traces.sources.formats.own_export import row_of
from rollout_traces.sources.rows import batch_of


def batch_of_records(records: Iterable[Mapping[str, Any]]) -> RolloutBatch:
    """A batch of at least one record of one step and split."""
    rows = [row_of(record, line) for line, record in enumerate(records, 1)]
    for row in rows:
        row.ledger_row = {}
    return batch_of(rows, decodes_tokens=True)
