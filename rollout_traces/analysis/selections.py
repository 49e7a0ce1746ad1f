"""Which rows are meant by A and by B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollout_traces.analysis.relations import Relations, RolloutColumns, current

NEIGHBOURS = 10
"""Steps before a step that it is compared with."""


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
        """What it is called."""
        if self.label:
            return self.label
        first, last = self.steps
        parts = [self.run or "all runs"]
        if self.split not in (None, "rollout"):
            parts.append(str(self.split))
        if first is not None and first == last:
            parts.append(f"step {first}")
        elif first is not None or last is not None:
            parts.append(f"steps {'' if first is None else first} to {'the last' if last is None else last}")
        if self.where:
            parts.append(f"where {self.where}")
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


def before(
    relations: Relations, selection: Selection, columns: RolloutColumns, n: int = NEIGHBOURS
) -> Selection:
    """The n steps before a selection, of the same run, split and filter.

    Args:
        relations: where to read.
        selection: has a first step.
        columns: what `rollouts` has.
        n: how many steps; fewer where there are fewer.
    """
    scope, params = replace(selection, steps=(None, None)).condition(columns)
    rows = relations.sql(
        f"select distinct step from rollouts where {scope} and step < ? order by step desc limit ?",
        [*params, selection.steps[0], n],
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


def undisturbed(
    relations: Relations, selection: Selection, columns: RolloutColumns, n: int = NEIGHBOURS
) -> tuple[Selection, str]:
    """The n steps before a selection, or before a change that is still young at it.

    A change five steps ago fills half of the ten steps before, so that the step looks like its neighbours. So
    changes are looked for in the steps around; where one lies among the neighbours, the steps from it on are
    left out.

    Args:
        relations: where to read.
        selection: a step or a range of steps of one run and split.
        columns: what `rollouts` has.
        n: how many steps.

    Returns:
        The steps to compare with, and in words what was left out and why; empty where nothing was.
    """
    from rollout_traces.analysis.change_points import change_points, controlled
    from rollout_traces.analysis.series import RunSeries

    plain = before(relations, selection, columns, n)
    first, low = selection.steps[0], plain.steps[0]
    if first is None or low is None or selection.run is None or selection.split is None:
        return plain, ""
    around = (low - 2 * n, (selection.steps[1] if selection.steps[1] is not None else first) + n)
    where = (selection.where, selection.params)
    run = RunSeries(relations, selection.run, selection.split, columns, around, where, ())
    series = [*run.numbers(), *run.shares()]
    found = controlled([change for each in series for change in change_points(each)], max(len(series), 1))
    young = [
        change
        for change in found
        if low < change.step < first and (change.last is None or change.last >= first)
    ]
    if not young:
        return plain, ""
    change = min(young, key=lambda each: each.step)
    earlier = before(relations, replace(selection, steps=(change.step, None)), columns, n)
    if earlier.steps[1] is None or earlier.steps[1] < 0:
        return plain, ""
    only = change.step == first - 1
    steps = f"Step {change.step} is" if only else f"Steps {change.step} to {first - 1} are"
    left_out = f"{steps} left out of what it is compared with"
    return earlier, f"{left_out}: {change.series.name} changed at step {change.step}."


def sql_union(
    columns: RolloutColumns, sides: Sequence[tuple[int, Selection]], what: str
) -> tuple[str, list[Any]]:
    """One SELECT over both sides with the side as the column `side`; a row of both counts on both."""
    parts, params = [], []
    for side, selection in sides:
        condition, given = selection.condition(columns)
        parts.append(f"select {side} as side, {what} from rollouts where {condition}")
        params += given
    return " union all ".join(parts), params
