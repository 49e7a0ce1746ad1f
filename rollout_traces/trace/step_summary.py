"""The step summary: one trace per step and split that summarises it and carries the ledger of all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollout_traces import packed_batch
from rollout_traces.flags import Flag, describe_off, flag_metrics, off_flags
from rollout_traces.ledger import columns as ledger
from rollout_traces.ledger.build import settle_step
from rollout_traces.ledger.columns import Ledger
from rollout_traces.metrics import ToolUse, identity_checks, missing_inputs, rollout_metrics
from rollout_traces.packed_batch import PackedBatch
from rollout_traces.trace.conversion import TraceRecord, step_summary_trace


@dataclass(frozen=True, eq=False)
class StepPart:
    """One hand-over of a step that is still open.

    Attributes:
        batch: the rollouts.
        ledger: their ledger, with what was selected.
        flags: row -> the flags that need no text.
        random_flags: row -> the flags that need text, for every row that was traced at random.
        tool_use: row -> its tool calls and results, for every row that was traced.
    """

    batch: PackedBatch
    ledger: Ledger
    flags: Mapping[int, Sequence[Flag]] = field(default_factory=dict)
    random_flags: Mapping[int, Sequence[Flag]] = field(default_factory=dict)
    tool_use: Mapping[int, ToolUse] = field(default_factory=dict)

    @property
    def n_traced(self) -> int:
        """Rows that became traces."""
        return sum(uid is not None for uid in self.ledger.get("trace_uid").tolist())


@dataclass(frozen=True, eq=False)
class ClosedStep:
    """A step and split whose hand-overs have all come.

    Attributes:
        parts: its hand-overs, in order.
        batch: all their rollouts.
        rows: their ledger, with what speaks of the whole step taken over all of them.
        tokenizer: what rows were decoded with, None when there was none.
    """

    parts: Sequence[StepPart]
    batch: PackedBatch
    rows: Ledger
    tokenizer: Any = None

    @classmethod
    def of(cls, parts: Sequence[StepPart], tokenizer: Any = None) -> ClosedStep:
        """Puts the hand-overs of one step and split together."""
        batch = packed_batch.concatenate([part.batch for part in parts])
        rows = ledger.concatenate([part.ledger for part in parts])
        return cls(parts, batch, settle_step(batch, rows) if len(parts) > 1 else rows, tokenizer)

    def metric_inputs(self, config: Any) -> dict[str, Any]:
        """What the step's metrics are computed from beside its rows."""
        return {
            "keys": config.metric_keys,
            "settings": config.settings,
            "tool_use": _stacked(self.parts, "tool_use"),
        }

    def flags_off(self, config: Any) -> dict[str, tuple[str, ...]]:
        """The flags that cannot be looked for, and what each lacks."""
        return off_flags(self.batch, parameters=config.flag_parameters, tokenizer=self.tokenizer)


def scalars_of(step: ClosedStep, config: Any) -> dict[str, float]:
    """A step's metrics and flag shares over all its rollouts.

    Args:
        step: the step.
        config: the worker's `StepOptions`.

    Returns:
        Values by key, the split in front.
    """
    metrics = rollout_metrics(step.batch, step.rows, **step.metric_inputs(config))
    return metrics | flag_metrics(
        _stacked(step.parts, "flags"),
        step.rows.n_rows,
        step.batch.split,
        off=step.flags_off(config),
        random_flags=_stacked(step.parts, "random_flags") or None,
        parameters=config.flag_parameters,
    )


def step_summary_of(
    step: ClosedStep,
    config: Any,
    *,
    scalars: Mapping[str, float] | None = None,
    details: Mapping[str, Any] | None = None,
) -> TraceRecord:
    """A step summary.

    Args:
        step: the step.
        config: the worker's `StepOptions`.
        scalars: its metrics; what they say is wrong stands in the summary.
        details: what only a reader of the whole trace needs.

    Returns:
        A trace that reads as a summary of the step and carries its ledger.
    """
    rows = step.rows
    n_traced = sum(part.n_traced for part in step.parts)
    off = _off_text(step, config)
    wrong = identity_checks(scalars or {}, step.batch.split)
    metadata = {
        "status": _status(rows),
        "split": step.batch.split,
        "step": step.batch.step,
        "population": rows.n_rows,
        "kept": n_traced,
        "groups": len(set(rows.get("group").tolist())),
        "selection": _selection_counts(rows),
        "metrics_off": off,
        "flags_off": describe_off(step.flags_off(config)),
        "response_mask_from": step.batch.response_mask_source,
    }
    summary = [
        {"role": "user", "content": f"What happened at step {step.batch.step} of {step.batch.split}?"},
        {"role": "assistant", "content": "\n".join([_summary_text(rows, n_traced, off), *wrong])},
    ]
    return step_summary_trace(rows, summary=summary, metadata=metadata, details=details)


def _stacked(parts: Sequence[StepPart], name: str) -> dict[int, Any]:
    """Row -> what the parts hold by row, rows counted through."""
    stacked: dict[int, Any] = {}
    first = 0
    for part in parts:
        stacked |= {first + row: value for row, value in getattr(part, name).items()}
        first += part.batch.n_rows
    return stacked


def _off_text(step: ClosedStep, config: Any) -> str:
    """The metrics that were asked for and are off, each with what it lacks."""
    missing = missing_inputs(step.batch, step.rows, **step.metric_inputs(config))
    return "; ".join(f"{name} ({', '.join(lacks)})" for name, lacks in missing.items())


def _status(rows: Ledger) -> str:
    rewards = rows.get("reward")
    known = rewards[np.isfinite(rewards)]
    reward = f"mean reward {known.mean():.4g}" if len(known) else "reward unknown"
    return f"{reward}, {rows.n_rows} rollouts"


def _selection_counts(rows: Ledger) -> str:
    counts = Counter(reason for reason in rows.get("selected_by").tolist() if reason is not None)
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())


def _summary_text(rows: Ledger, n_traced: int, off: str) -> str:
    rewards = rows.get("reward")
    known = rewards[np.isfinite(rewards)]
    lines = [
        f"{rows.n_rows} rollouts in {len(set(rows.get('group').tolist()))} groups; {n_traced} kept as traces."
    ]
    if len(known):
        lines.append(
            f"Reward: mean {known.mean():.4g}, min {known.min():.4g}, median {np.median(known):.4g}, max {known.max():.4g}."
        )
    chosen = _selection_counts(rows)
    if chosen:
        lines.append(f"Kept: {chosen}.")
    flags = Counter(name for names in rows.get("flags").tolist() for name in names)
    if flags:
        lines.append("Flags: " + ", ".join(f"{name} on {n}" for name, n in flags.most_common()) + ".")
    discarded = Counter(reason for reason in rows.get("discard_reason").tolist() if reason is not None)
    if discarded:
        lines.append(
            "Discarded: " + ", ".join(f"{n} {reason}" for reason, n in discarded.most_common()) + "."
        )
    stops = Counter(reason for reason in rows.get("stop_reason").tolist() if reason is not None)
    if stops:
        lines.append("Stopped by: " + ", ".join(f"{reason} {n}" for reason, n in stops.most_common()) + ".")
    if off:
        lines.append(f"Metrics that are off, and what they lack: {off}.")
    return "\n".join(lines)
