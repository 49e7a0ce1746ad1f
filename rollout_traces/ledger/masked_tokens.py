"""The tokens of a host batch under one mask, without the rest, and what is computed from their tracks."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rollout_traces.ledger.segments import Segments
from rollout_traces.packed_batch import PackedBatch

LOG_RATIO_LIMIT = 20.0
"""Log ratios are clamped to plus and minus this, so that one token cannot overflow a mean."""


class MaskedTokens:
    """M tokens of B rollouts, rows end to end.

    Attributes:
        batch: where they come from.
        mask_N: bool [N]; which tokens.
    """

    def __init__(self, batch: PackedBatch, mask_N: np.ndarray) -> None:
        self.batch = batch
        self.mask_N = mask_N
        self._tracks: dict[str, np.ndarray | None] = {}

    @classmethod
    def sampled(cls, batch: PackedBatch) -> MaskedTokens:
        """The tokens that the policy sampled."""
        return cls(batch, batch.response_mask)

    @classmethod
    def in_loss(cls, batch: PackedBatch) -> MaskedTokens:
        """The tokens that contribute to the loss."""
        return cls(batch, batch.loss_mask)

    @cached_property
    def positions(self) -> np.ndarray:
        """int64 [M]: their flat positions in the batch."""
        return np.flatnonzero(self.mask_N)

    @cached_property
    def segments(self) -> Segments:
        """Their rows."""
        edges = np.searchsorted(self.positions, self.batch.offsets)
        return Segments(np.diff(edges))

    @cached_property
    def rows(self) -> np.ndarray:
        """int64 [M]: the row each belongs to."""
        return self.segments.rows()

    def track(self, name: str) -> np.ndarray | None:
        """[M] values of a track, None when the batch does not have it."""
        if name not in self._tracks:
            values = self.batch.tracks.get(name)
            self._tracks[name] = None if values is None else values[self.positions]
        return self._tracks[name]

    @cached_property
    def log_ratio(self) -> np.ndarray | None:
        """float32 [M], nats: prox minus rollout logprob, clamped; NaN where either is not finite."""
        return log_ratio(self.track("prox_logprobs"), self.track("logprobs"))

    @cached_property
    def advantages(self) -> np.ndarray | None:
        """[M]: the token's advantage, or its row's; None when there is none."""
        values = self.track("advantages")
        if values is not None:
            return values
        per_row = self.batch.row_floats.get("advantages")
        return None if per_row is None else np.repeat(per_row, self.segments.counts)


def log_ratio(above: np.ndarray | None, below: np.ndarray | None) -> np.ndarray | None:
    """Difference of two logprob tracks, clamped to `LOG_RATIO_LIMIT`; None when one is missing.

    Args:
        above: [M] logprobs in the numerator, nats.
        below: [M] logprobs in the denominator, nats.

    Returns:
        [M], NaN where either is not finite.
    """
    if above is None or below is None:
        return None
    with np.errstate(invalid="ignore"):
        difference = above - below
    difference[~(np.isfinite(above) & np.isfinite(below))] = np.nan
    return np.clip(difference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def k3(log_ratio_M: np.ndarray) -> np.ndarray:
    """[M]: e^d - d - 1, Schulman's low-variance estimate of the KL from the denominator's policy."""
    return np.expm1(log_ratio_M) - log_ratio_M
