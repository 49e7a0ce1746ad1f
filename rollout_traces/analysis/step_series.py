"""A series: one figure per step of a run, with its standard error, over everything or over a part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

Statistic = Literal["mean", "size", "share", "logged", "difference", "covariance", "text"]
Part = tuple[tuple[str, str], ...]
"""Columns and values: () is all rows; several pairs of one column are any of these values."""


class SeriesName(NamedTuple):
    """Name of a series: the figure that it is of.

    Attributes:
        column: a ledger column, `group/...`, `eval-rollout/...`, or the key of a logged scalar.
        value: the value or flag whose share it is; None for a number.
        statistic: how the rows of a step became one figure.
    """

    column: str
    value: str | None = None
    statistic: Statistic = "mean"

    def __str__(self) -> str:
        return self.column if self.value is None else f"{self.column} {self.value}"


@dataclass(frozen=True, eq=False)
class Series:
    """One figure per step.

    Attributes:
        name: what it is the figure of.
        part: the rows that it speaks of, () for all.
        steps: int [n], ascending, without repeats.
        values: float [n], as a person reads them; NaN where unknown.
        errors: float [n], standard error of each value with groups as units; NaN where unknown.
        rows: float [n], rollouts behind each value; empty for logged scalars.
        parent: the column that it is computed from, beside which it is no entry of its own; "" for none.
        about: what a sentence calls it; "" for its name.
    """

    name: SeriesName
    part: Part
    steps: np.ndarray
    values: np.ndarray
    errors: np.ndarray
    rows: np.ndarray = field(default_factory=lambda: np.empty(0))
    parent: str = ""
    about: str = ""
