"""The step summary: one trace per step and split that summarises it and carries the ledger of all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rollout_traces.flags.detect import describe_off, flag_metrics, off_flags
from rollout_traces.ledger.columns import Ledger
from rollout_traces.ledger.groups import known_rewards
from rollout_traces.metrics import StepView, ToolUse, identity_checks
from rollout_traces.metrics.compute import metrics_of, missing_of, step_view
from rollout_traces.metrics.registry import describe_told_apart
from rollout_traces.model.transcript import Flag
from rollout_traces.steps.open_step import ClosedStep
from rollout_traces.steps.run_state import StepOptions
from rollout_traces.trace.conversion import TraceRecord, step_summary_trace

MOST_ENGINES = 8
OVER_DISK_LIMIT = "The project is above its max_disk_gb: no traces, the ledger only."


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """The results for the rows of a closed step.

    Attributes:
        ledger: every row, with its flags and with what was selected.
        flags: row -> the flags that need no text.
        random_flags: row -> the flags that need text, for every row that was traced at random.
        tool_use: row -> its tool calls and results, for every row that was traced.
        tokenizer: what rows were decoded with, None when there was none.
    """

    ledger: Ledger
    flags: Mapping[int, Sequence[Flag]] = field(default_factory=dict)
    random_flags: Mapping[int, Sequence[Flag]] = field(default_factory=dict)
    tool_use: Mapping[int, ToolUse] = field(default_factory=dict)
    tokenizer: Any = None

    @property
    def n_traced(self) -> int:
        """Rows that became traces."""
        return sum(uid is not None for uid in self.ledger.get("trace_uid").tolist())


@dataclass(frozen=True, eq=False)
class JudgedStep:
    """A closed step with its judged rows: what its metrics and its summary are made from.

    Attributes:
        options: what to compute and to keep.
    """

    step: ClosedStep
    rows: JudgedRows
    options: StepOptions

    @cached_property
    def view(self) -> StepView:
        """The view of it that metrics see."""
        batch, rows = self.step.batch, self.rows
        return step_view(batch, rows.ledger, batch.split, self.options.settings, rows.tool_use, None)

    @cached_property
    def flags_off(self) -> Mapping[str, tuple[str, ...]]:
        """The flags that cannot be computed, and the inputs that each lacks."""
        parameters = self.options.flag_parameters
        return off_flags(self.step.batch, parameters=parameters, tokenizer=self.rows.tokenizer)


def scalars_of(judged: JudgedStep) -> dict[str, float]:
    """A step's metrics and flag shares over all its rollouts.

    Returns:
        Values by key, the split in front.
    """
    rows, options = judged.rows, judged.options
    return metrics_of(judged.view, options.metric_keys, judged.step.key.split) | flag_metrics(
        rows.flags,
        rows.ledger.n_rows,
        judged.step.key.split,
        off=judged.flags_off,
        random_flags=rows.random_flags or None,
        parameters=options.flag_parameters,
    )


def step_summary_of(
    judged: JudgedStep,
    *,
    scalars: Mapping[str, float],
    details: Mapping[str, Any],
    over_disk_limit: bool = False,
    described: bool = True,
) -> TraceRecord:
    """A step summary. It names its hand-overs, so that none is counted twice after a crash.

    Args:
        scalars: its metrics; identities that they break are named in the summary.
        details: what only a reader of the whole trace needs.
        over_disk_limit: the project is above its `max_disk_gb`.
        described: False: without the list of what is off, where listing it failed before.

    Returns:
        A trace that reads as a summary of the step and carries its ledger.
    """
    step, rows, key = judged.step, judged.rows.ledger, judged.step.key
    off = _off_text(judged) if described else ""
    wrong = identity_checks(scalars, key.split)
    n_traced, chosen = judged.rows.n_traced, _selection_counts(rows)
    notes = [*dict.fromkeys(step.batch.notes), *([OVER_DISK_LIMIT] if over_disk_limit else [])]
    metadata = {
        "status": _status(rows),
        "split": key.split,
        "step": key.step,
        "attempt": key.attempt or None,
        "late": key.late or None,
        "population": rows.n_rows,
        "kept": n_traced,
        "groups": len(set(rows.get("group").tolist())),
        "selection": chosen,
        "metrics_off": off,
        "flags_off": describe_off(judged.flags_off) if described else "",
        "response_mask_from": step.batch.response_mask_source,
        "kept_probability": step.kept_probability if step.kept_probability < 1 else None,
        "uid": f"{step.parts[0]}-digest",
        "batches": ",".join(step.parts),
        "notes": notes or None,
    }
    question = f"What happened at step {key.step} of {key.split}?"
    if key.late:
        question = f"What came late for step {key.step} of {key.split}?"
    summary = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "\n".join([_summary_text(rows, n_traced, chosen, off), *wrong])},
    ]
    known = {name: value for name, value in metadata.items() if value is not None}
    return step_summary_trace(rows, summary=summary, metadata=known, details=details)


def _off_text(judged: JudgedStep) -> str:
    """The metrics that were asked for and are off, each with the inputs that it lacks."""
    missing = missing_of(judged.view, judged.options.metric_keys)
    return "; ".join(f"{name} ({', '.join(lacks)})" for name, lacks in missing.items())


def _status(rows: Ledger) -> str:
    rewards = known_rewards(rows)
    known = rewards[np.isfinite(rewards)]
    reward = f"mean reward {known.mean():.4g}" if len(known) else "reward unknown"
    return f"{reward}, {rows.n_rows} rollouts"


def _selection_counts(rows: Ledger) -> str:
    counts = _counts(rows, "selected_by")
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())


def _counts(rows: Ledger, name: str) -> Counter[str]:
    """Counts the rows that have each value of a column of texts."""
    if name not in rows.columns:
        return Counter()
    return Counter(value for value in rows.get(name).tolist() if value is not None)


def _summary_text(rows: Ledger, n_traced: int, chosen: str, off: str) -> str:
    rewards = known_rewards(rows)
    known = rewards[np.isfinite(rewards)]
    lines = [
        f"{rows.n_rows} rollouts in {len(set(rows.get('group').tolist()))} groups; {n_traced} kept as traces."
    ]
    if len(known):
        lines.append(
            f"Reward: mean {known.mean():.4g}, min {known.min():.4g}, median {np.median(known):.4g}, max {known.max():.4g}."
        )
    if chosen:
        lines.append(f"Kept: {chosen}.")
    flags = Counter(name for names in rows.get("flags").tolist() for name in names)
    for title, each, counts, most in (
        ("Flags", "{name} on {n}", flags, None),
        ("Discarded", "{n} {name}", _counts(rows, "discard_reason"), None),
        ("Stopped by", "{name} {n}", _counts(rows, "stop_reason"), None),
        ("Engines", "{name} {n}", _counts(rows, "engine"), MOST_ENGINES),
    ):
        if counts:
            said = ", ".join(each.format(name=name, n=n) for name, n in counts.most_common(most))
            lines.append(f"{title}: {said}.")
    if off:
        lines.append(f"Metrics that are off, and what they lack: {off}.")
    if apart := describe_told_apart(rows):
        lines.append(apart)
    return "\n".join(lines)
