"""The weights that correct the update for who sampled the tokens, and how far the update moved the policy."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.masked_tokens import log_ratio, pick
from rollout_traces.metrics.aggregate import describe, finite_of, known
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import StepView

LARGE = 2.0
"""The weight that truncated importance sampling commonly caps at."""


@family(
    "importance",
    reads="tokens",
    needs=("logprobs", "prox_logprobs"),
    source="truncated importance sampling (Yao et al. 2025), verl",
    keys=(
        Key(
            "importance/p99", "99 % quantile of w = e^(prox - rollout logprob) over loss tokens", default=True
        ),
        Key(
            "importance/above_2_share",
            "loss tokens with w > 2, where truncation commonly begins",
            default=True,
        ),
        Key("importance/{mean,max}", "of w over loss tokens"),
    ),
)
def importance(view: StepView) -> dict[str, float]:
    """99 % quantile, mean, max and share above 2 of w over loss tokens with both logprobs finite; exponent clamped to +-20."""
    d = view.in_loss.log_ratio
    d = None if d is None else finite_of(d)[0]
    if d is None or not len(d):
        return {}
    weights = np.exp(d)
    at = 0.99 * (len(d) - 1)
    low = int(at)
    high = min(low + 1, len(d) - 1)
    ends = np.exp(np.partition(d, (low, high))[[low, high]], dtype=np.float64)
    return {
        "importance/mean": float(np.mean(weights, dtype=np.float64)),
        "importance/max": float(np.exp(d.max(), dtype=np.float64)),
        "importance/p99": float(ends[0] + (at - low) * (ends[1] - ends[0])),
        "importance/above_2_share": float(np.count_nonzero(weights > LARGE) / len(d)),
    }


@family(
    "importance_truncated",
    reads="tokens",
    needs=("logprobs", "prox_logprobs", "importance_cap"),
    source="truncated importance sampling (Yao et al. 2025)",
    keys=(Key("importance/truncated_share", "loss tokens whose w is above the declared cap", default=True),),
)
def importance_truncated(view: StepView) -> dict[str, float]:
    """loss tokens with w > importance_cap / loss tokens with a known w."""
    weights, cap = _weights(view), view.settings.importance_cap
    return (
        known("importance/truncated_share", np.mean(weights > cap))
        if len(weights) and cap is not None
        else {}
    )


@family(
    "importance_masked",
    reads="tokens",
    needs=("logprobs", "prox_logprobs", "importance_band"),
    source="IcePop (Ling team 2025)",
    keys=(Key("importance/masked_share", "loss tokens whose w is outside the declared band", default=True),),
)
def importance_masked(view: StepView) -> dict[str, float]:
    """loss tokens with w < low or w > high of importance_band / loss tokens with a known w."""
    weights, band = _weights(view), view.settings.importance_band
    if not len(weights) or band is None:
        return {}
    return known("importance/masked_share", np.mean((weights < band.min) | (weights > band.max)))


@family(
    "approx_kl",
    reads="tokens",
    needs=("new_logprobs", "prox_logprobs"),
    source="Schulman 2020, PPO implementations",
    keys=(
        Key("ppo/approx_kl", "KL(before || after the update) over loss tokens, k3, nats", default=True),
        Key("ppo/approx_kl_k1", "the same, noisier and able to cancel, nats"),
    ),
)
def approx_kl(view: StepView) -> dict[str, float]:
    """With d = new - prox logprob over loss tokens, clamped to +-20: mean(e^d - d - 1), and mean(-d)."""
    d = _update_ratio(view)
    if d is None:
        return {}
    finite = finite_of(d)[0].astype(np.float64)
    if not len(finite):
        return {}
    return {
        "ppo/approx_kl": float(np.mean(np.expm1(finite) - finite)),
        "ppo/approx_kl_k1": float(-finite.mean()),
    }


@family(
    "sequence_ratio",
    reads="tokens",
    needs=("new_logprobs", "prox_logprobs"),
    source="GSPO (Zheng et al. 2025)",
    keys=(
        Key("ppo_ratio/sequence_{mean,min,max}", "e^(mean of new - prox logprob) of a rollout's loss tokens"),
    ),
)
def sequence_ratio(view: StepView) -> dict[str, float]:
    """mean, min and max over rows of the geometric mean of the ratio over the row's loss tokens."""
    d = log_ratio(view.in_loss.track("new_logprobs"), view.in_loss.track("prox_logprobs"))
    if d is None:
        return {}
    means = view.in_loss.segments.mean(d)
    found = describe("ratio", np.exp(means[np.isfinite(means)]), ("mean", "min", "max"))
    return {key.replace("ratio/", "ppo_ratio/sequence_"): value for key, value in found.items()}


def _weights(view: StepView) -> np.ndarray:
    """float64: w of the loss tokens with both logprobs finite."""
    d = view.in_loss.log_ratio
    return np.zeros(0) if d is None else np.exp(finite_of(d)[0], dtype=np.float64)


def _update_ratio(view: StepView) -> np.ndarray | None:
    """new - prox logprob over the loss tokens of rows that came with both."""
    d = log_ratio(view.in_loss.track("new_logprobs"), view.in_loss.track("prox_logprobs"))
    return None if d is None else pick(d, view.in_loss.given("new_logprobs", "prox_logprobs"))
