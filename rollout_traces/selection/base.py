"""How a cap is spent: what a policy sees and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rollout_traces.ledger.columns import Ledger


@dataclass(frozen=True)
class Selected:
    """One row that becomes a trace.

    Attributes:
        row: its row in the hand-over.
        selected_by: why: `random`, `best`, `worst`, `alarm:longest`, ...
        probability: chance of the row having been chosen, for `random` ones the share they stand for.
    """

    row: int
    selected_by: str
    probability: float


@dataclass(frozen=True, eq=False)
class SelectionRequest:
    """What a policy sees.

    Attributes:
        ledger: every row of the hand-over, flags included.
        limit: how many rows may be chosen: the cap less what earlier calls of the step took.
        seed: what random choices are drawn from; equal seeds choose equally.
        traced_prompts: prompt key -> number of times it was traced before in this run.
        step: the trainer's global step.
        split: `rollout` or `eval-rollout`.
    """

    ledger: Ledger
    limit: int
    seed: int
    traced_prompts: Mapping[str, int] = field(default_factory=dict)
    step: int = 0
    split: str = "rollout"

    def generator(self) -> np.random.Generator:
        """A random generator of this run, step and split."""
        return np.random.default_rng([self.seed, self.step & 0xFFFFFFFF, len(self.split)])


class SelectionPolicy(Protocol):
    """Chooses at most `request.limit` different rows."""

    def __call__(self, request: SelectionRequest) -> Sequence[Selected]:
        """Chooses rows, in the order they should be logged."""
        ...
