"""Metrics of a step over all its rollouts: `rollout_metrics(batch)`."""

from rollout_traces.metrics import diversity, groups, loops, policy, rewards, shapes, update
from rollout_traces.metrics.compute import (
    check_keys,
    is_computed,
    missing_inputs,
    rollout_metrics,
    step_histograms,
)
from rollout_traces.metrics.policy import identity_checks
from rollout_traces.metrics.registry import FAMILIES, Family, Key, family
from rollout_traces.metrics.view import StepView, ToolUse, tool_use

__all__ = [
    "FAMILIES",
    "Family",
    "Key",
    "StepView",
    "ToolUse",
    "check_keys",
    "family",
    "identity_checks",
    "is_computed",
    "missing_inputs",
    "rollout_metrics",
    "step_histograms",
    "tool_use",
]

BUILT_IN = (rewards, shapes, policy, groups, diversity, loops, update)
"""The modules whose families are registered on import."""
