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
        positions: int64 [M]; their flat positions in the batch.
        segments: their rows.
    """

    def __init__(self, batch: PackedBatch, positions: np.ndarray, counts: np.ndarray) -> None:
        self.batch = batch
        self.positions = positions
        self.segments = Segments(counts)
        self._tracks: dict[str, np.ndarray | None] = {}

    @classmethod
    def under(cls, batch: PackedBatch, mask_N: np.ndarray) -> MaskedTokens:
        """The tokens for which a mask, bool [N], holds."""
        positions = mask_N.nonzero()[0]
        edges = positions.searchsorted(batch.offsets)
        return cls(batch, positions, edges[1:] - edges[:-1])

    @classmethod
    def sampled(cls, batch: PackedBatch) -> MaskedTokens:
        """The tokens that the policy sampled."""
        return cls(batch, batch.sampled_positions, batch.sampled_counts)

    @classmethod
    def in_loss(cls, batch: PackedBatch) -> MaskedTokens:
        """The tokens that contribute to the loss."""
        return cls(batch, batch.loss_positions, batch.loss_counts)

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

    def __getitem__(self, name: str) -> np.ndarray:
        """[M] values of a track that the batch has."""
        values = self.track(name)
        if values is None:
            raise KeyError(f"the batch has no {name}; declare it among what is needed.")
        return values

    def given(self, *names: str) -> np.ndarray | None:
        """Which tokens are of rows that came with all of these tracks.

        What a row came without is not a NaN: parts of a step may have columns that others lack.

        Args:
            *names: tracks.

        Returns:
            bool [M]; None where all rows came with all of them.
        """
        lacking = [
            self.batch.not_given[key] for name in names if (key := f"tracks/{name}") in self.batch.not_given
        ]
        if not lacking:
            return None
        return np.repeat(~np.any(lacking, axis=0), self.segments.counts)

    @cached_property
    def log_ratio(self) -> np.ndarray | None:
        """float32 [M], nats: prox minus rollout logprob, clamped; NaN where either is not finite or not given."""
        return log_ratio(self.track("prox_logprobs"), self.track("logprobs"))

    @property
    def d(self) -> np.ndarray:
        """`log_ratio` of a batch that has both."""
        assert self.log_ratio is not None
        return self.log_ratio

    @cached_property
    def policy_logprobs(self) -> np.ndarray | None:
        """[M], nats: under the weights being updated: prox logprobs where the row came with them, else the rollout's."""
        prox, rollout = self.track("prox_logprobs"), self.track("logprobs")
        given = self.given("prox_logprobs")
        if prox is None or rollout is None or given is None:
            return rollout if prox is None else prox
        return np.where(given, prox, rollout)

    @cached_property
    def advantages(self) -> np.ndarray | None:
        """[M]: the token's advantage where the row came with one a token, else its row's; None when there is none."""
        values = self.track("advantages")
        per_row = self.batch.row_floats.get("advantages")
        if per_row is None:
            return values
        spread = np.repeat(per_row, self.segments.counts)
        given = self.given("advantages")
        if values is None:
            return spread
        return values if given is None else np.where(given, values, spread)

    @cached_property
    def advantage_given(self) -> np.ndarray | None:
        """bool [M]: the row came with an advantage, of its own or a token's; None where all did."""
        keys = {"tracks/advantages": self.batch.tracks, "row_floats/advantages": self.batch.row_floats}
        given = [
            ~self.batch.not_given.get(key, np.zeros(self.batch.n_rows, bool))
            for key, columns in keys.items()
            if "advantages" in columns
        ]
        rows = np.any(given, axis=0) if given else np.zeros(self.batch.n_rows, bool)
        return None if rows.all() else np.repeat(rows, self.segments.counts)


def pick(values: np.ndarray, where: np.ndarray | None) -> np.ndarray:
    """The values for which a mask holds; all of them where it is None."""
    return values if where is None else values[where]


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
