"""The same quantities turn by turn: later turns see longer contexts and more of other people's text."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.build import turn_starts
from rollout_traces.metrics.aggregate import finite_of, known
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.tools import decoded_uses
from rollout_traces.metrics.view import StepView

TURNS = 8
"""Turn indices with keys of their own; the last one holds all later turns too."""


def turn_key(turn: int) -> str:
    """`turn/0` to `turn/6`, and `turn/7_plus` for all later ones."""
    return f"turn/{turn}" if turn < TURNS - 1 else f"turn/{TURNS - 1}_plus"


@family(
    "by_turn",
    reads="tokens",
    source="Telescope",
    keys=(
        Key("turn/<index>/tokens_mean", "sampled tokens of that assistant turn, over rollouts that have it"),
        Key("turn/<index>/entropy_mean", "nats, where entropies are given"),
        Key("turn/<index>/mismatch_k3", "nats, where both logprobs are given"),
    ),
)
def by_turn(view: StepView) -> dict[str, float]:
    """By index of the assistant turn, from 0; `7_plus` holds turn 7 and all later ones."""
    assert view.batch is not None
    starts = turn_starts(view.batch)[view.sampled.positions]
    if not len(starts):
        return {}
    numbers = np.cumsum(starts)
    first = view.sampled.segments.starts
    before_row = np.where(first > 0, numbers[np.maximum(first, 1) - 1], 0)
    index = np.minimum(numbers - 1 - before_row[view.sampled.rows], TURNS - 1)
    n_tokens = np.bincount(index, minlength=TURNS)
    n_turns = np.bincount(index[starts], minlength=TURNS)
    d = view.sampled.log_ratio
    per_token = {
        "entropy_mean": view.sampled.track("entropies"),
        "mismatch_k3": None if d is None else np.expm1(d, dtype=np.float64) - d,
    }
    result = {}
    for turn in np.flatnonzero(n_turns).tolist():
        name = turn_key(turn)
        result[f"{name}/tokens_mean"] = float(n_tokens[turn] / n_turns[turn])
        for key, values in per_token.items():
            if values is not None:
                finite = finite_of(values[index == turn])[0]
                result |= known(f"{name}/{key}", finite.mean(dtype=np.float64) if len(finite) else None)
    return result


@family(
    "tool_errors_by_turn",
    reads="ledger",
    needs=("tool_use",),
    source="Telescope",
    keys=(
        Key(
            "turn/<index>/tool_errors_mean[_of_random]",
            "failed tool results after that assistant turn",
        ),
    ),
)
def tool_errors_by_turn(view: StepView) -> dict[str, float]:
    """failed results after the turn / rollouts that have it, as `tools` on all or on random rollouts."""
    uses, suffix = decoded_uses(view)
    errors, n_turns = np.zeros(TURNS), np.zeros(TURNS)
    for use in uses:
        for turn, n in enumerate(use.errors_by_turn):
            errors[min(turn, TURNS - 1)] += n
            n_turns[min(turn, TURNS - 1)] += 1
    return {
        f"{turn_key(turn)}/tool_errors_mean{suffix}": errors[turn] / n_turns[turn]
        for turn in np.flatnonzero(n_turns).tolist()
    }
