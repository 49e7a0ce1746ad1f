"""The worker's options for processing a run's steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout_traces.settings.logger_options import LoggerOptions, for_worker
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.steps.selection import SelectionPolicy, default_policy, policy_named


@dataclass
class StepOptions(LoggerOptions):
    """Options of closing, judging and keeping steps: the logger's, and what the run declares.

    Attributes:
        settings: what the run declares about itself.
        seed: what random choices are drawn from.
    """

    settings: RunSettings = field(default_factory=RunSettings)
    seed: int = 0

    @property
    def max_traces(self) -> int:
        """Rollouts that become traces, per step and split."""
        return self.max_rollout_traces_per_step

    def policy(self, split: str) -> SelectionPolicy:
        """The policy that spends a split's cap; evaluation has fixed prompts where training has its portfolio."""
        if split == "eval-rollout" and self.selection == "portfolio":
            return default_policy(split)
        return policy_named(self.selection)

    def as_plain(self) -> dict[str, Any]:
        """JSON-safe values for the manifest; the selection has to be a name."""
        return {**for_worker(self), "settings": self.settings.as_config(), "seed": self.seed}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> StepOptions:
        """The options that `as_plain` gave."""
        return cls.of(**{**values, "settings": RunSettings.create(**values.get("settings", {}))})
