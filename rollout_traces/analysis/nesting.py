"""What is a plain consequence of another column is said under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rollout_traces.analysis.finding import Finding
from rollout_traces.flags import REGISTRY

SAME = 0.97
"""Two numbers whose group means correlate by this are one finding and its consequence."""
FEWEST = 8
"""Groups that know both."""
PARENTS: Mapping[str, tuple[str, ...]] = {
    "n_tokens": ("n_sampled",),
    "stop_reason length": ("n_sampled",),
    "stop_reason stop": ("stop_reason length",),
    "mismatch_k1": ("mismatch_k3",),
    "mismatch_abs_max": ("mismatch_k3",),
    "log_ratio_sum": ("mismatch_k1", "mismatch_k3"),
    "n_tool_errors": ("error_signatures *",),
    "reward_status ok": ("reward_status error", "reward_status timeout"),
    "n_turns": ("n_tool_calls",),
    "raw_reward": ("reward",),
    **{f"flags {spec.name}": spec.follows for spec in REGISTRY.values() if spec.follows},
}
"""Column (and value) -> what it is a plain consequence of; `*` stands for any value."""


def parents_of(name: str) -> frozenset[str]:
    """The columns that a column, or a column and value, is a plain consequence of."""
    return frozenset(parent.split(" ")[0] for parent in PARENTS.get(name, ()))


def nested(kept: Sequence[Finding], means: Mapping[str, np.ndarray]) -> list[Finding]:
    """Findings in their order, each with its consequences.

    Args:
        kept: ranked.
        means: float [G] by column, the means of each group.
    """
    heads: list[Finding] = []
    below: dict[str, list[Finding]] = {}
    for f in kept:
        head = _head(f, kept, heads, means)
        if head is None:
            heads.append(f)
        else:
            below.setdefault(head, []).append(f)
    return [replace(h, consequences=tuple(_below(h.name, below))) for h in heads]


def _below(name: str, below: dict[str, list[Finding]]) -> list[Finding]:
    """All that follows from a finding, also by way of another."""
    return [each for direct in below.pop(name, []) for each in (direct, *_below(direct.name, below))]


def _head(
    f: Finding, kept: Sequence[Finding], heads: Sequence[Finding], means: Mapping[str, np.ndarray]
) -> str | None:
    for parent in PARENTS.get(f.name, ()):
        for other in kept:
            if other is not f and _is(parent, other.name) and not _follows(other.name, f.name):
                return other.name
    if f.logged:
        return None
    if f.value is None:
        return next(
            (h.name for h in heads if h.column in means and _alike(means[h.column], means[f.column])), None
        )
    several = f.column in ("flags", "tool_names", "error_signatures")
    return None if several else next((h.name for h in heads if h.column == f.column), None)


def _is(parent: str, name: str) -> bool:
    return name == parent or (parent.endswith("*") and name.startswith(parent[:-1]))


def _follows(name: str, other: str) -> bool:
    return any(_is(parent, other) for parent in PARENTS.get(name, ()))


def _alike(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two numbers are one and the same up to scale, over the groups."""
    both = np.isfinite(x) & np.isfinite(y)
    if both.sum() < FEWEST or np.ptp(x[both]) == 0 or np.ptp(y[both]) == 0:
        return False
    return abs(float(np.corrcoef(x[both], y[both])[0, 1])) >= SAME
