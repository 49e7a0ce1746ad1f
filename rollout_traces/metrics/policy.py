"""Versions, train against rollout, sampler identities, PPO, entropy, reference: what the policies did."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.masked_tokens import log_ratio, pick
from rollout_traces.ledger.policy_update import clipped
from rollout_traces.metrics.aggregate import describe, finite_of, known, share
from rollout_traces.metrics.mismatch_stats import BUCKETS, in_bucket, mismatch_of
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import UNKNOWN_STALENESS, StepView

LAGS = 4
"""Versions of lag with a share of their own; the last one holds all older tokens."""
_MISMATCH = (
    "mismatch/{k1,k3,mult_prob_error,ess_share}",
    "mismatch/{prob_abs_diff,chi2,sequence_log_ratio_mean,sequence_log_ratio_max,ess_share_sequence}",
)


@family(
    "versions",
    reads="ledger",
    needs=("version_min",),
    source="AReaL",
    keys=(
        Key("version/{min,max}", "policy versions among the sampled tokens"),
        Key("staleness/mixed_share", "rollouts sampled by more than one version", default=True),
    ),
)
def versions(view: StepView) -> dict[str, float]:
    """min and max of the versions, and rows whose oldest and newest differ / rows with known ones."""
    oldest, newest = view.floats("version_min"), view.floats("version_max")
    seen = np.isfinite(oldest)
    if not seen.any():
        return {}
    result = {"version/min": float(oldest[seen].min()), "version/max": float(newest[seen].max())}
    return result | share("staleness/mixed_share", oldest != newest, seen)


@family(
    "staleness",
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
def staleness(view: StepView) -> dict[str, float]:
    """mean and max of train_version - version over sampled tokens of known version, and shares of each lag.

    Tokens ahead of the trainer have a negative staleness, and count with it.
    """
    if view.token_staleness is None:
        return {}
    values = view.token_staleness[view.token_staleness != UNKNOWN_STALENESS]
    if not len(values):
        return {}
    result = describe("staleness", values, ("mean", "max"))
    shares = (np.bincount(np.clip(values, -1, LAGS) + 1, minlength=LAGS + 2) / len(values)).tolist()
    ahead = shares[0]
    result |= {f"staleness/lag_{lag}_share": shares[lag + 1] for lag in range(LAGS)}
    result[f"staleness/lag_{LAGS}_plus_share"] = shares[LAGS + 1]
    return result | ({"staleness/ahead_share": ahead} if ahead else {})


@family(
    "mismatch",
    reads="tokens",
    needs=("logprobs", "prox_logprobs"),
    source="AReno, practice",
    keys=(
        Key(_MISMATCH[0], "train against rollout over sampled tokens; see the notes below", default=True),
        Key(_MISMATCH[1], "further measures of the same; sequence = summed over a rollout"),
        Key("mismatch_nonfinite", "sampled tokens with a logprob that is NaN or infinite", default=True),
    ),
)
def mismatch(view: StepView) -> dict[str, float]:
    """With d = prox - rollout logprob, clamped to +-20, over sampled tokens; see `mismatch_of`."""
    d = view.sampled.log_ratio
    if d is None:
        return {}
    result = {f"mismatch/{key}": value for key, value in mismatch_of(view.sampled).items()}
    lost = finite_of(pick(d, view.sampled.given("logprobs", "prox_logprobs")))[1]
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
    values = view.floats("mismatch_abs_max")
    values = values[np.isfinite(values)]
    return known("mismatch/abs_max", values.max() if len(values) else None)


@family(
    "mismatch_by_staleness",
    reads="tokens",
    needs=("logprobs", "prox_logprobs", "versions", "train_version"),
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
    if staleness_M is None:
        return {}
    result: dict[str, float] = {}
    for bucket in BUCKETS:
        found = mismatch_of(view.sampled, in_bucket(staleness_M, bucket))
        result |= {f"mismatch/staleness_{bucket}/{key}": value for key, value in found.items()}
    return result


@family(
    "identity_ratio",
    reads="tokens",
    needs=("logprobs", "prox_logprobs", "versions", "train_version"),
    source="practice",
    keys=(Key("identity/mean_ratio", "E[e^d] at staleness 0, which should be 1", default=True),),
)
def identity_ratio(view: StepView) -> dict[str, float]:
    """mean e^d over sampled tokens of staleness 0.

    When the two engines agree it is 1. Away from 1 with a negative k1, suspect logprobs that were logged
    with or without temperature or top-p scaling on one side only.
    """
    if view.token_staleness is None or view.sampled.log_ratio is None:
        return {}
    d = finite_of(view.sampled.log_ratio[view.token_staleness == 0])[0]
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
    logprobs, entropies = view.sampled.track("logprobs"), view.sampled.track("entropies")
    if logprobs is None or entropies is None or view.token_staleness is None:
        return {}
    usable = (view.token_staleness == 0) & np.isfinite(logprobs) & np.isfinite(entropies)
    if not usable.any():
        return {}
    nll = -np.mean(logprobs[usable], dtype=np.float64)
    return known("identity/nll_minus_entropy", nll - np.mean(entropies[usable], dtype=np.float64))


@family(
    "ppo_ratio",
    reads="tokens",
    needs=("new_logprobs", "prox_logprobs"),
    source="PPO",
    keys=(Key("ppo_ratio/{mean,std,min,max}", "e^(new - prox logprob) over loss tokens"),),
)
def ppo_ratio(view: StepView) -> dict[str, float]:
    """mean, population std, min and max of e^(new - prox), the exponent clamped to +-20."""
    d = log_ratio(view.in_loss.track("new_logprobs"), view.in_loss.track("prox_logprobs"))
    if d is None:
        return {}
    return describe(
        "ppo_ratio", np.exp(pick(d, view.in_loss.given("new_logprobs", "prox_logprobs")), dtype=np.float64)
    )


@family(
    "clip_share",
    reads="tokens",
    needs=("new_logprobs", "prox_logprobs", "advantages", "clip_low", "clip_high"),
    source="PPO",
    keys=(Key("clip_share_{low,high}", "loss tokens clipped below (A < 0) and above (A > 0)", default=True),),
)
def clip_share(view: StepView) -> dict[str, float]:
    """loss tokens that clipping cuts off / loss tokens with a finite ratio and advantage.

    Gated by the sign of the advantage.
    """
    cut = clipped(view.in_loss, view.settings)
    if cut is None:
        return {}
    return share("clip_share_low", cut.low, cut.known) | share("clip_share_high", cut.high, cut.known)


@family(
    "entropy",
    reads="tokens",
    needs=("entropies",),
    source="MaxEnt-GRPO",
    keys=(
        Key("entropy/mean", "of the next-token distribution over sampled tokens, nats", default=True),
        Key("entropy/{p10,p90}", "its quantiles"),
        Key("entropy_nonfinite", "sampled tokens whose entropy is NaN or infinite"),
    ),
)
def entropy(view: StepView) -> dict[str, float]:
    """mean and quantiles of the given entropies over sampled tokens."""
    values = view.sampled.values("entropies")
    return {} if values is None else describe("entropy", values, ("mean", "p10", "p90"))


@family(
    "nll_estimate",
    reads="tokens",
    needs=("logprobs",),
    source="practice",
    keys=(Key("nll_estimate", "mean -rollout logprob, nats, of rollouts that came without entropies", True),),
)
def nll_estimate(view: StepView) -> dict[str, float]:
    """-mean of the rollout logprobs over sampled tokens of the rows that came without entropies."""
    logprobs = view.sampled.track("logprobs")
    with_entropies = None
    if view.sampled.track("entropies") is not None:
        with_entropies = view.sampled.given("entropies")
        if with_entropies is None:
            return {}
    if logprobs is None:
        return {}
    finite = finite_of(pick(logprobs, None if with_entropies is None else ~with_entropies))[0]
    return known("nll_estimate", -np.mean(finite, dtype=np.float64)) if len(finite) else {}


@family(
    "reference",
    reads="tokens",
    needs=("ref_logprobs", "prox_logprobs or logprobs"),
    source="Schulman's estimators",
    keys=(
        Key("ref/k3", "KL of the policy from the reference model, low variance, nats", default=True),
        Key("ref/k1", "the same, noisier; unbiased only for tokens sampled by that very policy, nats"),
    ),
)
def reference(view: StepView) -> dict[str, float]:
    """With d = ref - policy logprob: k1 = mean(-d), k3 = mean(e^d - d - 1).

    The policy's is the prox logprob where the row came with it, else the rollout's.
    """
    d = log_ratio(view.sampled.track("ref_logprobs"), view.sampled.policy_logprobs)
    if d is None:
        return {}
    finite = finite_of(d)[0].astype(np.float64)
    if not len(finite):
        return {}
    return known("ref/k1", -finite.mean()) | known("ref/k3", np.mean(np.expm1(finite) - finite))
