"""A step's rollouts on the host: padding gone, rows end to end, numpy only.

What the hand-over leaves and everything after it reads: ledger, metrics, flags, selection, decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from rollout_traces.model.text import short_hash
from rollout_traces.model.transcript import INT_TRACKS

SCHEMA_VERSION = 1
FLOAT_KINDS = ("row_floats", "reward_components", "sample_metrics")
"""Names under which a batch has a float a row."""
_END_TO_END = ("input_ids", "loss_mask", "response_mask", "n_tokens", "has_tokens", "group_ids")
"""Arrays that are those of several batches put end to end."""
PARTLY_GIVEN = ("parsed_answers", "successes")
"""Row lists in which None is an answer of its own: not the same as a row that came without the list."""
ASSUMED_MASK = "response_mask"
"""In `PackedBatch.not_given`: the rows whose response mask is their loss mask while others' is known."""


class StepKey(NamedTuple):
    """The identity of a step in a run.

    Attributes:
        attempt: the id of the attempt.
        step: the trainer's global step.
        split: `rollout` or `eval-rollout`.
        late: 0; 1, 2, ... for what came after the step was closed.
    """

    attempt: str
    step: int
    split: str
    late: int = 0


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """B rollouts of one step and split with N tokens in all.

    Attributes:
        batch_id: random id of this hand-over, 12 hex characters; a row's uid is `<batch_id>-<row>`.
        step: the trainer's global step.
        split: `rollout` or `eval-rollout`.
        offsets: int64 [B + 1]; row b's tokens are `[offsets[b], offsets[b + 1])`.
        input_ids: int64 [N].
        loss_mask: bool [N].
        response_mask: bool [N]; the policy sampled the token.
        response_mask_source: what `response_mask` came from; `loss_mask` means that it is assumed.
        tracks: further per-token arrays [N] by canonical name; integers as `int_track` has them, floats as float32
            with the non-finite values they came with.
        n_tokens: int64 [B]; tokens of the row, also where `has_tokens` is False.
        has_tokens: bool [B]; False where a byte budget left the row's tokens behind, or it came without any.
        group_ids: int64 [B]; equal = answers to the same prompt in this step.
        row_floats: name -> float64 [B] (`rewards`, `raw_rewards`, `advantages` given per row), NaN = unknown.
        reward_components: name -> float64 [B].
        sample_metrics: name -> float64 [B].
        row_lists: canonical name -> list of B values (`prompt_keys`, `stop_reasons`, `messages`, ...).
        train_version: the policy version being trained, or None.
        pad_id: the padding token, or None.
        handed_over_at: seconds since the epoch at the hand-over.
        notes: one sentence each for what was coerced or could not be understood.
        not_given: `<kind>/<name>` -> bool [B], True for the rows that came without it while others have it; of
            `tracks`, `row_floats`, `reward_components`, `sample_metrics`, and of the row lists in
            `PARTLY_GIVEN`. NaN of all other rows is what was given, and so is None in those lists. Under
            `response_mask`: the rows whose response mask is assumed while others' is known.
        attempt: id of the run's attempt, ordered by time.
    """

    batch_id: str
    step: int
    split: str
    offsets: np.ndarray
    input_ids: np.ndarray
    loss_mask: np.ndarray
    response_mask: np.ndarray
    response_mask_source: Literal["given", "versions", "loss_mask"]
    tracks: Mapping[str, np.ndarray]
    n_tokens: np.ndarray
    has_tokens: np.ndarray
    group_ids: np.ndarray
    row_floats: Mapping[str, np.ndarray] = field(default_factory=dict)
    reward_components: Mapping[str, np.ndarray] = field(default_factory=dict)
    sample_metrics: Mapping[str, np.ndarray] = field(default_factory=dict)
    row_lists: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    train_version: int | None = None
    pad_id: int | None = None
    handed_over_at: float = 0.0
    notes: tuple[str, ...] = ()
    not_given: Mapping[str, np.ndarray] = field(default_factory=dict)
    attempt: str = ""

    @property
    def n_rows(self) -> int:
        """Number of rollouts, B."""
        return len(self.offsets) - 1

    def row(self, b: int) -> slice:
        """The slice of the flat arrays that row b occupies."""
        return slice(int(self.offsets[b]), int(self.offsets[b + 1]))

    def uid(self, b: int) -> str:
        """The row's stable unique id."""
        uids = self.row_lists.get("uids")
        return f"{self.batch_id}-{b}" if uids is None else uids[b]

    def row_value(self, key: str, b: int) -> Any:
        """Row b's value of a `row_lists` key, None where the key was not given."""
        values = self.row_lists.get(key)
        return None if values is None else values[b]

    def conversation(self, b: int) -> list[Any] | None:
        """Row b's messages; None where none were given, or something that is no list of messages."""
        messages = self.row_value("messages", b)
        return messages if isinstance(messages, list) else None

    def lacks(self, kind: str, name: str) -> np.ndarray:
        """bool [B]: the rows that came without a column; all of them where the batch does not have it.

        Args:
            kind: `tracks`, `row_floats`, `reward_components`, `sample_metrics` or `row_lists`.
            name: the column.
        """
        lacking = np.full(self.n_rows, name not in getattr(self, kind))
        return self.not_given.get(f"{kind}/{name}", lacking)

    def joined(self, tracks: Mapping[str, np.ndarray], row_floats: Mapping[str, np.ndarray]) -> PackedBatch:
        """The batch with further columns of all its rows, or others in their place.

        Args:
            tracks: per-token arrays [N].
            row_floats: float64 [B] each.
        """
        given = {*(f"tracks/{name}" for name in tracks), *(f"row_floats/{name}" for name in row_floats)}
        return replace(
            self,
            tracks={**self.tracks, **tracks},
            row_floats={**self.row_floats, **row_floats},
            not_given={key: rows for key, rows in self.not_given.items() if key not in given},
        )

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 [B]: tokens of each row that are at hand."""
        return self.offsets[1:] - self.offsets[:-1]

    def sum_rows(self, values_N: np.ndarray) -> np.ndarray:
        """Sums a per-token array over each row.

        Args:
            values_N: [N], bool or number.

        Returns:
            [B] sums, int64 for bool and integers, float64 otherwise; 0 for an empty row.
        """
        if values_N.dtype == bool:
            edges = self.offsets.tolist()
            rows = [np.count_nonzero(values_N[start:stop]) for start, stop in pairwise(edges)]
            return np.asarray(rows, np.int64)
        dtype = np.int64 if values_N.dtype.kind in "iu" else np.float64
        sums = np.concatenate([np.zeros(1, dtype), np.cumsum(values_N, dtype=dtype)])
        return sums[self.offsets[1:]] - sums[self.offsets[:-1]]

    @cached_property
    def sampled_positions(self) -> np.ndarray:
        """int64 [M]: flat positions of the sampled tokens."""
        return self.response_mask.nonzero()[0]

    @cached_property
    def sampled_counts(self) -> np.ndarray:
        """int64 [B]: sampled tokens of each row."""
        return self._counts(self.sampled_positions)

    @cached_property
    def loss_is_sampled(self) -> bool:
        """True when exactly the sampled tokens are in the loss."""
        return np.array_equal(self.loss_mask, self.response_mask)

    @cached_property
    def loss_positions(self) -> np.ndarray:
        """int64 [M]: flat positions of the tokens in the loss."""
        return self.sampled_positions if self.loss_is_sampled else self.loss_mask.nonzero()[0]

    @cached_property
    def loss_counts(self) -> np.ndarray:
        """int64 [B]: tokens of each row in the loss."""
        return self.sampled_counts if self.loss_is_sampled else self._counts(self.loss_positions)

    def _counts(self, positions: np.ndarray) -> np.ndarray:
        """int64 [B]: how many of some ascending flat positions lie in each row."""
        edges = positions.searchsorted(self.offsets)
        return edges[1:] - edges[:-1]

    @cached_property
    def prompt_stops(self) -> np.ndarray:
        """int64 [B]: flat position of each row's first sampled token; the row's end when it has none."""
        stops = self.offsets[1:]
        sampled = self.sampled_positions
        if len(sampled):
            at = sampled.searchsorted(self.offsets[:-1])
            first = sampled[np.minimum(at, len(sampled) - 1)]
            inside = (at < len(sampled)) & (first < self.offsets[1:])
            stops = np.where(inside, first, stops)
        return stops

    def prompt_keys(self) -> list[str]:
        """B prompt keys: the caller's, else a hash of the ids before the first sampled token."""
        given = self.row_lists.get("prompt_keys")
        starts, stops = self.offsets.tolist(), self.prompt_stops.tolist()
        return [
            str(given[b])
            if given is not None and given[b] is not None
            else hash_ids(self.input_ids[starts[b] : stops[b]])
            for b in range(self.n_rows)
        ]


def hash_ids(ids: np.ndarray) -> str:
    """16 hex characters that identify a sequence of token ids."""
    return short_hash(np.ascontiguousarray(ids, dtype="<u4").tobytes()).hex()


def concatenate(batches: Sequence[PackedBatch]) -> PackedBatch:
    """The hand-overs of one step and split as one; uids stay those of the parts in `row_lists["uids"]`.

    Args:
        batches: at least one, all of one step and split.

    Returns:
        One batch with the rows in order; what only some parts have is unknown in the others.
    """
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    lengths = np.concatenate([batch.lengths for batch in batches])
    sources = {batch.response_mask_source for batch in batches}
    joined: dict[str, Any] = {kind: _join_floats(kind, batches) for kind in FLOAT_KINDS}
    joined |= {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in _END_TO_END}
    return replace(
        first,
        **joined,
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        response_mask_source=sources.pop() if len(sources) == 1 else "given",
        tracks={
            name: np.concatenate([_track(batch, name) for batch in batches])
            for name in dict.fromkeys(name for batch in batches for name in batch.tracks)
        },
        row_lists=_join_lists(batches),
        train_version=next((b.train_version for b in batches if b.train_version is not None), None),
        notes=tuple(dict.fromkeys(note for batch in batches for note in batch.notes)),
        not_given=_join_not_given(batches),
    )


def _track(batch: PackedBatch, name: str) -> np.ndarray:
    if name in batch.tracks:
        return batch.tracks[name]
    n = len(batch.input_ids)
    return np.full(n, -1, np.int32) if name in INT_TRACKS else np.full(n, np.nan, np.float32)


def _join_not_given(batches: Sequence[PackedBatch]) -> dict[str, np.ndarray]:
    """For each name that any of them has: the rows without it, of batches that lack it all rows."""
    joined = {}
    for kind in ("tracks", *FLOAT_KINDS, "row_lists"):
        for name in dict.fromkeys(name for batch in batches for name in getattr(batch, kind)):
            if kind != "row_lists" or name in PARTLY_GIVEN:
                joined[f"{kind}/{name}"] = np.concatenate([batch.lacks(kind, name) for batch in batches])
    if len({batch.response_mask_source for batch in batches}) > 1:
        joined[ASSUMED_MASK] = np.concatenate([_assumed(batch) for batch in batches])
    return {key: rows for key, rows in joined.items() if rows.any()}


def _assumed(batch: PackedBatch) -> np.ndarray:
    by_source = np.full(batch.n_rows, batch.response_mask_source == "loss_mask")
    return batch.not_given.get(ASSUMED_MASK, by_source)


def _join_floats(kind: str, batches: Sequence[PackedBatch]) -> dict[str, np.ndarray]:
    columns = [(getattr(batch, kind), np.full(batch.n_rows, np.nan)) for batch in batches]
    names = dict.fromkeys(name for known, _ in columns for name in known)
    return {name: np.concatenate([known.get(name, unknown) for known, unknown in columns]) for name in names}


def _join_lists(batches: Sequence[PackedBatch]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for batch in batches for name in batch.row_lists)
    lists = {
        name: [value for b in batches for value in b.row_lists.get(name, [None] * b.n_rows)] for name in names
    }
    lists["uids"] = [batch.uid(row) for batch in batches for row in range(batch.n_rows)]
    return lists
