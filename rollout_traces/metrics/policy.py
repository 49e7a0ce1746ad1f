"""The weights that sampled the tokens, how certain they were, and how far they are from the reference and the trainer.

The distance of the training engine's logprobs from the rollout engine's is d = prox - rollout logprob, clamped to +-20.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollout_traces.ledger.tokens import LOG_RATIO_LIMIT, MaskedTokens, Segments, k3, log_ratio, pick
from rollout_traces.metrics.registry import TINY, Key, describe, family, finite_of, known, mean_of, share
from rollout_traces.metrics.view import UNKNOWN_STALENESS, StepView, Values

LAGS = 4
"""Versions of lag with a share of their own; the last one holds all older tokens."""


@family(
    needs=("version_min",),
    source="AReaL",
    keys=(
        Key("version/{min,max}", "policy versions among the sampled tokens"),
        Key("staleness/mixed_share", "rollouts sampled by more than one version", default=True),
    ),
)
def versions(view: StepView) -> Values:
    """min and max of the versions, and rows whose oldest and newest differ / rows with known ones."""
    oldest, newest = view.floats("version_min"), view.floats("version_max")
    seen = np.isfinite(oldest)
    if not seen.any():
        return {}
    result = {"version/min": float(oldest[seen].min()), "version/max": float(newest[seen].max())}
    return result | share("staleness/mixed_share", oldest != newest, seen)


@family(
    reads="tokens",
    needs=("versions", "train_version"),
    source="AReaL",
    keys=(
        Key("staleness/{mean,max}", "train version less policy version, over sampled tokens", True),
        Key(
            "staleness/ahead_share",
            "sampled tokens newer than the train version; absent when there are none",
            True,
        ),
        Key("staleness/lag_{0,1,2,3,4_plus}_share", "sampled tokens that many versions old"),
    ),
)
def staleness(view: StepView) -> Values:
    """mean and max of train_version - version over sampled tokens of known version, and shares of each lag.

    Tokens ahead of the trainer have a negative staleness, and count with it.
    """
    values = view.token_staleness[view.token_staleness != UNKNOWN_STALENESS]
    if not len(values):
        return {}
    ahead, *lags = (np.bincount(np.clip(values, -1, LAGS) + 1, minlength=LAGS + 2) / len(values)).tolist()
    names = [*(f"lag_{lag}" for lag in range(LAGS)), f"lag_{LAGS}_plus", *(["ahead"] if ahead else [])]
    shares = {f"staleness/{name}_share": n for name, n in zip(names, [*lags, ahead], strict=False)}
    return describe("staleness", values, ("mean", "max")) | shares


@family(
    reads="tokens",
    needs=("entropies",),
    source="MaxEnt-GRPO",
    keys=(
        Key("entropy/mean", "of the next-token distribution over sampled tokens, nats", default=True),
        Key("entropy/{p10,p90}", "its quantiles"),
        Key("entropy_nonfinite", "sampled tokens whose entropy is NaN or infinite"),
    ),
)
def entropy(view: StepView) -> Values:
    """mean and quantiles of the given entropies over sampled tokens."""
    given = view.sampled.given("entropies")
    return describe("entropy", pick(view.sampled["entropies"], given), ("mean", "p10", "p90"))


@family(
    reads="tokens",
    needs=("logprobs",),
    keys=(Key("nll_estimate", "mean -rollout logprob, nats, of rollouts that came without entropies", True),),
)
def nll_estimate(view: StepView) -> Values:
    """-mean of the rollout logprobs over sampled tokens of the rows that came without entropies."""
    without = None
    if view.sampled.track("entropies") is not None:
        given = view.sampled.given("entropies")
        if given is None:
            return {}
        without = ~given
    return mean_of("nll_estimate", -pick(view.sampled["logprobs"], without))


@family(
    reads="tokens",
    needs=("ref_logprobs", "prox_logprobs or logprobs"),
    source="Schulman's estimators",
    keys=(
        Key("ref/k3", "KL of the policy from the reference model, low variance, nats", default=True),
        Key("ref/k1", "the same, noisier; unbiased only for tokens sampled by that very policy, nats"),
    ),
)
def reference(view: StepView) -> Values:
    """With d = ref - policy logprob: k1 = mean(-d), k3 = mean(e^d - d - 1).

    The policy's is the prox logprob where the row came with it, else the rollout's.
    """
    d = log_ratio(view.sampled["ref_logprobs"], view.sampled.policy_logprobs)
    if d is None:
        return {}
    d = finite_of(d)[0].astype(np.float64)
    return mean_of("ref/k1", -d) | mean_of("ref/k3", k3(d))


TENTHS = 10
RATIO_TOLERANCE = 0.05
NLL_TOLERANCE = 0.1
_BOTH = ("logprobs", "prox_logprobs")


@family(
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
def mismatch(view: StepView) -> Values:
    """With d = prox - rollout logprob, clamped to +-20, over sampled tokens; see `mismatch_of`."""
    result = {f"mismatch/{key}": value for key, value in mismatch_of(view.sampled).items()}
    lost = finite_of(pick(view.sampled.d, view.sampled.given(*_BOTH)))[1]
    return result | ({"mismatch_nonfinite": float(lost)} if lost else {})


@family(
    needs=("mismatch_abs_max",),
    keys=(Key("mismatch/abs_max", "largest |d| of a sampled token, nats", default=True),),
)
def mismatch_largest(view: StepView) -> Values:
    """The largest |d| over all rows."""
    return known("mismatch/abs_max", view.known("mismatch_abs_max").max(initial=-np.inf))


@family(
    reads="tokens",
    needs=(*_BOTH, "versions", "train_version"),
    keys=(
        Key(
            "mismatch/staleness_{0,1,2_plus}/<measure>",
            "the mismatch measures over tokens of that staleness; the sequence ones over their sums in a row",
        ),
    ),
)
def mismatch_by_staleness(view: StepView) -> Values:
    """The measures of `mismatch` over the sampled tokens of staleness 0, 1, and 2 or more."""
    staleness_M = view.token_staleness
    parts = {"0": staleness_M == 0, "1": staleness_M == 1, "2_plus": staleness_M >= 2}
    return {
        f"mismatch/staleness_{name}/{key}": value
        for name, where_M in parts.items()
        for key, value in mismatch_of(view.sampled, where_M).items()
    }


@family(
    reads="tokens",
    needs=(*_BOTH, "versions", "train_version"),
    keys=(Key("identity/mean_ratio", "E[e^d] at staleness 0, which should be 1", default=True),),
)
def identity_ratio(view: StepView) -> Values:
    """mean e^d over sampled tokens of staleness 0.

    When the two engines agree it is 1. Away from 1 with a negative k1, suspect logprobs that were logged
    with or without temperature or top-p scaling on one side only.
    """
    d = finite_of(view.sampled.d[view.token_staleness == 0])[0]
    return known("identity/mean_ratio", 1 + np.mean(np.expm1(d, dtype=np.float64))) if len(d) else {}


@family(
    reads="tokens",
    needs=("logprobs", "entropies", "versions", "train_version"),
    keys=(
        Key("identity/nll_minus_entropy", "E[-rollout logprob] less mean entropy at staleness 0, nats", True),
    ),
)
def identity_entropy(view: StepView) -> Values:
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


def mismatch_of(sampled: MaskedTokens, where_M: np.ndarray | None = None) -> Values:
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
def mismatch_probabilities(view: StepView) -> Values:
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
def mismatch_sequences(view: StepView) -> Values:
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
    reads="tokens",
    needs=_BOTH,
    keys=(
        Key(
            "mismatch/probability_{0,1,2,3,4,5,6,7,8,9}/abs_mean",
            "mean |d| of tokens by tenth of rollout probability",
        ),
    ),
)
def mismatch_by_probability(view: StepView) -> Values:
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
