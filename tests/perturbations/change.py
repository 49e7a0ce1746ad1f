"""A perturbation: what it changes, where, and how much at which step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Part = tuple[tuple[str, str], ...]
"""(column, value) pairs: any of the values of a column, all of the columns; () for all rows."""


@dataclass(frozen=True)
class Change:
    """What a perturbation does to one node of a world's equations.

    Attributes:
        node: the quantity, before anything is computed from it.
        how: `add` to it, `scale` its logarithm, `set` a share of it to `value`, make a share `null`, `tie` a
            share of the groups, or `bias` it by the rollout's length inside its group. Of what was
            planned: `times`, `scale` by a size that stays as drawn, or `again`, begun anew.
        size: by how much where the envelope is 1; a share for `set`, `null` and `tie`.
        value: what is set.
    """

    node: str
    how: str
    size: float
    value: str | float | None = None


@dataclass(frozen=True)
class Perturbation:
    """A change of a run that was drawn.

    Attributes:
        number: its place among the run's perturbations; its random numbers hang on it.
        changes: what it does, at the same rows and steps.
        part: the rows that it touches.
        split: the split whose rows it touches.
        shape: `spike`, `window`, `level` or `ramp`.
        onset: its first step.
        length: steps of a spike, a window, or until a ramp is at its full size.
        n_steps: of the run.
        carriers: rows of each step that it touches; 0 for all of the part.
    """

    number: int
    changes: tuple[Change, ...]
    part: Part
    split: str
    shape: str
    onset: int
    length: int
    n_steps: int
    carriers: int = 0

    @property
    def last(self) -> int:
        """Its last step."""
        return (
            min(self.onset + self.length, self.n_steps) - 1
            if self.shape in ("spike", "window")
            else self.n_steps - 1
        )

    def envelope(self) -> np.ndarray:
        """[n_steps] between 0 and 1: how much of it is there."""
        t = np.arange(self.n_steps)
        if self.shape == "ramp":
            return np.clip((t - self.onset + 1) / self.length, 0.0, 1.0)
        return ((t >= self.onset) & (t <= self.last)).astype(float)
