"""The rollouts that are looked at: a run and split, some of its steps, and the columns that part them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    current,
    describe,
    quoted,
    written,
)

SEGMENTS = ("source", "engine")
"""Columns by which a change is looked for in parts of a step."""
OUTCOMES = frozenset(("reward_status", "stop_reason", "discard_reason", "answer"))
"""Text columns that say how a rollout came out, which is no part of the rollouts to look into."""
MOST_FURTHER = 3
"""Further columns by which the rollouts are parted ..."""
MOST_PARTS = 12
"""... each of at most so many values."""


@dataclass(eq=False)
class RunScope:
    """The rollouts of one run and split.

    Attributes:
        relations: where to read.
        run: the run.
        split: the split.
        columns: what `rollouts` has.
        within: first and last step, both included; all by default.
        where: a further SQL condition with its parameters.
        segments: the segment columns that there are.
    """

    relations: Relations
    run: str
    split: str
    columns: RolloutColumns = field(default=None)  # type: ignore[assignment]
    within: tuple[int, int] | None = None
    where: tuple[str, tuple[Any, ...]] = ("", ())
    segments: tuple[str, ...] = SEGMENTS

    def __post_init__(self) -> None:
        if self.columns is None:
            self.columns = describe(self.relations)
        self.segments = tuple(name for name in self.segments if self.columns.has(name))

    @property
    def scope(self) -> str:
        """The SQL condition of this run's current rows; takes `params`."""
        steps = "step is not null" if self.within is None else "step between ? and ?"
        further = f" and ({self.where[0]})" if self.where[0] else ""
        return f"run = ? and split = ? and {current(self.columns)} and {steps}{further}"

    @property
    def params(self) -> list[Any]:
        """The parameters of `scope`."""
        return [self.run, self.split, *(self.within or ()), *self.where[1]]

    def by_step(self, what: str, condition: str = "true") -> str:
        """A SELECT of something at each step of the run, its values written into it.

        Args:
            what: the expressions, with names.
            condition: which rows.
        """
        scope = self.with_values(self.scope)
        return f"select step, {what} from rollouts where {scope} and {condition} group by step order by step"

    def with_values(self, query: str) -> str:
        """A query that takes `params`, with their values written into it."""
        return written(query, self.params)

    @cached_property
    def further(self) -> tuple[str, ...]:
        """The text columns of 2 to `MOST_PARTS` values beside the segments, `MOST_FURTHER` at most."""
        names = [name for name in self.columns.texts if name not in self.segments and name not in OUTCOMES]
        if not names:
            return ()
        counts = ", ".join(f"approx_count_distinct({quoted(name)}) as d{i}" for i, name in enumerate(names))
        query = f"select {counts} from rollouts where {self.scope}"
        row = self.relations.sql(query, self.params).to_pylist()[0]
        few = [name for i, name in enumerate(names) if 2 <= row[f"d{i}"] <= MOST_PARTS]
        return tuple(few[:MOST_FURTHER])
