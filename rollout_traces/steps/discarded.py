"""Rollouts that the trainer dropped before training: a record of each, a summary of the step, running totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.metrics.shapes import bounded
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.text import one_line
from rollout_traces.model.transcript import Transcript
from rollout_traces.steps.sample_table import Decode, prompt_and_completion

PREVIEW = 120
"""Characters of a prompt that are shown."""
LONGEST = 5


FILTERED = "filtered"
"""The key of a step summary's details that holds what was dropped."""
DECODED = 32
"""Dropped rollouts of a step that are decoded, the longest first, for their messages and their prompt."""


def filtered_trajectories(
    batch: PackedBatch, ledger: Ledger, transcripts: Mapping[int, Transcript] | None = None
) -> list[dict[str, Any]]:
    """A record of every rollout that was dropped; None where only a decoded one would tell.

    Args:
        batch: B rollouts.
        transcripts: row -> its transcript, where it was decoded.

    Returns:
        One record a dropped rollout, in the order handed over.
    """
    reasons = ledger.get("discard_reason").tolist()
    return [
        _record(batch, ledger, row, reason, (transcripts or {}).get(row))
        for row, reason in enumerate(reasons)
        if reason is not None
    ]


def filter_summary(batch: PackedBatch, dropped: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums a step's records up.

    Args:
        batch: all rollouts of the step.
        dropped: what `filtered_trajectories` gave.

    Returns:
        `step`; `total`, `kept` and `filtered` rollouts; `by_reason`; `tokens`, the `min`, `p50`, `p90` and `max` of what
        was dropped, empty when nothing was; `longest`, the five longest of them.
    """
    lengths = np.asarray([record["n_tokens"] for record in dropped], np.float64)
    percentiles = {"min": 0, "p50": 50, "p90": 90, "max": 100}
    return {
        "step": batch.step,
        "total": batch.n_rows,
        "kept": batch.n_rows - len(dropped),
        "filtered": len(dropped),
        "by_reason": dict(Counter(record["reason"] for record in dropped)),
        "tokens": {name: float(np.percentile(lengths, at)) for name, at in percentiles.items()}
        if dropped
        else {},
        "longest": sorted(dropped, key=lambda record: -record["n_tokens"])[:LONGEST],
    }


def filtered_details(batch: PackedBatch, ledger: Ledger, decode: Decode | None) -> dict[str, Any]:
    """The rollouts dropped before training, for a step summary.

    Args:
        batch: all rollouts of the step.
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
    return {FILTERED: {"summary": filter_summary(batch, records), "rollouts": records}}


def running_totals(before: Mapping[str, float], ledger: Ledger, split: str) -> dict[str, float]:
    """Counts over a run, a step added.

    Args:
        before: what was counted before it, of any number of splits.
        ledger: every row of the step.
        split: `rollout` or `eval-rollout`.

    Returns:
        `<split>/total/{samples,discarded}` and `<split>/total/discarded_<reason>` so far.
    """
    samples, of_reason = f"{split}/total/samples", f"{split}/total/discarded_"
    discarded = Counter(reason for reason in ledger.get("discard_reason").tolist() if reason is not None)
    for key, n in before.items():
        if key.startswith(of_reason):
            discarded[key.removeprefix(of_reason)] += int(n)
    return {
        samples: before.get(samples, 0.0) + ledger.n_rows,
        f"{split}/total/discarded": float(discarded.total()),
        **{of_reason + name: float(n) for name, n in bounded(discarded).items()},
    }


def _record(
    batch: PackedBatch, ledger: Ledger, row: int, reason: str, transcript: Transcript | None
) -> dict[str, Any]:
    n_turns = int(ledger.get("n_turns")[row])
    uid = ledger.get("uid")[row]
    return {
        "uid": batch.uid(row) if uid is None else uid,
        "reason": reason,
        "n_tokens": int(batch.n_tokens[row]),
        "n_messages": None if transcript is None else len(transcript.turns),
        "n_assistant_turns": None if n_turns == NULL_INT else n_turns,
        "n_tool_results": None
        if transcript is None
        else sum(turn.role == "tool" for turn in transcript.turns),
        "prompt_preview": None if transcript is None else prompt_preview(transcript),
    }


def prompt_preview(transcript: Transcript) -> str:
    """The first 120 characters of the first user turn, else of the prompt, on one line."""
    said = next((turn.content for turn in transcript.turns if turn.role == "user"), None)
    return one_line(said if said is not None else prompt_and_completion(transcript)[0], PREVIEW)
