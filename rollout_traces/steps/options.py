"""What the worker needs to know to process a run's steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rollout_traces.selection import SelectionPolicy, default_policy, policy_named
from rollout_traces.settings.run_settings import RunSettings

MAX_STEP_BYTES = 1 << 30
QUIET_SECONDS = 60.0
JOIN_SECONDS = 600.0


@dataclass(frozen=True)
class StepOptions:
    """How steps are closed, judged and kept; plain values, so that they can cross to another process.

    Attributes:
        max_traces: rollouts that become traces, per step and split; 0 or less: none.
        selection: policy for training rollouts, a name or a callable; None: the split's default.
        ledger: whether a step summary with the ledger of all rows is logged each step.
        seed: what random choices are drawn from.
        metric_keys: patterns of step metrics to log, see `metrics`.
        flag_parameters: thresholds by `<flag>.<parameter>`.
        settings: what the run declares about itself.
        max_disk_gb: gigabytes of the project above which steps keep their ledger only; None: no limit.
        all_rows_folder: folder for a file a step with the text of all its rows; None: none.
        quiet_seconds: seconds without rollouts after which an open step is closed, and at least three times the
            longest pause seen within a step; 0: never.
        join_seconds: seconds that a step which could be closed waits for awaited joins.
        max_step_bytes: memory for the tokens of one open step; above it the tokens of a random sample of its
            groups are kept.
    """

    max_traces: int = 0
    selection: str | SelectionPolicy | None = None
    ledger: bool = True
    seed: int = 0
    metric_keys: tuple[str, ...] = ("default",)
    flag_parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: RunSettings = field(default_factory=RunSettings)
    max_disk_gb: float | None = None
    all_rows_folder: str | None = None
    quiet_seconds: float = QUIET_SECONDS
    join_seconds: float = JOIN_SECONDS
    max_step_bytes: int = MAX_STEP_BYTES

    def policy(self, split: str) -> SelectionPolicy:
        """The policy that spends a split's cap; evaluation has fixed prompts where training has its portfolio."""
        if self.selection is None or (split == "eval-rollout" and self.selection == "portfolio"):
            return default_policy(split)
        return policy_named(self.selection)

    def as_plain(self) -> dict[str, Any]:
        """JSON-safe values; the selection has to be a name."""
        return {**asdict(self), "settings": self.settings.as_config()}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> StepOptions:
        """The options that `as_plain` gave; keys of other versions are passed over."""
        known = {key: value for key, value in values.items() if key in cls.__dataclass_fields__}
        known["settings"] = RunSettings.create(**known.get("settings", {}))
        known["metric_keys"] = tuple(known.get("metric_keys", ("default",)))
        return cls(**known)
