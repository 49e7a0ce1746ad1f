"""Distances of the training engine's logprobs from the rollout engine's: d = prox - rollout logprob, clamped to +-20."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollout_traces.ledger.tokens import LOG_RATIO_LIMIT, MaskedTokens, Segments, pick
from rollout_traces.metrics.aggregate import TINY, finite_of, known, mean_of
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import StepView

TENTHS = 10
RATIO_TOLERANCE = 0.05
NLL_TOLERANCE = 0.1
_BOTH = ("logprobs", "prox_logprobs")


@family(
    "mismatch",
    reads="tokens",
    needs=_BOTH,
    source="AReno, practice",
    keys=(
        Key(
            "mismatch/{k1,k3,mult_prob_error,ess_share}",
            "train against rollout over sampled tokens; see *Mismatch* above",
            default=True,
        ),
        Key(
            "mismatch/{prob_abs_diff,chi2,sequence_log_ratio_mean,sequence_log_ratio_max,ess_share_sequence}",
            "further measures of the same; sequence = summed over a rollout",
        ),
        Key("mismatch_nonfinite", "sampled tokens with a logprob that is NaN or infinite", default=True),
    ),
)
def mismatch(view: StepView) -> dict[str, float]:
    """With d = prox - rollout logprob, clamped to +-20, over sampled tokens; see `mismatch_of`."""
    result = {f"mismatch/{key}": value for key, value in mismatch_of(view.sampled).items()}
    lost = finite_of(pick(view.sampled.d, view.sampled.given(*_BOTH)))[1]
    return result | ({"mismatch_nonfinite": float(lost)} if lost else {})


@family(
    "mismatch_largest",
    reads="ledger",
    needs=("mismatch_abs_max",),
    source="practice",
    keys=(Key("mismatch/abs_max", "largest |d| of a sampled token, nats", default=True),),
)
def mismatch_largest(view: StepView) -> dict[str, float]:
    """The largest |d| over all rows."""
    return known("mismatch/abs_max", view.known("mismatch_abs_max").max(initial=-np.inf))


@family(
    "mismatch_by_staleness",
    reads="tokens",
    needs=(*_BOTH, "versions", "train_version"),
    source="practice",
    keys=(
        Key(
            "mismatch/staleness_{0,1,2_plus}/<measure>",
            "the mismatch measures over tokens of that staleness; the sequence ones over their sums in a row",
        ),
    ),
)
def mismatch_by_staleness(view: StepView) -> dict[str, float]:
    """The measures of `mismatch` over the sampled tokens of staleness 0, 1, and 2 or more."""
    staleness_M = view.token_staleness
    parts = {"0": staleness_M == 0, "1": staleness_M == 1, "2_plus": staleness_M >= 2}
    return {
        f"mismatch/staleness_{name}/{key}": value
        for name, where_M in parts.items()
        for key, value in mismatch_of(view.sampled, where_M).items()
    }


@family(
    "identity_ratio",
    reads="tokens",
    needs=(*_BOTH, "versions", "train_version"),
    source="practice",
    keys=(Key("identity/mean_ratio", "E[e^d] at staleness 0, which should be 1", default=True),),
)
def identity_ratio(view: StepView) -> dict[str, float]:
    """mean e^d over sampled tokens of staleness 0.

    When the two engines agree it is 1. Away from 1 with a negative k1, suspect logprobs that were logged
    with or without temperature or top-p scaling on one side only.
    """
    d = finite_of(view.sampled.d[view.token_staleness == 0])[0]
    return known("identity/mean_ratio", 1 + np.mean(np.expm1(d, dtype=np.float64))) if len(d) else {}


@family(
    "identity_entropy",
    reads="tokens",
    needs=("logprobs", "entropies", "versions", "train_version"),
    source="practice",
    keys=(
        Key("identity/nll_minus_entropy", "E[-rollout logprob] less mean entropy at staleness 0, nats", True),
    ),
)
def identity_entropy(view: StepView) -> dict[str, float]:
    """mean(-rollout logprob) - mean(entropy) over sampled tokens of staleness 0; 0 in expectation."""
    logprobs, entropies = view.sampled["logprobs"], view.sampled["entropies"]
    usable = (view.token_staleness == 0) & np.isfinite(logprobs) & np.isfinite(entropies)
    if not usable.any():
        return {}
    nll = -np.mean(logprobs[usable], dtype=np.float64)
    return known("identity/nll_minus_entropy", nll - np.mean(entropies[usable], dtype=np.float64))


def identity_checks(scalars: Mapping[str, float], split: str = "rollout") -> list[str]:
    """Says what the sampler identities of a step show to be wrong.

    Args:
        scalars: a step's metrics, the split in front of their keys.
        split: `rollout` or `eval-rollout`.

    Returns:
        One sentence each, with its number and its usual cause; empty when the identities hold.
    """
    found = []
    ratio = scalars.get(f"{split}/identity/mean_ratio", 1.0)
    if abs(ratio - 1) > RATIO_TOLERANCE:
        cause = "the two engines differ in more than rounding"
        if scalars.get(f"{split}/mismatch/k1", 0.0) < 0:
            cause = "the logged logprobs look scaled by another temperature or top-p than the trainer's"
        found.append(
            f"At staleness 0 the mean of e^(prox - rollout logprob) is {ratio:.3f} and should be 1: {cause}."
        )
    gap = scalars.get(f"{split}/identity/nll_minus_entropy", 0.0)
    if abs(gap) > NLL_TOLERANCE:
        found.append(
            f"At staleness 0 the mean of -rollout logprob exceeds the mean entropy by {gap:+.3f} nats and should "
            "equal it: the tokens were drawn from another distribution than the one whose entropy was computed."
        )
    return found


def mismatch_of(sampled: MaskedTokens, where_M: np.ndarray | None = None) -> dict[str, float]:
    """Measures d = prox - rollout logprob over sampled tokens, in nats.

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
    usable = np.isfinite(sampled.d) if where_M is None else np.isfinite(sampled.d) & where_M
    d = sampled.d[usable].astype(np.float64)
    if not len(d):
        return {}
    excess, sums = np.expm1(d), _sums(sampled, usable)
    return {
        "k1": float(-d.mean()),
        "k3": float(np.mean(excess - d)),
        "prob_abs_diff": float(np.abs(np.subtract(*_probabilities(sampled, usable))).mean()),
        "mult_prob_error": float(np.mean(np.exp(np.abs(d)))),
        "sequence_log_ratio_mean": float(sums.mean()),
        "sequence_log_ratio_max": float(sums.max()),
        "ess_share": effective_share(d),
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


@family(
    "mismatch_probabilities",
    reads="tokens",
    needs=_BOTH,
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
    usable = np.isfinite(view.sampled.d)
    if not usable.any():
        return {}
    p, q = _probabilities(view.sampled, usable)
    apart, spread = np.abs(p - q), float(p.std() * q.std())
    means = view.sampled.segments.mean(view.sampled.d)
    result = {
        "mismatch/prob_abs_diff_max": float(apart.max()),
        "mismatch/prob_abs_diff_std": float(apart.std()),
        "mismatch/perplexity_ratio": float(np.exp(-means[np.isfinite(means)]).mean()),
    }
    if spread > TINY:
        result |= known("mismatch/prob_correlation", np.mean((p - p.mean()) * (q - q.mean())) / spread)
    return result


@family(
    "mismatch_sequences",
    reads="tokens",
    needs=_BOTH,
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
    sums = _sums(view.sampled, np.isfinite(view.sampled.d))
    if not len(sums):
        return {}
    clamped = np.clip(sums, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return {
        "mismatch/sequence_log_ratio_min": float(sums.min()),
        "mismatch/sequence_log_ratio_abs_max": float(np.abs(sums).max()),
        "mismatch/sequence_chi2": float(np.mean(np.expm1(2 * clamped))),
    }


@family(
    "mismatch_by_probability",
    reads="tokens",
    needs=_BOTH,
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
    usable = np.isfinite(view.sampled.d)
    d = np.abs(view.sampled.d[usable].astype(np.float64))
    tenth = np.minimum((_probabilities(view.sampled, usable)[1] * TENTHS).astype(np.int64), TENTHS - 1)
    parts = {f"mismatch/probability_{i}/abs_mean": d[tenth == i] for i in range(TENTHS)}
    return {key: value for name, values in parts.items() for key, value in mean_of(name, values).items()}


def _probabilities(sampled: MaskedTokens, usable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """e^prox and e^rollout of the usable tokens, float64; logprobs above 0 are rounding."""
    p, q = (
        np.exp(np.minimum(sampled[name][usable], 0), dtype=np.float64)
        for name in ("prox_logprobs", "logprobs")
    )
    return p, q


def _sums(sampled: MaskedTokens, usable: np.ndarray) -> np.ndarray:
    """float64: the sum of d over the usable tokens of each row that has any."""
    counts = sampled.segments.sum(usable)
    return Segments(counts).sum(sampled.d[usable].astype(np.float64))[counts > 0]
