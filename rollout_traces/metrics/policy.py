"""The weights that sampled the tokens, how certain they were, and how far they are from the reference."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.tokens import k3, log_ratio, pick
from rollout_traces.metrics.aggregate import describe, finite_of, mean_of, share
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import UNKNOWN_STALENESS, StepView

LAGS = 4
"""Versions of lag with a share of their own; the last one holds all older tokens."""


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
    values = view.token_staleness[view.token_staleness != UNKNOWN_STALENESS]
    if not len(values):
        return {}
    ahead, *lags = (np.bincount(np.clip(values, -1, LAGS) + 1, minlength=LAGS + 2) / len(values)).tolist()
    names = [*(f"lag_{lag}" for lag in range(LAGS)), f"lag_{LAGS}_plus", *(["ahead"] if ahead else [])]
    shares = {f"staleness/{name}_share": n for name, n in zip(names, [*lags, ahead], strict=False)}
    return describe("staleness", values, ("mean", "max")) | shares


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
    given = view.sampled.given("entropies")
    return describe("entropy", pick(view.sampled["entropies"], given), ("mean", "p10", "p90"))


@family(
    "nll_estimate",
    reads="tokens",
    needs=("logprobs",),
    source="practice",
    keys=(Key("nll_estimate", "mean -rollout logprob, nats, of rollouts that came without entropies", True),),
)
def nll_estimate(view: StepView) -> dict[str, float]:
    """-mean of the rollout logprobs over sampled tokens of the rows that came without entropies."""
    without = None
    if view.sampled.track("entropies") is not None:
        given = view.sampled.given("entropies")
        if given is None:
            return {}
        without = ~given
    return mean_of("nll_estimate", -pick(view.sampled["logprobs"], without))


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
    d = log_ratio(view.sampled["ref_logprobs"], view.sampled.policy_logprobs)
    if d is None:
        return {}
    d = finite_of(d)[0].astype(np.float64)
    return mean_of("ref/k1", -d) | mean_of("ref/k3", k3(d))
