"""What a flag is, and what its detectors see.

A flag is a named, explained observation about a rollout. `registry` says how detectors are registered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from rollout_traces.flags.runs import Runs
from rollout_traces.ledger.build import normalise_stop_reason
from rollout_traces.ledger.columns import Ledger
from rollout_traces.ledger.episodes import episode_numbers
from rollout_traces.ledger.masked_tokens import MaskedTokens
from rollout_traces.packed_batch import ASSUMED_MASK, PackedBatch
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.transcript import Transcript, Turn

Severity = Literal["error", "warn", "info"]


@dataclass(frozen=True)
class Flag:
    """One observation about one rollout.

    Attributes:
        name: the flag's name, snake case.
        severity: `error` (a bug in training), `warn` (worth a look) or `info`.
        message: one sentence that says what was seen, with its number.
        turn: index of the turn it speaks of, or None for the whole rollout.
        start: first token it speaks of, in the rollout's token positions, or None.
        stop: one past the last token it speaks of, or None.
    """

    name: str
    severity: Severity
    message: str
    turn: int | None = None
    start: int | None = None
    stop: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a trace's metadata."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Population:
    """What a population detector sees: all rows of a hand-over, no text.

    Attributes:
        batch: the rollouts.
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
    """What a row detector sees: one decoded rollout.

    Attributes:
        transcript: the decoded rollout.
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

    def is_written_by_policy(self, turn: Turn) -> bool:
        """Whether the policy wrote a turn: tokens of it were sampled; of a row without tokens, every assistant turn."""
        return bool(turn.n_sampled) or (turn.role == "assistant" and not len(self.transcript.tokens))

    @property
    def sampling_known(self) -> bool:
        """Whether the response mask is more than the loss mask by another name."""
        assumed = self.batch.not_given.get(ASSUMED_MASK)
        if assumed is not None:
            return not assumed[self.row]
        return self.batch.response_mask_source != "loss_mask"


def counted(n: int, noun: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def as_arrays(flags_by_row: Mapping[int, Sequence[Flag]], n_rows: int) -> np.ndarray:
    """The ledger's `flags` column: object [B] of tuples of names."""
    column = np.empty(n_rows, object)
    column[:] = [()] * n_rows
    for row, flags in flags_by_row.items():
        column[row] = tuple(dict.fromkeys(flag.name for flag in flags))
    return column
