"""The tokens of a host batch under one mask, without the rest, and what is computed from their tracks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.settings.run_settings import RunSettings

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
        """Marks the tokens of rows that came with all of these tracks.

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
        rows = ~_lacks_all(self.batch, ("tracks", "advantages"), ("row_floats", "advantages"))
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


@dataclass(frozen=True, eq=False)
class Segments:
    """B consecutive stretches of a flat array of M values.

    Attributes:
        counts: int64 [B]; values in each stretch, summing to M.
    """

    counts: np.ndarray

    @cached_property
    def filled(self) -> np.ndarray:
        """bool [B]: the stretches that hold a value."""
        return self.counts > 0

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 [B]: where each stretch begins."""
        return self.counts.cumsum() - self.counts

    def rows(self) -> np.ndarray:
        """int64 [M]: the stretch every value belongs to."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def sum(self, values_M: np.ndarray) -> np.ndarray:
        """Sums of bools, integers or floats; an empty stretch gives 0.

        Args:
            values_M: [M], finite.

        Returns:
            [B], int64 for bools and integers, else float64.
        """
        dtype = np.int64 if values_M.dtype.kind in "biu" else np.float64
        sums = np.zeros(len(self.counts), dtype)
        if len(values_M):
            sums[self.filled] = np.add.reduceat(values_M, self.starts[self.filled], dtype=dtype)
        return sums

    def mean(self, values_M: np.ndarray) -> np.ndarray:
        """float64 [B] means of the finite values; NaN where a stretch has none."""
        if values_M.dtype.kind != "f":
            return ratio(self.sum(values_M), self.counts)
        finite = np.isfinite(values_M)
        if finite.all():
            return ratio(self.sum(values_M), self.counts)
        return ratio(self.sum(np.where(finite, values_M, 0)), self.sum(finite))

    def min(self, values_M: np.ndarray, empty: float) -> np.ndarray:
        """[B] smallest values; `empty` for an empty stretch."""
        return self._extreme(np.minimum, values_M, empty)

    def max(self, values_M: np.ndarray, empty: float) -> np.ndarray:
        """[B] largest values; `empty` for an empty stretch."""
        return self._extreme(np.maximum, values_M, empty)

    def _extreme(self, pick: np.ufunc, values_M: np.ndarray, empty: float) -> np.ndarray:
        dtype = np.int64 if values_M.dtype.kind in "biu" else np.float64
        extremes = np.full(len(self.counts), empty, dtype)
        if len(values_M):
            extremes[self.filled] = pick.reduceat(values_M, self.starts[self.filled])
        return extremes


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """float64: `above / below`, NaN where `below` is 0."""
    known = below != 0
    return np.where(known, above / np.where(known, below, 1), np.nan)


def update_shares(in_loss: MaskedTokens, discard_reason: np.ndarray) -> np.ndarray:
    """Computes the share of the step's update that each row carries.

    `u_t = |A_t| * w_t * (1 - p_t)` summed over the row's loss tokens and divided by the batch's sum.
    w is the loss weight times the importance weight e^d, each where the row came with it. p is the
    probability under the weights being updated: prox logprobs where the row came with them, else the
    rollout's. `1 - p` is the norm of the gradient of log p in the logits, within a factor of sqrt(2).
    Tokens whose update is not finite count as nothing, and so do discarded rows.

    Args:
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
    unknown = _lacks_all(batch, ("tracks", "advantages"), ("row_floats", "advantages"))
    unknown |= _lacks_all(batch, ("tracks", "prox_logprobs"), ("tracks", "logprobs"))
    return batch.has_tokens & (~unknown | (in_loss.segments.counts == 0))


def _lacks_all(batch: PackedBatch, *columns: tuple[str, str]) -> np.ndarray:
    """bool [B]: the rows that came without any of some columns, see `PackedBatch.lacks`."""
    return np.all([batch.lacks(*column) for column in columns], axis=0)


@dataclass(frozen=True, eq=False)
class Clipping:
    """The effect of PPO's clipping on M loss tokens.

    Attributes:
        low: bool [M]; clipped below.
        high: bool [M]; clipped above.
        known: bool [M]; ratio and advantage are finite; the others are in neither.
    """

    low: np.ndarray
    high: np.ndarray
    known: np.ndarray


def clipped(in_loss: MaskedTokens, settings: RunSettings) -> Clipping | None:
    """Marks the loss tokens that PPO's clipping cuts off.

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
