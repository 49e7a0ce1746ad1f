"""Metrics of a step over all its rollouts: `rollout_metrics(batch)`."""

from rollout_traces.metrics import (
    by_turn,
    diversity,
    group_shapes,
    importance,
    learning,
    mismatch_more,
    outcomes,
    policy,
    prefixes,
    repetition,
    rewards,
    shapes,
    ties,
    tools,
    update,
)
from rollout_traces.metrics.compute import check_keys, missing_inputs, rollout_metrics
from rollout_traces.metrics.histograms import step_histograms
from rollout_traces.metrics.identity_checks import identity_checks
from rollout_traces.metrics.registry import FAMILIES, Family, Key, family
from rollout_traces.metrics.tool_use import ToolUse, tool_use
from rollout_traces.metrics.view import StepView

__all__ = [
    "FAMILIES",
    "Family",
    "Key",
    "StepView",
    "ToolUse",
    "check_keys",
    "family",
    "identity_checks",
    "missing_inputs",
    "rollout_metrics",
    "step_histograms",
    "tool_use",
]

BUILT_IN = (
    rewards,
    outcomes,
    shapes,
    tools,
    learning,
    policy,
    importance,
    mismatch_more,
    ties,
    group_shapes,
    diversity,
    repetition,
    prefixes,
    by_turn,
    update,
)
"""The modules whose families are registered on import."""
