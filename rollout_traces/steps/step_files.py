"""Further files and details of a closed step: dropped rollouts, and on request a file of all its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rollout_traces.ledger.columns import Ledger
from rollout_traces.packed_batch import PackedBatch
from rollout_traces.steps.discarded import filter_summary, filtered_trajectories
from rollout_traces.steps.sample_table import sample_table, table_path, write_table
from rollout_traces.transcript import Transcript

Decode = Callable[[PackedBatch, Sequence[int]], Mapping[int, Transcript]]
"""Rows of a batch -> their transcripts; a row that cannot be decoded is absent."""

FILTERED = "filtered"
"""Where a step summary's details hold what was dropped."""
DECODED = 32
"""Dropped rollouts of a step that are decoded, the longest first, for their messages and their prompt."""


def filtered_details(batch: PackedBatch, ledger: Ledger, decode: Decode | None) -> dict[str, Any]:
    """The rollouts dropped before training, for a step summary.

    Args:
        batch: all rollouts of the step.
        ledger: their ledger.
        decode: gives transcripts; None where there is no decoder.

    Returns:
        `{"filtered": {"summary": ..., "rollouts": [...]}}` as plain values, or nothing when none was dropped.
    """
    if "discard_reason" not in ledger.columns:
        return {}
    dropped = np.asarray([reason is not None for reason in ledger.get("discard_reason").tolist()], bool)
    if not dropped.any():
        return {}
    rows = np.flatnonzero(dropped & batch.has_tokens)
    longest = rows[np.argsort(-batch.n_tokens[rows], kind="stable")][:DECODED]
    transcripts = decode(batch, longest.tolist()) if decode is not None else {}
    records = filtered_trajectories(batch, ledger, transcripts)
    return {
        FILTERED: {
            "summary": filter_summary(batch, records).as_dict(),
            "rollouts": [asdict(record) for record in records],
        }
    }


def write_all_rows(folder: str | Path, batch: PackedBatch, ledger: Ledger, decode: Decode) -> Path:
    """Writes a step's sample table with every row that has tokens, text included.

    Args:
        folder: of the run.
        batch: all rollouts of the step.
        ledger: their ledger.
        decode: gives transcripts.

    Returns:
        The file, `<folder>/<split>/<step>.json`.

    Raises:
        OSError: the file cannot be written.
    """
    transcripts = decode(batch, np.flatnonzero(batch.has_tokens).tolist())
    path = table_path(folder, batch.split, batch.step)
    write_table(path, sample_table(ledger, transcripts))
    return path
