"""The rows that are meant: the rollouts of a run and split, and those of A and of B."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    current,
    describe,
    written,
)
from rollout_traces.model.text import quoted as in_quotes

NEIGHBOURS = 10
"""Steps before a step that it is compared with."""
LONGEST_WHERE = 200
"""Characters of a condition in a selection's name."""


@dataclass(frozen=True)
class Selection:
    """A set of rollouts.

    Attributes:
        run: the run, None for all.
        split: the split, None for all.
        steps: first and last step, both included, None for open.
        where: a further SQL condition over `rollouts`, empty for none.
        params: its parameters.
        label: what it is called; made from the rest where empty.
    """

    run: str | None = None
    split: str | None = "rollout"
    steps: tuple[int | None, int | None] = (None, None)
    where: str = ""
    params: tuple[Any, ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        """Its name in a sentence: `“run-001”, step 12`."""
        if self.label:
            return self.label
        first, last = self.steps
        parts = [in_quotes(self.run) if self.run else "all runs"]
        if self.split not in (None, "rollout"):
            parts.append(str(self.split))
        if first is not None and first == last:
            parts.append(f"step {first}")
        elif first is not None or last is not None:
            parts.append(f"steps {'' if first is None else first} to {'the last' if last is None else last}")
        if self.where:
            parts.append(f"where {in_quotes(self.where, LONGEST_WHERE)}")
        return ", ".join(parts)

    def condition(self, columns: RolloutColumns) -> tuple[str, list[Any]]:
        """The SQL condition and its parameters."""
        parts: list[str] = [current(columns)]
        params: list[Any] = []
        for name, value in (("run", self.run), ("split", self.split)):
            if value is not None:
                parts.append(f"{name} = ?")
                params.append(value)
        for sign, step in ((">=", self.steps[0]), ("<=", self.steps[1])):
            if step is not None:
                parts.append(f"step {sign} ?")
                params.append(step)
        if self.where:
            parts.append(f"({self.where})")
            params += self.params
        return " and ".join(parts), params


def narrowed(
    which: Selection, where: str, condition: tuple[str, tuple[Any, ...]]
) -> tuple[Selection, Selection]:
    """The rollouts of a selection that a filter, as it is called and in SQL, holds for, and those for which it does not; where that is unknown they are in neither."""
    sql, params = condition
    holding = replace(which, where=sql, params=params, label=f"{which.name}, {where}")
    return holding, replace(holding, where=f"not ({sql})", label=f"{which.name}, not ({where})")


def before(relations: Relations, selection: Selection, columns: RolloutColumns) -> Selection:
    """The ten steps before a selection, fewer where there are fewer, of the same run, split and filter.

    Args:
        relations: where to read.
        selection: has a first step.
        columns: what `rollouts` has.
    """
    scope, params = replace(selection, steps=(None, None)).condition(columns)
    rows = relations.sql(
        f"select distinct step from rollouts where {scope} and step < ? order by step desc limit ?",
        [*params, selection.steps[0], NEIGHBOURS],
    ).to_pydict()["step"]
    first, last = (min(rows), max(rows)) if rows else (None, None)
    if first is None:
        return replace(selection, steps=(0, -1), label="no step before")
    steps = (
        f"the step before ({first})"
        if len(rows) == 1
        else f"the {len(rows)} steps before ({first} to {last})"
    )
    return replace(selection, steps=(first, last), label=steps)


_STRING = re.compile(r"'(?:[^']|'')*'")
_NAME = re.compile(r'"((?:[^"]|"")*)"|\b([A-Za-z_][A-Za-z_0-9]*)\b')


def fixed_by(selection: Selection, columns: RolloutColumns) -> frozenset[str]:
    """The columns that a selection's own condition names: that it differs in them is no news.

    Args:
        selection: a set of rollouts.
        columns: what `rollouts` has.
    """
    found = _NAME.findall(_STRING.sub("''", selection.where))
    named = {quoted.replace('""', '"') or plain for quoted, plain in found}
    return frozenset(named & columns.names)


OUTCOMES = frozenset(("reward_status", "stop_reason", "discard_reason", "answer"))
"""Text columns that say how a rollout came out, which is no part of the rollouts to look into."""


@dataclass(eq=False)
class RunScope:
    """The rollouts of one run and split.

    Attributes:
        relations: where to read.
        run: the run.
        split: the split.
        columns: what `rollouts` has.
        within: first and last step, both included; all by default.
    """

    relations: Relations
    run: str
    split: str
    columns: RolloutColumns = field(default=None)  # type: ignore[assignment]
    within: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.columns is None:
            self.columns = describe(self.relations)

    @property
    def scope(self) -> str:
        """The SQL condition of this run's current rows; takes `params`."""
        steps = "step is not null" if self.within is None else "step between ? and ?"
        return f"run = ? and split = ? and {current(self.columns)} and {steps}"

    @property
    def params(self) -> list[Any]:
        """The parameters of `scope`."""
        return [self.run, self.split, *(self.within or ())]

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
