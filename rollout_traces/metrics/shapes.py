"""Lengths, turns and stop reasons: what a rollout looks like from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rollout_traces.ledger.build import turn_numbers, turn_starts
from rollout_traces.ledger.tokens import k3
from rollout_traces.metrics.registry import Key, describe, family, finite_of, key_parts, mean_of
from rollout_traces.metrics.view import StepView, ToolUse, Values
from rollout_traces.model.packed_batch import PackedBatch

_LENGTH_STATS = ("mean", "std", "min", "max", "p50", "p95")
MAX_REASONS = 12
"""Stop and discard reasons with a key of their own; rarer ones are put together as `other`."""


@family(
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
def tokens(view: StepView) -> Values:
    """mean, population std, min, max, median and 95 % quantile of token counts per rollout."""
    columns = {"prompt": "n_prompt", "completion": "n_sampled", "environment": "n_environment"}
    parts = {name: view.floats(column) for name, column in columns.items()}
    parts["total"] = np.sum(list(parts.values()), axis=0)
    result: Values = {}
    for name, values in parts.items():
        result |= describe(f"tokens/{name}", finite_of(values)[0], _LENGTH_STATS)
    return result


@family(
    needs=("n_sampled", "stop_reason"),
    source="MaxEnt-GRPO",
    keys=(Key("completion/{mean,min,max}_terminated", "sampled tokens of rollouts that were not cut"),),
)
def completion_terminated(view: StepView) -> Values:
    """mean, min and max of sampled tokens over rows with a known stop reason other than length."""
    reasons = view.ledger.get("stop_reason").tolist()
    ended = np.asarray([reason not in (None, "length") for reason in reasons], bool)
    found = describe("completion", finite_of(view.floats("n_sampled")[ended])[0], ("mean", "min", "max"))
    return {f"{key}_terminated": value for key, value in found.items()}


@family(
    needs=("stop_reason",),
    source="MaxEnt-GRPO's clipped fraction, Telescope's stop_reason_length_pct / 100",
    keys=(
        Key("stop/length_share", "rollouts cut by the length limit", default=True),
        Key("stop/<reason>_share", "rollouts that stopped for that reason; rare reasons are `other`"),
    ),
)
def stop_reasons(view: StepView) -> Values:
    """rows with that normalised stop reason / rows with a known one."""
    counts = reasons_of(view, "stop_reason")
    total = counts.total()
    result = {"stop/length_share": counts["length"] / total} if total else {}
    return result | {f"stop/{name}_share": n / total for name, n in bounded(counts).items()}


@family(
    needs=("n_turns",),
    source="Telescope",
    keys=(
        Key("turns/mean", "assistant turns of a rollout", default=True),
        Key("turns/max", "most assistant turns of a rollout"),
    ),
)
def turns(view: StepView) -> Values:
    """mean and max of assistant turns per rollout."""
    return describe("turns", view.known("n_turns"), ("mean", "max"))


@family(
    needs=("sample",),
    source="Telescope",
    keys=(Key("sample/<name>/{mean,std,min,max}", "the trainer's own metric of a rollout"),),
)
def sample_metrics(view: StepView) -> Values:
    """mean, population std, min and max of each of the trainer's own metrics."""
    result: Values = {}
    metrics = view.named("sample")
    parts = key_parts(metrics)
    for name, values in metrics.items():
        given = view.given(f"sample_metrics/{name}", values)
        result |= describe(f"sample/{parts[name]}", values[given])
    return result


@family(
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
def counters(view: StepView) -> Values:
    """Plain counts over the step; what is not known for all rollouts is not counted."""
    n_rows = view.ledger.n_rows
    counts: Values = {"samples": n_rows, "prompts": len(view.groups)}
    if view.batch is not None:
        counts["tokens"] = view.batch.n_tokens.sum()
        if not view.batch.has_tokens.all():
            counts["without_tokens"] = (~view.batch.has_tokens).sum()
    else:
        lengths = np.sum([view.floats(name) for name in ("n_prompt", "n_sampled", "n_environment")])
        counts |= {"tokens": lengths} if n_rows and np.isfinite(lengths) else {}
    if view.settings.samples_per_prompt is not None:
        counts["expected_samples"] = len(view.groups) * view.settings.samples_per_prompt
    if n_rows and len(view.tool_use) == n_rows:
        uses = view.tool_use.values()
        counts["messages"] = sum(use.messages for use in uses)
        counts["tool_calls"] = sum(sum(use.calls.values()) + use.unparsed for use in uses)
        counts["tool_results"] = sum(use.results for use in uses)
    return {f"count/{name}": float(n) for name, n in counts.items()}


@family(
    source="Telescope",
    keys=(
        Key("discarded/share", "rollouts that the trainer left out", default=True),
        Key("discarded/<reason>_count", "rollouts left out for that reason"),
    ),
)
def discarded(view: StepView) -> Values:
    """rows with a discard reason / rows, and counts by reason."""
    counts = bounded(reasons_of(view, "discard_reason"))
    found = mean_of("discarded/share", view.discarded)
    return found | {f"discarded/{name}_count": float(n) for name, n in counts.items()}


def reasons_of(view: StepView, column: str) -> Counter[str]:
    """Counts the rows by a column of texts, where it is known."""
    return Counter(reason for reason in view.ledger.get(column).tolist() if reason is not None)


def bounded(counts: Counter[str]) -> dict[str, int]:
    """Counts by a name safe for a key, rare names together as `other`."""
    parts = key_parts(counts)
    result: Counter[str] = Counter()
    for index, (name, n) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))):
        result[parts[name] if index < MAX_REASONS else "other"] += n
    return dict(result)


RANDOM = "_of_random"
"""The ending of keys that speak of the rollouts that chance selected."""


@family(
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
            "tool/{<name>,unknown}_calls[_of_random]", "calls by declared tool; all other names are `unknown`"
        ),
    ),
)
def tools(view: StepView) -> Values:
    """calls / rollouts; failed results / parsed calls; unparsed / (parsed + unparsed); distinct names."""
    uses, suffix = decoded_uses(view)
    if not uses:
        return {}
    calls = sum((Counter(use.calls) for use in uses), Counter[str]())
    parsed, unparsed = calls.total(), sum(use.unparsed for use in uses)
    result = {"tools/calls_mean": parsed / len(uses), "tools/unique": float(len(calls))}
    if parsed:
        result["tools/errors_per_call"] = sum(use.errors for use in uses) / parsed
    if parsed + unparsed:
        result["tools/unparsed_per_attempt"] = unparsed / (parsed + unparsed)
    declared = key_parts(view.settings.tools)
    result |= {f"tool/{part}_calls": float(calls[name]) for name, part in declared.items()}
    if declared:
        result["tool/unknown_calls"] = float(parsed - sum(calls[name] for name in declared))
    found = {f"{key}{suffix}": value for key, value in result.items()}
    return found | ({"tools/of_random_n": float(len(uses))} if suffix else {})


@family(
    needs=("n_thinking",),
    source="Telescope",
    keys=(
        Key("tokens/thinking/{mean,std,min,max,p50,p95}[_of_random]", "sampled tokens inside thinking"),
        Key("tokens/thinking/of_random_n", "rollouts behind the `_of_random` keys"),
    ),
)
def thinking(view: StepView) -> Values:
    """mean, population std, min, max, median and 95 % quantile of thinking tokens per rollout."""
    values = view.floats("n_thinking")
    if np.isfinite(values).all():
        return describe("tokens/thinking", values, _LENGTH_STATS)
    values = finite_of(values[view.random_rows])[0]
    found = describe("tokens/thinking", values, _LENGTH_STATS)
    of_random = {f"{key}{RANDOM}": value for key, value in found.items()}
    return of_random | ({"tokens/thinking/of_random_n": float(len(values))} if found else {})


def decoded_uses(view: StepView) -> tuple[list[ToolUse], str]:
    """The tool use to compute on, and the suffix its keys carry."""
    if len(view.tool_use) == view.ledger.n_rows:
        return list(view.tool_use.values()), ""
    return [use for row, use in sorted(view.tool_use.items()) if view.random_rows[row]], RANDOM


TURNS = 8
"""Turn indices with keys of their own; the last one holds all later turns too."""


def turn_key(turn: int) -> str:
    """`turn/0` to `turn/6`, and `turn/7_plus` for all later ones."""
    return f"turn/{turn}" if turn < TURNS - 1 else f"turn/{TURNS - 1}_plus"


@family(
    reads="tokens",
    source="Telescope",
    keys=(
        Key("turn/<index>/tokens_mean", "sampled tokens of that assistant turn, over rollouts that have it"),
        Key("turn/<index>/entropy_mean", "nats, where entropies are given"),
        Key("turn/<index>/mismatch_k3", "nats, where both logprobs are given"),
    ),
)
def by_turn(view: StepView) -> Values:
    """By index of the assistant turn, from 0; `7_plus` holds turn 7 and all later ones."""
    sampled = view.sampled
    starts = turn_starts(view.tokens)[sampled.positions]
    index = np.minimum(turn_numbers(view.tokens)[sampled.positions], TURNS - 1)
    entropies, d = sampled.track("entropies"), sampled.log_ratio
    result: Values = {}
    for turn in np.unique(index).tolist():
        name, inside = turn_key(turn), index == turn
        result[f"{name}/tokens_mean"] = float(inside.sum() / starts[inside].sum())
        if entropies is not None:
            result |= mean_of(f"{name}/entropy_mean", entropies[inside])
        if d is not None:
            result |= mean_of(f"{name}/mismatch_k3", k3(d[inside].astype(np.float64)))
    return result


@family(
    needs=("tool_use",),
    source="Telescope",
    keys=(Key("turn/<index>/tool_errors_mean[_of_random]", "failed tool results after that assistant turn"),),
)
def tool_errors_by_turn(view: StepView) -> Values:
    """failed results after the turn / rollouts that have it, as `tools` on all or on random rollouts."""
    uses, suffix = decoded_uses(view)
    errors: dict[str, list[int]] = {}
    for use in uses:
        for turn, n in enumerate(use.errors_by_turn):
            errors.setdefault(f"{turn_key(turn)}/tool_errors_mean{suffix}", []).append(n)
    return {key: sum(counts) / len(counts) for key, counts in errors.items()}


@dataclass(frozen=True)
class BrokenPrefix:
    """A call whose prompt departs from the call before it.

    Attributes:
        row: the row of the call.
        call: its number in its trajectory, from 2.
        shared: tokens that both have in common at the start.
        past: tokens of the call before it.
        prompt: tokens of this call's prompt.
    """

    row: int
    call: int
    shared: int
    past: int
    prompt: int


def trajectories(batch: PackedBatch, group: np.ndarray) -> Iterator[list[int]]:
    """The rows of each trajectory with tokens, in the order of its calls.

    A trajectory is what the caller says it is: rows of one group with equal `extras["trajectory"]`, in
    the order of `extras["call"]`, else in the order handed over. Nothing is guessed: sample ids may repeat
    over the samples of a prompt.

    Args:
        batch: B rollouts.
        group: int64 [B].
    """
    calls: dict[tuple[int, str], list[tuple[Any, int]]] = {}
    lengths = batch.lengths
    for row, extras in enumerate(batch.row_lists.get("extras") or ()):
        if isinstance(extras, Mapping) and extras.get("trajectory") is not None and lengths[row]:
            key = (int(group[row]), repr(extras["trajectory"]))
            calls.setdefault(key, []).append((extras.get("call"), row))
    for rows in calls.values():
        numbered = all(isinstance(call, (int, float)) for call, _ in rows)
        yield [row for _, row in (sorted(rows) if numbered else rows)]


def broken_prefixes(batch: PackedBatch, rows: list[int]) -> Iterator[BrokenPrefix]:
    """The calls of one trajectory whose prompt does not begin with all tokens of the call before.

    Args:
        rows: the trajectory's rows, in order.
    """
    stops = batch.prompt_stops
    for number, (before, row) in enumerate(pairwise(rows), start=2):
        past = batch.input_ids[batch.row(before)]
        prompt = batch.input_ids[int(batch.offsets[row]) : int(stops[row])]
        shared = shared_length([past, prompt])
        if shared < len(past):
            yield BrokenPrefix(row, number, shared, len(past), len(prompt))


def shared_length(sequences: Sequence[np.ndarray], start: int = 0) -> int:
    """The position up to which all sequences are equal, looked at from `start` on."""
    shortest = min(len(sequence) for sequence in sequences)
    lead = sequences[0][start:shortest]
    stop = len(lead)
    for sequence in sequences[1:]:
        different = np.flatnonzero(sequence[start : start + stop] != lead[:stop])
        if len(different):
            stop = int(different[0])
    return start + stop


@family(
    reads="tokens",
    needs=("extras",),
    keys=(
        Key("trajectory/prefix_broken_share", "trajectories of two calls or more with a broken prefix"),
        Key("trajectory/first_broken_call_mean", "number of the first call whose prefix is broken, from 2"),
    ),
)
def prefixes(view: StepView) -> Values:
    """trajectories with a broken prefix / trajectories of two calls or more, and the mean of their first such call."""
    several = [rows for rows in trajectories(view.tokens, view.ledger.get("group")) if len(rows) > 1]
    first = [next(broken_prefixes(view.tokens, rows), None) for rows in several]
    calls = np.asarray([np.nan if broken is None else broken.call for broken in first])
    return mean_of("trajectory/prefix_broken_share", np.isfinite(calls)) | mean_of(
        "trajectory/first_broken_call_mean", calls
    )
