"""Lengths, turns and stop reasons: what a rollout looks like from outside."""

from __future__ import annotations

from collections import Counter

import numpy as np

from rollout_traces.ledger.columns import NULL_INT
from rollout_traces.metrics.aggregate import describe, key_parts
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import StepView

_LENGTH_STATS = ("mean", "std", "min", "max", "p50", "p95")
MAX_REASONS = 12
"""Stop and discard reasons with a key of their own; rarer ones are put together as `other`."""


@family(
    "tokens",
    reads="ledger",
    needs=("n_sampled",),
    source="Telescope",
    keys=(
        Key("tokens/completion/{mean,p95,max}", "sampled tokens of a rollout, over all turns", default=True),
        Key("tokens/completion/{std,min,p50}", "sampled tokens of a rollout, over all turns"),
        Key("tokens/prompt/mean", "tokens before the first sampled one", default=True),
        Key("tokens/prompt/{std,min,max,p50,p95}", "tokens before the first sampled one"),
        Key("tokens/environment/{mean,std,min,max,p50,p95}", "unsampled tokens after the first sampled one"),
        Key("tokens/total/max", "all tokens of a rollout", default=True),
        Key("tokens/total/{mean,std,min,p50,p95}", "all tokens of a rollout"),
    ),
)
def tokens(view: StepView) -> dict[str, float]:
    """mean, population std, min, max, median and 95 % quantile of token counts per rollout."""
    parts = {
        "prompt": view.floats("n_prompt"),
        "completion": view.floats("n_sampled"),
        "environment": view.floats("n_environment"),
    }
    parts["total"] = parts["prompt"] + parts["completion"] + parts["environment"]
    result: dict[str, float] = {}
    for name, values in parts.items():
        result |= describe(f"tokens/{name}", values[np.isfinite(values)], _LENGTH_STATS)
    return result


@family(
    "completion_terminated",
    reads="ledger",
    needs=("n_sampled", "stop_reason"),
    source="MaxEnt-GRPO",
    keys=(Key("completion/{mean,min,max}_terminated", "sampled tokens of rollouts that were not cut"),),
)
def completion_terminated(view: StepView) -> dict[str, float]:
    """mean, min and max of sampled tokens over rows with a known stop reason other than length."""
    reasons = view.ledger.get("stop_reason")
    lengths = view.floats("n_sampled")
    ended = np.asarray([reason is not None for reason in reasons], bool) & ~view.truncated
    found = describe("completion", lengths[ended & np.isfinite(lengths)], ("mean", "min", "max"))
    return {f"{key}_terminated": value for key, value in found.items()}


@family(
    "stop_reasons",
    reads="ledger",
    needs=("stop_reason",),
    source="MaxEnt-GRPO's clipped fraction, Telescope's stop_reason_length_pct / 100",
    keys=(
        Key("stop/length_share", "rollouts cut by the length limit", default=True),
        Key("stop/<reason>_share", "rollouts that stopped for that reason; rare reasons are `other`"),
    ),
)
def stop_reasons(view: StepView) -> dict[str, float]:
    """rows with that normalised stop reason / rows with a known one."""
    counts = Counter(reason for reason in view.ledger.get("stop_reason").tolist() if reason is not None)
    total = sum(counts.values())
    result = {"stop/length_share": counts["length"] / total} if total else {}
    return result | {f"stop/{name}_share": n / total for name, n in bounded(counts).items()}


@family(
    "turns",
    reads="ledger",
    needs=("n_turns",),
    source="Telescope",
    keys=(
        Key("turns/mean", "assistant turns of a rollout", default=True),
        Key("turns/max", "most assistant turns of a rollout"),
    ),
)
def turns(view: StepView) -> dict[str, float]:
    """mean and max of assistant turns per rollout."""
    values = view.floats("n_turns")
    return describe("turns", values[np.isfinite(values)], ("mean", "max"))


@family(
    "sample_metrics",
    reads="ledger",
    needs=("sample",),
    source="Telescope",
    keys=(Key("sample/<name>/{mean,std,min,max}", "the trainer's own metric of a rollout"),),
)
def sample_metrics(view: StepView) -> dict[str, float]:
    """mean, population std, min and max of each of the trainer's own metrics."""
    result: dict[str, float] = {}
    metrics = view.named("sample")
    parts = key_parts(metrics)
    for name, values in metrics.items():
        given = view.given(f"sample_metrics/{name}", values)
        result |= describe(f"sample/{parts[name]}", values[given])
    return result


@family(
    "counters",
    reads="ledger",
    source="AReno",
    keys=(
        Key("count/samples", "rollouts handed over", default=True),
        Key("count/tokens", "their tokens", default=True),
        Key("count/prompts", "groups among them"),
        Key("count/expected_samples", "prompts x samples asked for per prompt, where that is declared"),
        Key(
            "count/without_tokens", "rollouts whose tokens were left behind; absent when there are none", True
        ),
        Key("count/{messages,tool_calls,tool_results}", "where every rollout of the step was decoded"),
    ),
)
def counters(view: StepView) -> dict[str, float]:
    """Plain counts over the step; what is not known for all rollouts is not counted."""
    n_rows = view.ledger.n_rows
    lengths = [view.ledger.get(name) for name in ("n_prompt", "n_sampled", "n_environment")]
    result = {"count/samples": float(n_rows), "count/prompts": float(len(view.groups))}
    if view.batch is not None:
        result["count/tokens"] = float(view.batch.n_tokens.sum())
        if not view.batch.has_tokens.all():
            result["count/without_tokens"] = float((~view.batch.has_tokens).sum())
    elif n_rows and all((column != NULL_INT).all() for column in lengths):
        result["count/tokens"] = float(np.sum(lengths))
    if view.settings.samples_per_prompt is not None:
        result["count/expected_samples"] = float(len(view.groups) * view.settings.samples_per_prompt)
    if n_rows and len(view.tool_use) == n_rows:
        uses = view.tool_use.values()
        result["count/messages"] = float(sum(use.messages for use in uses))
        result["count/tool_calls"] = float(sum(sum(use.calls.values()) + use.unparsed for use in uses))
        result["count/tool_results"] = float(sum(use.results for use in uses))
    return result


@family(
    "discarded",
    reads="ledger",
    source="Telescope",
    keys=(
        Key("discarded/share", "rollouts that the trainer left out", default=True),
        Key("discarded/<reason>_count", "rollouts left out for that reason"),
    ),
)
def discarded(view: StepView) -> dict[str, float]:
    """rows with a discard reason / rows, and counts by reason."""
    if not view.ledger.n_rows:
        return {}
    counts = Counter(reason for reason in view.ledger.get("discard_reason").tolist() if reason is not None)
    result = {"discarded/share": sum(counts.values()) / view.ledger.n_rows}
    return result | {f"discarded/{name}_count": float(n) for name, n in bounded(counts).items()}


def bounded(counts: Counter[str]) -> dict[str, int]:
    """Counts by a name safe for a key, rare names together as `other`."""
    if not counts:
        return {}
    parts = key_parts(counts)
    result: Counter[str] = Counter()
    for index, (name, n) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))):
        result[parts[name] if index < MAX_REASONS else "other"] += n
    return dict(result)
