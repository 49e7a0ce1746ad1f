"""A step that is still open: its hand-overs, with as many of their tokens as memory allows.

Where a step's tokens exceed its budget, those of a random sample of its groups are kept. Every group has a
priority, uniform in [0, 1) and drawn from its identity, and the groups with the smallest ones are kept: the
threshold is the smallest priority that was given up. A kept row's chance of being kept is the threshold, so that
the weights 1 / threshold of the kept rows add up to the step's rows in expectation (Duffield, Lund and Thorup,
"Priority sampling for estimation of arbitrary subset sums", J. ACM 54(6), 2007; D. Ting, "Adaptive threshold
sampling", SIGMOD 2022, for groups of unequal size and a budget in bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import Ledger, any_known
from rollout_traces.model.packed_batch import PackedBatch, StepKey, concatenate
from rollout_traces.model.text import hash_share, words
from rollout_traces.model.units import MB
from rollout_traces.settings.run_settings import RunSettings

FROM_TOKENS = words(
    "prompt_key n_prompt n_sampled n_environment n_turns version_min version_max staleness_max "
    "mean_logprob mismatch_k1 mismatch_k3 mismatch_abs_max log_ratio_sum trained advantage "
    "advantage_abs_max clip_share"
)
"""Columns computed from a row's tokens alone; they are computed before the tokens are given up."""


@dataclass(frozen=True, eq=False)
class ClosedStep:
    """All rollouts of a step that was closed, or of a late part of it.

    Attributes:
        key: which step.
        batch: its B rollouts.
        rows: their ledger; columns about groups and about the whole step are computed over all rows.
        parts: ids of its hand-overs, in order.
        given_up: bool [B]; rows whose tokens the memory budget did not allow to be kept.
        kept_probability: the other rows' chance of having been kept; 1 where the budget was enough.
    """

    key: StepKey
    batch: PackedBatch
    rows: Ledger
    parts: tuple[str, ...]
    given_up: np.ndarray
    kept_probability: float = 1.0


@dataclass(eq=False)
class _Part:
    batch: PackedBatch
    given_up: np.ndarray
    token_rows: np.ndarray | None = None
    ledger: Ledger | None = None

    @cached_property
    def group_keys(self) -> list[str]:
        """The keys that rows' priorities are drawn from, one a row; asked for only where the budget is exceeded."""
        return _group_keys(replace(self.batch))  # a copy: what it keeps of the tokens goes with it


class OpenStep:
    """The hand-overs of a step, in the order they came.

    Args:
        key: which step.
        settings: what the run declares.
        max_bytes: memory for tokens.
        seed: what priorities are drawn from.

    Attributes:
        n_joins: joins so far.
    """

    def __init__(self, key: StepKey, settings: RunSettings, max_bytes: int, seed: int) -> None:
        self.key = key
        self._settings = settings
        self._max_bytes = max_bytes
        self._seed = seed
        self._parts: dict[str, _Part] = {}
        self._threshold = 1.0
        self._awaited: dict[str, set[str]] = {}
        self._bytes = 0
        self.n_joins = 0

    def __contains__(self, batch_id: str) -> bool:
        return batch_id in self._parts

    @property
    def batch_ids(self) -> tuple[str, ...]:
        """Ids of the hand-overs so far."""
        return tuple(self._parts)

    @property
    def n_awaited(self) -> int:
        """Hand-overs that lack columns which their caller said would be joined."""
        return len(self._awaited)

    def add(self, batch: PackedBatch, await_join: Iterable[str] = ()) -> None:
        """Takes a hand-over.

        Args:
            await_join: columns that will be joined.
        """
        missing = set(await_join) - set(batch.tracks) - set(batch.row_floats)
        if missing:
            self._awaited[batch.batch_id] = missing
        self._parts[batch.batch_id] = part = _Part(batch, np.zeros(batch.n_rows, bool))
        self._bytes += _bytes(batch)
        if self._threshold < 1:
            self._give_up(part, lambda key: self._priority(key) >= self._threshold)
        self._keep_within_budget()

    def join(
        self, batch_id: str, tracks: Mapping[str, np.ndarray], row_floats: Mapping[str, np.ndarray]
    ) -> None:
        """Adds per-token [N] and per-row [B] columns to a hand-over.

        Raises:
            ValueError: a track has not as many tokens as were handed over.
        """
        part = self._parts[batch_id]
        n_tokens = len(part.batch.input_ids) if part.token_rows is None else len(part.token_rows)
        for name, values in tracks.items():
            if len(values) != n_tokens:
                raise ValueError(f"join: {name!r} has {len(values)} tokens. Expected {n_tokens}.")
        if part.token_rows is not None:
            tracks = {name: values[part.token_rows] for name, values in tracks.items()}
        self._bytes -= _bytes(part.batch)
        part.batch = part.batch.joined(tracks, row_floats)
        self._bytes += _bytes(part.batch)
        self.n_joins += 1
        left = self._awaited.get(batch_id, set()) - {*tracks, *row_floats}
        if not left:
            self._awaited.pop(batch_id, None)
        self._keep_within_budget()

    def closed(self) -> ClosedStep:
        """The step as it is now."""
        parts = list(self._parts.values())
        whole = concatenate([part.batch for part in parts])
        rows = build_ledger(whole, self._settings)
        given_up = np.concatenate([part.given_up for part in parts])
        if given_up.any():
            rows = _with_known(rows, parts)
            note = (
                f"The tokens of {int(given_up.sum())} of {len(given_up)} rollouts were given up: the step's tokens exceed "
                f"{self._max_bytes / MB:.4g} MB (max_step_bytes). Their scalars are here."
            )
            whole = replace(whole, notes=(*whole.notes, note))
        return ClosedStep(self.key, whole, rows, self.batch_ids, given_up, self._threshold)

    def _keep_within_budget(self) -> None:
        while self._bytes > self._max_bytes:
            held = {
                key
                for part in self._parts.values()
                for key, has in zip(part.group_keys, part.batch.has_tokens.tolist(), strict=True)
                if has
            }
            if not held:
                return
            last = max(held, key=self._priority)
            self._threshold = self._priority(last)
            for part in self._parts.values():
                self._give_up(part, last.__eq__)

    def _give_up(self, part: _Part, is_given_up: Callable[[str], bool]) -> None:
        rows = np.asarray([is_given_up(key) for key in part.group_keys], bool) & part.batch.has_tokens
        if not rows.any():
            return
        if part.ledger is None:
            part.ledger = build_ledger(part.batch, self._settings)
        kept = ~np.repeat(rows, part.batch.lengths)
        if part.token_rows is None:
            part.token_rows = kept
        else:
            part.token_rows[part.token_rows] = kept
        part.given_up = part.given_up | rows
        self._bytes -= _bytes(part.batch)
        part.batch = _without_tokens(part.batch, rows, kept)
        self._bytes += _bytes(part.batch)

    def _priority(self, group_key: str) -> float:
        return hash_share(f"{self._seed}/{self.key.step}/{self.key.split}/{group_key}")


def _group_keys(batch: PackedBatch) -> list[str]:
    """The keys that rows' priorities are drawn from: the group, or the prompt where the group is unknown."""
    if (batch.group_ids >= 0).all():
        return [str(group) for group in batch.group_ids.tolist()]
    keys = batch.prompt_keys()
    return [
        str(group) if group >= 0 else f"prompt {key}"
        for group, key in zip(batch.group_ids.tolist(), keys, strict=True)
    ]


def _bytes(batch: PackedBatch) -> int:
    arrays = (batch.input_ids, batch.loss_mask, batch.response_mask, *batch.tracks.values())
    return sum(array.nbytes for array in arrays)


def _without_tokens(batch: PackedBatch, rows: np.ndarray, kept: np.ndarray) -> PackedBatch:
    lengths = np.where(rows, 0, batch.lengths)
    prompt_keys = batch.prompt_keys()
    return replace(
        batch,
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        input_ids=batch.input_ids[kept],
        loss_mask=batch.loss_mask[kept],
        response_mask=batch.response_mask[kept],
        tracks={name: values[kept] for name, values in batch.tracks.items()},
        has_tokens=batch.has_tokens & ~rows,
        row_lists={**batch.row_lists, "prompt_keys": prompt_keys},
    )


def _with_known(rows: Ledger, parts: Sequence[_Part]) -> Ledger:
    """The ledger with the columns that were computed from tokens before these were given up."""
    filled = {}
    for name in FROM_TOKENS:
        column = rows.get(name).copy()
        first = 0
        for part in parts:
            if part.ledger is not None:
                lost = np.flatnonzero(part.given_up)
                column[first + lost] = part.ledger.get(name)[lost]
            first += part.batch.n_rows
        filled[name] = column
    known = {
        name: column for name, column in filled.items() if name in rows.columns or any_known(name, column)
    }
    return rows.with_columns(**known)
