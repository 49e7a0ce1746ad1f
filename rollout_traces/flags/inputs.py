"""The inputs of the detectors: a whole population without text, or one decoded rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rollout_traces.ledger.build import normalise_stop_reason
from rollout_traces.ledger.columns import Ledger
from rollout_traces.ledger.groups import episode_numbers
from rollout_traces.ledger.tokens import MaskedTokens
from rollout_traces.model.packed_batch import ASSUMED_MASK, PackedBatch
from rollout_traces.model.transcript import Transcript, Turn
from rollout_traces.settings.run_settings import RunSettings


@dataclass(frozen=True, eq=False)
class Runs:
    """R maximal runs of marked tokens, in order; none crosses a row's edge.

    Attributes:
        rows: int64 [R], ascending; the row of each run.
        starts: int64 [R]; flat position of its first token.
        stops: int64 [R]; flat position one past its last.
        offsets: int64 [B + 1]; where rows begin.
    """

    rows: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, mask_N: np.ndarray, offsets: np.ndarray) -> Runs:
        """Finds the runs of True.

        Args:
            mask_N: bool [N].
            offsets: int64 [B + 1].
        """
        n = len(mask_N)
        edges = np.empty(n + 1, bool)
        edges[0] = edges[n] = True
        np.not_equal(mask_N[1:], mask_N[:-1], out=edges[1:n])
        edges[offsets] = True
        at = edges.nonzero()[0]
        marked = mask_N[at[:-1]] if n else np.zeros(0, bool)
        starts, stops = at[:-1][marked], at[1:][marked]
        return cls(offsets.searchsorted(starts, side="right") - 1, starts, stops, offsets)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [R]: tokens of each run."""
        return self.stops - self.starts

    def first_of_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that have a run, and the index of the first run of each, both [rows with a run]."""
        new = np.ones(len(self.rows), bool)
        np.not_equal(self.rows[1:], self.rows[:-1], out=new[1:])
        first = new.nonzero()[0]
        return self.rows[first], first

    def last_of_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that have a run, and the index of the last run of each, both [rows with a run]."""
        ends = np.ones(len(self.rows), bool)
        np.not_equal(self.rows[1:], self.rows[:-1], out=ends[:-1])
        last = ends.nonzero()[0]
        return self.rows[last], last

    def local(self, run: int) -> tuple[int, int]:
        """Start and stop of a run in its row's own token positions."""
        base = self.offsets[self.rows[run]]
        return int(self.starts[run] - base), int(self.stops[run] - base)


@dataclass(frozen=True, eq=False)
class Population:
    """The input of a population detector: all rows of a hand-over, no text.

    Attributes:
        ledger: their ledger, before flags.
        parameters: thresholds by `<flag>.<parameter>`, over the detectors' defaults.
        settings: what the run declares; the reward range is read.
    """

    batch: PackedBatch
    ledger: Ledger
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: RunSettings = field(default_factory=RunSettings)

    @cached_property
    def sampled_runs(self) -> Runs:
        """Runs of sampled tokens, none across two rows."""
        return Runs.of(self.batch.response_mask, self.batch.offsets)

    @cached_property
    def sampled(self) -> MaskedTokens:
        """The tokens that the policy sampled."""
        return MaskedTokens.sampled(self.batch)

    @property
    def n_loss(self) -> np.ndarray:
        """int64 [B]: tokens of each row in the loss."""
        return self.batch.loss_counts

    @cached_property
    def groups(self) -> tuple[np.ndarray, ...]:
        """The rows of each group of two or more episodes, int64 [G] each."""
        group = self.ledger.get("group")
        order = group.argsort(kind="stable")
        by_group = group[order]
        new = (by_group[1:] != by_group[:-1]).nonzero()[0] + 1
        if len(new) + 1 >= len(group):  # each row is a group
            return ()
        parts = np.split(order, new)
        episodes = episode_numbers(self.ledger)
        return tuple(rows for rows in parts if len(set(episodes[rows].tolist())) > 1)


@dataclass(frozen=True, eq=False)
class TracedRow:
    """The input of a row detector: one decoded rollout.

    Attributes:
        batch: the hand-over it came from.
        row: its row there.
        parameters: thresholds by `<flag>.<parameter>`, over the detectors' defaults.
        tokenizer: the run's tokenizer, for detectors that encode again; None when there is none.
    """

    transcript: Transcript
    batch: PackedBatch
    row: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None

    @property
    def stop_reason(self) -> str | None:
        """Why sampling stopped, normalised as in the ledger; None when unknown."""
        reason = self.batch.row_value("stop_reasons", self.row)
        return None if reason is None else normalise_stop_reason(reason)

    def written_turns(self) -> Iterator[tuple[int, Turn]]:
        """The assistant's turns that the policy wrote, and their indices: those with sampled tokens; of a row without tokens all."""
        for index, turn in enumerate(self.transcript.turns):
            if turn.role == "assistant" and (turn.n_sampled or not len(self.transcript.tokens)):
                yield index, turn

    @property
    def sampling_known(self) -> bool:
        """True when the response mask is more than the loss mask by another name."""
        assumed = self.batch.not_given.get(ASSUMED_MASK)
        if assumed is not None:
            return not assumed[self.row]
        return self.batch.response_mask_source != "loss_mask"
