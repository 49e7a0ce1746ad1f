"""What the loss does with a token: its clipping, and how much of the step's update it carries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_traces.ledger.masked_tokens import MaskedTokens, log_ratio
from rollout_traces.settings.run_settings import RunSettings


def update_shares(in_loss: MaskedTokens, discard_reason: np.ndarray) -> np.ndarray:
    """How much of the step's update each row carries.

    `u_t = |A_t| * w_t * (1 - p_t)` summed over the row's loss tokens and divided by the batch's sum.
    w is the loss weight times the importance weight e^d, each where the row came with it. p is the
    probability under the weights being updated: prox logprobs where the row came with them, else the
    rollout's. `1 - p` is the norm of the gradient of log p in the logits, within a factor of sqrt(2).
    Tokens whose update is not finite count as nothing, and so do discarded rows.

    Args:
        in_loss: the loss tokens.
        discard_reason: object [B], None = used.

    Returns:
        float64 [B] summing to 1; NaN for a row in the update that came without advantages or logprobs, and
        throughout when nothing updates.
    """
    unknown = np.full(len(in_loss.segments.counts), np.nan)
    advantages = in_loss.advantages
    logprobs = None if advantages is None else in_loss.policy_logprobs
    if advantages is None or logprobs is None:
        return unknown
    with np.errstate(invalid="ignore", over="ignore"):
        update = np.abs(advantages) * -np.expm1(np.minimum(logprobs, 0))
        if in_loss.log_ratio is not None:
            update = update * np.exp(np.nan_to_num(in_loss.log_ratio, nan=0.0))
        weights = in_loss.track("loss_weights")
        if weights is not None:
            given = in_loss.given("loss_weights")
            update = update * np.abs(weights if given is None else np.where(given, weights, 1))
    finite = np.isfinite(update)
    rows = in_loss.segments.sum(update if finite.all() else np.where(finite, update, 0))
    discarded = np.asarray([reason is not None for reason in discard_reason], bool)
    rows[discarded] = 0
    total = rows.sum()
    if not total > 0:
        return unknown
    return np.where(_update_known(in_loss) | discarded, rows / total, np.nan)


def _update_known(in_loss: MaskedTokens) -> np.ndarray:
    """bool [B]: the row's tokens are at hand, and it came with what its update is computed from or has no loss token."""
    batch = in_loss.batch

    def came_with(kind: str, name: str) -> np.ndarray:
        columns = batch.tracks if kind == "tracks" else batch.row_floats
        lacking = batch.not_given.get(f"{kind}/{name}", np.zeros(batch.n_rows, bool))
        return ~lacking if name in columns else np.zeros(batch.n_rows, bool)

    advantages = came_with("tracks", "advantages") | came_with("row_floats", "advantages")
    logprobs = came_with("tracks", "prox_logprobs") | came_with("tracks", "logprobs")
    return batch.has_tokens & ((advantages & logprobs) | (in_loss.segments.counts == 0))


@dataclass(frozen=True, eq=False)
class Clipping:
    """What PPO's clipping does to M loss tokens.

    Attributes:
        low: bool [M]; clipped below.
        high: bool [M]; clipped above.
        known: bool [M]; ratio and advantage are finite; the others are in neither.
    """

    low: np.ndarray
    high: np.ndarray
    known: np.ndarray


def clipped(in_loss: MaskedTokens, settings: RunSettings) -> Clipping | None:
    """Which loss tokens PPO's clipping cuts off.

    ratio = e^(new - prox). Below `1 - clip_low` it is clipped where the advantage is negative, above
    `1 + clip_high` where it is positive; elsewhere the unclipped term is the smaller one.

    Args:
        in_loss: M loss tokens.
        settings: the clip bounds.

    Returns:
        None when bounds, advantages or one of the logprobs are missing.
    """
    d = log_ratio(in_loss.track("new_logprobs"), in_loss.track("prox_logprobs"))
    if d is None or in_loss.advantages is None or settings.clip_low is None or settings.clip_high is None:
        return None
    floor = np.log1p(-settings.clip_low) if settings.clip_low < 1 else -np.inf
    known = np.isfinite(d) & np.isfinite(in_loss.advantages)
    with np.errstate(invalid="ignore"):
        low = known & (d < floor) & (in_loss.advantages < 0)
        high = known & (d > np.log1p(settings.clip_high)) & (in_loss.advantages > 0)
    return Clipping(low, high, known)
