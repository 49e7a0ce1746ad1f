"""A column that changed its level at a step, and the part of the rollouts in which it did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A part of the rollouts.

    Attributes:
        column: `source`, `engine`, or another text column of few values.
        values: the values that it holds.
    """

    column: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.column} {' and '.join(self.values)}"


@dataclass(frozen=True)
class Moved:
    """A column that changed its level at a step.

    Attributes:
        column: ledger column, group measure or logged key.
        value: the value whose share changed; None for a mean.
        step: first step of the new level.
        last: last step of the new level, None where it lasts.
        before: level in the steps before, in `part`.
        after: level from `step` on, in `part`.
        size: jump in units of step-to-step noise.
        p: probability of such a jump in the series by chance.
        part: where it happened, None for everywhere.
        elsewhere: level after, outside of `part`; None where there is no outside.
        rows: rollouts behind `after`.
        compared: first and last step of what stands for before, and of what stands for after.
    """

    column: str
    value: str | None
    step: int
    last: int | None
    before: float
    after: float
    size: float
    p: float
    part: Part | None
    elsewhere: float | None
    rows: int
    compared: tuple[int, int, int, int]

    @property
    def name(self) -> str:
        """Column and value."""
        return self.column if self.value is None else f"{self.column} {self.value}"

    @property
    def rises(self) -> bool:
        """Whether it went up."""
        return self.after > self.before
