"""The tokens that the loss is taken over, how the update is weighted, clipped and concentrated, and how far it moved the policy."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.tokens import clipped, k3, log_ratio, pick, update_shares
from rollout_traces.metrics.registry import (
    TINY,
    Key,
    describe,
    family,
    finite_of,
    known,
    mean_of,
    renamed,
    share,
)
from rollout_traces.metrics.view import StepView, Values

HEAVIEST = 3
"""Rollouts of `update/top3_share`."""
LARGE = 2.0
"""The weight that truncated importance sampling commonly caps at."""
_WEIGHTS = ("logprobs", "prox_logprobs")
_RATIO = ("new_logprobs", "prox_logprobs")


@family(
    reads="tokens",
    source="AReaL, slime",
    keys=(
        Key("count/loss_tokens", "tokens in the loss of rollouts that were not left out", default=True),
        Key("tokens/loss_share", "the same / all tokens of the step that are at hand", default=True),
    ),
)
def loss_tokens(view: StepView) -> Values:
    """Loss tokens of rows without a discard reason, and their part of all tokens."""
    n_loss, n_tokens = int(view.in_loss.segments.counts[~view.discarded].sum()), len(view.tokens.input_ids)
    share_of_all = known("tokens/loss_share", n_loss / n_tokens) if n_tokens else {}
    return {"count/loss_tokens": float(n_loss)} | share_of_all


@family(
    reads="tokens",
    needs=("advantages",),
    source="verl",
    keys=(Key("advantage/positive_share", "loss tokens with A > 0"),),
)
def advantage_signs(view: StepView) -> Values:
    """loss tokens with A > 0 / loss tokens with a finite A."""
    return mean_of("advantage/positive_share", finite_of(view.loss_advantages)[0] > 0)


@family(
    reads="tokens",
    needs=("advantages", "prox_logprobs or logprobs"),
    source="Cui et al. 2025, the entropy mechanism",
    keys=(
        Key("advantage/logprob_covariance", "what drives entropy down when it is positive, over loss tokens"),
    ),
)
def advantage_covariance(view: StepView) -> Values:
    """mean of (A - mean A)(log p - mean log p) over loss tokens with both finite.

    log p is the prox logprob where the row came with it, else the rollout's.
    """
    logprobs = view.in_loss.policy_logprobs
    assert logprobs is not None
    both = np.stack([view.loss_advantages, logprobs]).astype(np.float64)
    a, p = both[:, np.isfinite(both).all(axis=0)]
    return mean_of("advantage/logprob_covariance", (a - a.mean()) * (p - p.mean())) if len(a) else {}


@family(
    reads="tokens",
    needs=("values", "rewards or token_rewards"),
    source="PPO implementations",
    keys=(
        Key("values/explained_variance", "1 - Var(G - V) / Var(G) over loss tokens; 1 is a perfect critic"),
    ),
)
def explained_variance(view: StepView) -> Values:
    """G is the undiscounted return: the row's token rewards from the token on, else the row's reward."""
    both = np.stack([_returns(view), view.in_loss["values"]]).astype(np.float64)
    G, V = both[:, np.isfinite(both).all(axis=0)]
    spread = float(G.var()) if len(G) else 0.0
    return known("values/explained_variance", 1 - float((G - V).var()) / spread) if spread > TINY else {}


def _returns(view: StepView) -> np.ndarray:
    """float64 [M] over the loss tokens."""
    batch, in_loss = view.tokens, view.in_loss
    per_row = np.repeat(view.rewards, in_loss.segments.counts)
    rewards = batch.tracks.get("token_rewards")
    if rewards is None:
        return per_row
    finite = np.isfinite(rewards)
    to_go = _to_the_end(np.where(finite, rewards, 0), batch.offsets)[in_loss.positions]
    lost = _to_the_end(~finite, batch.offsets)[in_loss.positions]
    given = in_loss.given("token_rewards")
    return np.where(True if given is None else given, np.where(lost == 0, to_go, np.nan), per_row)


def _to_the_end(values_N: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """float64 [N]: sum of a row's values from each token on."""
    sums = np.concatenate([np.zeros(1), np.cumsum(values_N, dtype=np.float64)])
    return np.repeat(sums[offsets[1:]], np.diff(offsets)) - sums[:-1]


@family(
    reads="tokens",
    needs=_WEIGHTS,
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
def importance(view: StepView) -> Values:
    """99 % quantile, mean, max and share above 2 of w over loss tokens with both logprobs finite; exponent clamped to +-20."""
    weights = _weights(view)
    found = describe("importance", weights, ("mean", "max", "p99"))
    return found | mean_of("importance/above_2_share", weights > LARGE)


@family(
    reads="tokens",
    needs=(*_WEIGHTS, "importance_cap"),
    source="truncated importance sampling (Yao et al. 2025)",
    keys=(Key("importance/truncated_share", "loss tokens whose w is above the declared cap", default=True),),
)
def importance_truncated(view: StepView) -> Values:
    """loss tokens with w > importance_cap / loss tokens with a known w."""
    return mean_of("importance/truncated_share", _weights(view) > (view.settings.importance_cap or 0.0))


@family(
    reads="tokens",
    needs=(*_WEIGHTS, "importance_band"),
    source="IcePop (Ling team 2025)",
    keys=(Key("importance/masked_share", "loss tokens whose w is outside the declared band", default=True),),
)
def importance_masked(view: StepView) -> Values:
    """loss tokens with w < low or w > high of importance_band / loss tokens with a known w."""
    weights, band = _weights(view), view.settings.importance_band
    assert band is not None
    return mean_of("importance/masked_share", (weights < band.min) | (weights > band.max))


@family(
    reads="tokens",
    needs=_RATIO,
    source="PPO",
    keys=(Key("ppo_ratio/{mean,std,min,max}", "e^(new - prox logprob) over loss tokens"),),
)
def ppo_ratio(view: StepView) -> Values:
    """mean, population std, min and max of e^(new - prox), the exponent clamped to +-20."""
    return describe("ppo_ratio", np.exp(_moved(view), dtype=np.float64))


@family(
    reads="tokens",
    needs=_RATIO,
    source="Schulman 2020, PPO implementations",
    keys=(
        Key("ppo/approx_kl", "KL(before || after the update) over loss tokens, k3, nats", default=True),
        Key("ppo/approx_kl_k1", "the same, noisier and able to cancel, nats"),
    ),
)
def approx_kl(view: StepView) -> Values:
    """With d = new - prox logprob over loss tokens, clamped to +-20: mean(e^d - d - 1), and mean(-d)."""
    d = finite_of(_moved(view))[0].astype(np.float64)
    return mean_of("ppo/approx_kl", k3(d)) | mean_of("ppo/approx_kl_k1", -d)


@family(
    reads="tokens",
    needs=_RATIO,
    source="GSPO (Zheng et al. 2025)",
    keys=(
        Key("ppo_ratio/sequence_{mean,min,max}", "e^(mean of new - prox logprob) of a rollout's loss tokens"),
    ),
)
def sequence_ratio(view: StepView) -> Values:
    """mean, min and max over rows of the geometric mean of the ratio over the row's loss tokens."""
    means = view.in_loss.segments.mean(_ratio(view))
    found = describe("ratio", np.exp(means[np.isfinite(means)]), ("mean", "min", "max"))
    return renamed(found, "ratio/", "ppo_ratio/sequence_")


@family(
    reads="tokens",
    needs=(*_RATIO, "advantages", "clip_low", "clip_high"),
    source="PPO",
    keys=(Key("clip_share_{low,high}", "loss tokens clipped below (A < 0) and above (A > 0)", default=True),),
)
def clip_share(view: StepView) -> Values:
    """loss tokens that clipping cuts off / loss tokens with a finite ratio and advantage.

    Gated by the sign of the advantage.
    """
    cut = clipped(view.in_loss, view.settings)
    if cut is None:
        return {}
    return share("clip_share_low", cut.low, cut.known) | share("clip_share_high", cut.high, cut.known)


@family(
    needs=("update_share",),
    keys=(
        Key("update/top3_share", "part of the step's update that its three heaviest rollouts carry", True),
        Key("update/ess_rows", "effective number of rollouts behind the update", default=True),
    ),
)
def update(view: StepView) -> Values:
    """With s the rows' update shares, scaled to sum to 1: the three largest summed, and 1 / sum s^2.

    Computed over the whole step where tokens are at hand: a hand-over's own shares sum to 1 each.
    """
    shares = view.known("update_share")
    if view.batch is not None:
        shares = finite_of(update_shares(view.in_loss, view.ledger.get("discard_reason")))[0]
    total = shares.sum()
    if not total > 0:
        return {}
    shares = np.sort(shares / total)
    return {
        "update/top3_share": float(shares[-HEAVIEST:].sum()),
        "update/ess_rows": float(1 / np.sum(shares**2)),
    }


def _weights(view: StepView) -> np.ndarray:
    """float64: w of the loss tokens with both logprobs finite."""
    return np.exp(finite_of(view.in_loss.d)[0], dtype=np.float64)


def _ratio(view: StepView) -> np.ndarray:
    """[M]: new - prox logprob over the loss tokens."""
    d = log_ratio(*(view.in_loss[name] for name in _RATIO))
    assert d is not None
    return d


def _moved(view: StepView) -> np.ndarray:
    """The same over the loss tokens of rows that came with both."""
    return pick(_ratio(view), view.in_loss.given(*_RATIO))
