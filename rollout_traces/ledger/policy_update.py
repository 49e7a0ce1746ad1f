"""What the loss does with a token: its clipping, and how much of the step's update it carries."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.masked_tokens import MaskedTokens, log_ratio
from rollout_traces.settings.run_settings import RunSettings


def update_shares(in_loss: MaskedTokens, discard_reason: np.ndarray) -> np.ndarray:
    """How much of the step's update each row carries.

    `u_t = |A_t| * w_t * (1 - p_t)` summed over the row's loss tokens and divided by the batch's sum.
    w is the loss weight times the importance weight e^d where they are known. p is the probability
    under the weights being updated: prox logprobs where known, else the rollout's. `1 - p` is the norm
    of the gradient of log p in the logits, within a factor of sqrt(2). Discarded rows carry nothing.

    Args:
        in_loss: the loss tokens.
        discard_reason: object [B], None = used.

    Returns:
        float64 [B] summing to 1; NaN throughout when advantages or logprobs are missing, or when
        nothing updates.
    """
    counts = in_loss.segments.counts
    unknown = np.full(len(counts), np.nan)
    prox = in_loss.track("prox_logprobs")
    logprobs = prox if prox is not None else in_loss.track("logprobs")
    if in_loss.advantages is None or logprobs is None:
        return unknown
    with np.errstate(invalid="ignore", over="ignore"):
        update = np.abs(in_loss.advantages) * -np.expm1(np.minimum(logprobs, 0))
        if in_loss.log_ratio is not None:
            update = update * np.exp(np.nan_to_num(in_loss.log_ratio, nan=0.0))
        weights = in_loss.track("loss_weights")
        if weights is not None:
            update = update * np.abs(weights)
    finite = np.isfinite(update)
    rows = in_loss.segments.sum(update if finite.all() else np.where(finite, update, 0))
    rows[np.asarray([reason is not None for reason in discard_reason], bool)] = 0
    total = rows.sum()
    return rows / total if total > 0 else unknown


def clipped(in_loss: MaskedTokens, settings: RunSettings) -> tuple[np.ndarray, np.ndarray] | None:
    """Which loss tokens PPO's clipping cuts off.

    ratio = e^(new - prox). Below `1 - clip_low` it is clipped where the advantage is negative, above
    `1 + clip_high` where it is positive; elsewhere the unclipped term is the smaller one.

    Args:
        in_loss: M loss tokens.
        settings: the clip bounds.

    Returns:
        Two bool [M] arrays, clipped below and clipped above; None when bounds, advantages or one of
        the logprobs are missing.
    """
    d = log_ratio(in_loss.track("new_logprobs"), in_loss.track("prox_logprobs"))
    if d is None or in_loss.advantages is None or settings.clip_low is None or settings.clip_high is None:
        return None
    floor = np.log1p(-settings.clip_low) if settings.clip_low < 1 else -np.inf
    with np.errstate(invalid="ignore"):
        low = (d < floor) & (in_loss.advantages < 0)
        high = (d > np.log1p(settings.clip_high)) & (in_loss.advantages > 0)
    return low, high
