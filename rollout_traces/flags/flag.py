"""A flag of a rollout, and an alert of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

Severity = Literal["error", "warn", "info"]


@dataclass(frozen=True)
class Flag:
    """A named, explained observation about one rollout.

    Attributes:
        name: snake case.
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
        """Gives plain values, for a trace's metadata."""
        return asdict(self)


@dataclass(frozen=True)
class Alert:
    """An alert that the sink raises in Trackio.

    Attributes:
        title: a few words, the flag's name among them.
        text: one sentence with the share and its threshold.
        level: the flag's severity; Trackio's levels have the same names.
    """

    title: str
    text: str
    level: Severity


def counted(n: int, noun: str) -> str:
    """Writes `1 token`, `2 tokens`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def as_arrays(flags_by_row: Mapping[int, Sequence[Flag]], n_rows: int) -> np.ndarray:
    """Makes the ledger's `flags` column: object [B] of tuples of names."""
    column = np.empty(n_rows, object)
    column[:] = [()] * n_rows
    for row, flags in flags_by_row.items():
        column[row] = tuple(dict.fromkeys(flag.name for flag in flags))
    return column
