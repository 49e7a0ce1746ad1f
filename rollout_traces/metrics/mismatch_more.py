"""Further views of how far the two engines are apart: in probabilities, over whole rollouts, by probability."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.masked_tokens import LOG_RATIO_LIMIT
from rollout_traces.ledger.segments import Segments
from rollout_traces.metrics.aggregate import known
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import StepView

TENTHS = 10


@family(
    "mismatch_probabilities",
    reads="tokens",
    needs=("logprobs", "prox_logprobs"),
    source="verl",
    keys=(
        Key("mismatch/prob_abs_diff_{max,std}", "of |e^prox - e^rollout| over sampled tokens"),
        Key("mismatch/prob_correlation", "Pearson correlation of the two probabilities over sampled tokens"),
        Key(
            "mismatch/perplexity_ratio",
            "mean over rollouts of their perplexity in training / in the rollout engine",
        ),
    ),
)
def mismatch_probabilities(view: StepView) -> dict[str, float]:
    """max and population std of |p - q|; cov(p, q) / (std p std q); mean over rows of e^(-mean d)."""
    usable = _usable(view)
    if usable is None:
        return {}
    p, q = (
        np.exp(np.minimum(view.sampled.track(name)[usable], 0), dtype=np.float64)  # type: ignore[index]
        for name in ("prox_logprobs", "logprobs")
    )
    apart = np.abs(p - q)
    spread = float(p.std() * q.std())
    means = view.sampled.segments.mean(view.sampled.log_ratio)  # type: ignore[arg-type]
    result = {
        "mismatch/prob_abs_diff_max": float(apart.max()),
        "mismatch/prob_abs_diff_std": float(apart.std()),
        "mismatch/perplexity_ratio": float(np.exp(-means[np.isfinite(means)]).mean()),
    }
    if spread > 1e-12:
        result |= known("mismatch/prob_correlation", np.mean((p - p.mean()) * (q - q.mean())) / spread)
    return result


@family(
    "mismatch_sequences",
    reads="tokens",
    needs=("logprobs", "prox_logprobs"),
    source="practice, verl",
    keys=(
        Key(
            "mismatch/sequence_log_ratio_{min,abs_max}",
            "smallest, and largest by size, sum of d of a rollout, nats",
        ),
        Key("mismatch/sequence_chi2", "mean(W^2) - 1 over rollouts, W = e^(sum of d)"),
    ),
)
def mismatch_sequences(view: StepView) -> dict[str, float]:
    """Of the sum of d over a row's sampled tokens; for chi2 the sum is clamped to +-20."""
    usable = _usable(view)
    if usable is None:
        return {}
    counts = view.sampled.segments.sum(usable)
    sums = Segments(counts).sum(view.sampled.log_ratio[usable].astype(np.float64))[counts > 0]  # type: ignore[index]
    clamped = np.clip(sums, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return {
        "mismatch/sequence_log_ratio_min": float(sums.min()),
        "mismatch/sequence_log_ratio_abs_max": float(np.abs(sums).max()),
        "mismatch/sequence_chi2": float(np.mean(np.expm1(2 * clamped))),
    }


@family(
    "mismatch_by_probability",
    reads="tokens",
    needs=("logprobs", "prox_logprobs"),
    source="practice",
    keys=(
        Key(
            "mismatch/probability_{0,1,2,3,4,5,6,7,8,9}/abs_mean",
            "mean |d| of tokens by tenth of rollout probability",
        ),
    ),
)
def mismatch_by_probability(view: StepView) -> dict[str, float]:
    """mean |d| over sampled tokens with rollout probability in [i/10, (i + 1)/10), the last one up to 1."""
    usable = _usable(view)
    if usable is None:
        return {}
    d = np.abs(view.sampled.log_ratio[usable].astype(np.float64))  # type: ignore[index]
    q = np.exp(np.minimum(view.sampled.track("logprobs")[usable], 0), dtype=np.float64)  # type: ignore[index]
    tenth = np.minimum((q * TENTHS).astype(np.int64), TENTHS - 1)
    counts, sums = np.bincount(tenth, minlength=TENTHS), np.bincount(tenth, weights=d, minlength=TENTHS)
    return {
        f"mismatch/probability_{i}/abs_mean": float(sums[i] / counts[i])
        for i in np.flatnonzero(counts).tolist()
    }


def _usable(view: StepView) -> np.ndarray | None:
    """bool [M]: sampled tokens with both logprobs finite; None when there is none."""
    d = view.sampled.log_ratio
    if d is None:
        return None
    usable = np.isfinite(d)
    return usable if usable.any() else None
