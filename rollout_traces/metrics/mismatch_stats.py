"""How far the training engine's logprobs are from the rollout engine's."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.masked_tokens import LOG_RATIO_LIMIT, MaskedTokens
from rollout_traces.ledger.segments import Segments

BUCKETS = ("0", "1", "2_plus")


def in_bucket(staleness_M: np.ndarray, bucket: str) -> np.ndarray:
    """bool [M]: tokens of that staleness; tokens ahead of the trainer or of unknown staleness are in none."""
    return staleness_M >= 2 if bucket == "2_plus" else staleness_M == int(bucket)


def mismatch_of(sampled: MaskedTokens, where_M: np.ndarray | None = None) -> dict[str, float]:
    """Measures of d = prox - rollout logprob over sampled tokens, in nats.

    - `k1` = mean(-d): estimates KL(rollout || train), and can cancel. AReno's `logp_diff_mean`.
    - `k3` = mean(e^d - d - 1): the same with less variance and never negative.
    - `prob_abs_diff` = mean |e^prox - e^rollout|.
    - `mult_prob_error` = mean e^|d|; 1.05 is where people worry.
    - `sequence_log_ratio_mean`, `_max`: of the sum of d over a rollout.
    - `ess_share` = (sum w)^2 / (N sum w^2) with w = e^d: 1 when all weights are equal; `ess_share_sequence`
      with w = e^(sum of d) per rollout.
    - `chi2` = mean(w^2) - 1.

    Args:
        sampled: M sampled tokens with both tracks.
        where_M: bool [M]; which of them to look at, None = all.

    Returns:
        The measures, empty when no token has both logprobs finite.
    """
    d = sampled.log_ratio
    if d is None:
        return {}
    usable = np.isfinite(d)
    if where_M is not None:
        usable &= where_M
    every = bool(usable.all())
    d = (d if every else d[usable]).astype(np.float64)
    if not len(d):
        return {}
    excess = np.expm1(d)
    weight = excess + 1
    counts = sampled.segments.counts if every else sampled.segments.sum(usable)
    sums = Segments(counts).sum(d)[counts > 0]
    return {
        "k1": float(-d.mean()),
        "k3": float(np.mean(excess - d)),
        "prob_abs_diff": _prob_abs_diff(sampled, None if every else usable, d, excess),
        "mult_prob_error": float(np.mean(np.where(d >= 0, weight, 1 / weight))),
        "sequence_log_ratio_mean": float(sums.mean()),
        "sequence_log_ratio_max": float(sums.max()),
        "ess_share": float(weight.mean() ** 2 / np.mean(weight**2)),
        "ess_share_sequence": effective_share(sums),
        "chi2": float(np.mean(excess * (excess + 2))),
    }


def effective_share(log_weights: np.ndarray) -> float:
    """(sum w)^2 / (N sum w^2) of w = e^log_weights, without overflow.

    Args:
        log_weights: float64 [N], N at least 1.
    """
    weight = np.exp(log_weights - log_weights.max())
    return float(weight.sum() ** 2 / (len(weight) * np.sum(weight**2)))


def _prob_abs_diff(
    sampled: MaskedTokens, usable_M: np.ndarray | None, d: np.ndarray, excess: np.ndarray
) -> float:
    """mean |e^prox - e^rollout|, which is e^rollout * |e^d - 1| where neither d nor a logprob had to be clamped."""
    prox, rollout = sampled.track("prox_logprobs"), sampled.track("logprobs")
    assert prox is not None and rollout is not None
    if usable_M is not None:
        prox, rollout = prox[usable_M], rollout[usable_M]
    if max(prox.max(), rollout.max()) <= 0 and max(d.max(), -d.min()) < LOG_RATIO_LIMIT:
        return float(np.abs(excess) @ np.exp(rollout) / len(excess))
    return float(
        np.mean(np.abs(np.exp(np.minimum(prox, 0)) - np.exp(np.minimum(rollout, 0))), dtype=np.float64)
    )
