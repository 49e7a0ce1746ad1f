"""Tool calls and thinking: what only decoded text shows.

Where every rollout of the step was decoded the keys speak of the step. Otherwise they are computed on the
rollouts that chance selected, end in `_of_random`, and their n stands beside them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from rollout_traces.metrics.aggregate import describe, key_parts
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.tool_use import ToolUse
from rollout_traces.metrics.view import StepView

RANDOM = "_of_random"
"""What keys end in that speak of the rollouts that chance selected."""


@family(
    "tools",
    reads="ledger",
    needs=("tool_use",),
    source="Telescope",
    keys=(
        Key(
            "tools/{calls_mean,errors_per_call}[_of_random]",
            "tool calls of a rollout; failed results per call",
            True,
        ),
        Key(
            "tools/{unparsed_per_attempt,unique}[_of_random]",
            "unparsed calls per attempt; different tools called",
        ),
        Key("tools/of_random_n", "rollouts behind the `_of_random` keys"),
        Key(
            "tool/{<name>,unknown}_calls[_of_random]",
            "calls by declared tool; all other names are `unknown`",
        ),
    ),
)
def tools(view: StepView) -> dict[str, float]:
    """calls / rollouts; failed results / parsed calls; unparsed / (parsed + unparsed); distinct names."""
    uses, suffix = decoded_uses(view)
    if not uses:
        return {}
    calls: Counter[str] = Counter()
    for use in uses:
        calls.update(use.calls)
    parsed, unparsed = sum(calls.values()), sum(use.unparsed for use in uses)
    result = {f"tools/calls_mean{suffix}": parsed / len(uses), f"tools/unique{suffix}": float(len(calls))}
    if parsed:
        result[f"tools/errors_per_call{suffix}"] = sum(use.errors for use in uses) / parsed
    if parsed + unparsed:
        result[f"tools/unparsed_per_attempt{suffix}"] = unparsed / (parsed + unparsed)
    if suffix:
        result["tools/of_random_n"] = float(len(uses))
    declared = view.settings.tools
    for name, part in key_parts(declared).items():
        result[f"tool/{part}_calls{suffix}"] = float(calls[name])
    if declared:
        unknown = sum(n for name, n in calls.items() if name not in declared)
        result[f"tool/unknown_calls{suffix}"] = float(unknown)
    return result


@family(
    "thinking",
    reads="ledger",
    needs=("n_thinking",),
    source="Telescope",
    keys=(
        Key(
            "tokens/thinking/{mean,std,min,max,p50,p95}[_of_random]",
            "sampled tokens inside thinking",
        ),
        Key(
            "tokens/thinking/of_random_n",
            "rollouts behind the `_of_random` keys",
        ),
    ),
)
def thinking(view: StepView) -> dict[str, float]:
    """mean, population std, min, max, median and 95 % quantile of thinking tokens per rollout."""
    values = view.floats("n_thinking")
    complete = bool(np.isfinite(values).all())
    if not complete:
        values = values[view.random_rows]
    values = values[np.isfinite(values)]
    found = describe("tokens/thinking", values, ("mean", "std", "min", "max", "p50", "p95"))
    if complete or not found:
        return found
    return {f"{key}{RANDOM}": value for key, value in found.items()} | {
        "tokens/thinking/of_random_n": float(len(values))
    }


def decoded_uses(view: StepView) -> tuple[list[ToolUse], str]:
    """The tool use to compute on, and the suffix its keys carry."""
    if len(view.tool_use) == view.ledger.n_rows:
        return list(view.tool_use.values()), ""
    at_random = [
        view.tool_use[row] for row in np.flatnonzero(view.random_rows).tolist() if row in view.tool_use
    ]
    return at_random, RANDOM
