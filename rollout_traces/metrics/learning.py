"""What the loss is taken over: its tokens, the signs of their advantages, the critic."""

from __future__ import annotations

import numpy as np

from rollout_traces.metrics.aggregate import known
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import StepView


@family(
    "loss_tokens",
    reads="tokens",
    source="AReaL, slime",
    keys=(
        Key("count/loss_tokens", "tokens in the loss of rollouts that were not left out", default=True),
        Key("tokens/loss_share", "the same / all tokens of the step that are at hand", default=True),
    ),
)
def loss_tokens(view: StepView) -> dict[str, float]:
    """Loss tokens of rows without a discard reason, and their part of all tokens."""
    assert view.batch is not None
    kept = np.asarray([reason is None for reason in view.ledger.get("discard_reason").tolist()], bool)
    n_loss, n_tokens = int(view.in_loss.segments.counts[kept].sum()), len(view.batch.input_ids)
    return {"count/loss_tokens": float(n_loss)} | known(
        "tokens/loss_share", n_loss / n_tokens if n_tokens else None
    )


@family(
    "advantage_signs",
    reads="tokens",
    needs=("advantages",),
    source="verl",
    keys=(Key("advantage/positive_share", "loss tokens with A > 0"),),
)
def advantage_signs(view: StepView) -> dict[str, float]:
    """loss tokens with A > 0 / loss tokens with a finite A."""
    values = view.in_loss.advantages
    if values is None:
        return {}
    finite = np.isfinite(values)
    return known("advantage/positive_share", np.mean(values[finite] > 0) if finite.any() else None)


@family(
    "advantage_covariance",
    reads="tokens",
    needs=("advantages", "prox_logprobs or logprobs"),
    source="Cui et al. 2025, the entropy mechanism",
    keys=(
        Key("advantage/logprob_covariance", "what drives entropy down when it is positive, over loss tokens"),
    ),
)
def advantage_covariance(view: StepView) -> dict[str, float]:
    """mean of (A - mean A)(log p - mean log p) over loss tokens with both finite.

    log p is the prox logprob where the row came with it, else the rollout's.
    """
    advantages, logprobs = view.in_loss.advantages, view.in_loss.policy_logprobs
    if advantages is None or logprobs is None:
        return {}
    usable = np.isfinite(advantages) & np.isfinite(logprobs)
    if not usable.any():
        return {}
    a, p = advantages[usable].astype(np.float64), logprobs[usable].astype(np.float64)
    return known("advantage/logprob_covariance", np.mean((a - a.mean()) * (p - p.mean())))


@family(
    "explained_variance",
    reads="tokens",
    needs=("values", "rewards or token_rewards"),
    source="PPO implementations",
    keys=(
        Key("values/explained_variance", "1 - Var(G - V) / Var(G) over loss tokens; 1 is a perfect critic"),
    ),
)
def explained_variance(view: StepView) -> dict[str, float]:
    """G is the undiscounted return: the row's token rewards from the token on, else the row's reward."""
    values, returns = view.in_loss.track("values"), _returns(view)
    if values is None:
        return {}
    usable = np.isfinite(values) & np.isfinite(returns)
    if not usable.any():
        return {}
    G, V = returns[usable], values[usable].astype(np.float64)
    spread = float(G.var())
    return known("values/explained_variance", 1 - float((G - V).var()) / spread if spread > 1e-12 else None)


def _returns(view: StepView) -> np.ndarray:
    """float64 [M] over the loss tokens."""
    assert view.batch is not None
    batch, in_loss = view.batch, view.in_loss
    per_row = np.repeat(view.rewards, in_loss.segments.counts)
    rewards = batch.tracks.get("token_rewards")
    if rewards is None:
        return per_row
    finite = np.isfinite(rewards)
    to_go = _to_the_end(np.where(finite, rewards, 0), batch.offsets)[in_loss.positions]
    lost = _to_the_end(~finite, batch.offsets)[in_loss.positions]
    to_go = np.where(lost == 0, to_go, np.nan)
    given = in_loss.given("token_rewards")
    return to_go if given is None else np.where(given, to_go, per_row)


def _to_the_end(values_N: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """float64 [N]: sum of a row's values from each token on."""
    sums = np.concatenate([np.zeros(1), np.cumsum(values_N, dtype=np.float64)])
    return np.repeat(sums[offsets[1:]], np.diff(offsets)) - sums[:-1]
