"""Every prompt at every evaluation: a grid of solved shares, the prompts that flipped most often first."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollout_traces.analysis.evaluations import solved_sql
from rollout_traces.analysis.relations import Relations, current, describe
from rollout_traces.analysis.selections import Selection

MOST_EVALUATIONS = 40
MOST_PROMPTS = 200


@dataclass(frozen=True)
class Cell:
    """One prompt at one evaluation.

    Attributes:
        solved: trials that solved it.
        trials: trials with a known outcome.
        solved_id: a kept rollout that solved it, None where none was kept.
        failed_id: a kept rollout that did not.
    """

    solved: int
    trials: int
    solved_id: str | None
    failed_id: str | None


@dataclass(frozen=True)
class GridRow:
    """One prompt over the evaluations.

    Attributes:
        prompt_key: the prompt.
        prompt: its preview, None where no trace shows it.
        cells: one an evaluation, None where it was not asked.
        flips: how often it went from mostly solved to mostly not, or back, from one evaluation to the next that asked it.
    """

    prompt_key: str
    prompt: str | None
    cells: tuple[Cell | None, ...]
    flips: int


@dataclass(frozen=True)
class FlipGrid:
    """Prompts by evaluations.

    Attributes:
        evaluations: run and step of each column.
        rows: prompts, most flips first, then the least solved.
        n_prompts: how many there are in all.
        n_evaluations: how many there are in all; the last ones are shown.
        solved_by: what counts as solved, in words.
    """

    evaluations: tuple[tuple[str, int], ...]
    rows: tuple[GridRow, ...]
    n_prompts: int
    n_evaluations: int
    solved_by: str


def flip_grid(relations: Relations, runs: Sequence[str], split: str = "eval-rollout") -> FlipGrid:
    """The grid of one run's evaluations, or of several runs', step by step.

    Args:
        relations: where to read.
        runs: the runs, in the order of their columns at one step.
        split: the evaluation split.

    Raises:
        StoreError: no prompt keys, or neither success nor reward is known.
    """
    c = describe(relations)
    sides = [Selection(run, split) for run in runs]
    solved, said = solved_sql(relations, c, sides[0], sides[-1], None)
    query = f"""
        select key, run, step, count(s) as n, sum(s) as k, any_value(prompt) as prompt,
            min(case when s = 1 then id end) as solved_id, min(case when s = 0 then id end) as failed_id
        from (select prompt_key as key, run, step, {solved} as s, cast({c.expression("id")} as varchar) as id,
                {c.expression("prompt")} as prompt
            from rollouts where {current(c)} and split = ? and list_contains(?, run) and prompt_key is not null)
        group by key, run, step having count(s) > 0"""
    found = relations.sql(query, [split, list(runs)]).to_pylist()
    columns_of = sorted({(row["step"], runs.index(row["run"])) for row in found})
    shown = columns_of[-MOST_EVALUATIONS:]
    at = {place: i for i, place in enumerate(shown)}
    prompts: dict[str, list[Cell | None]] = {}
    previews: dict[str, str] = {}
    for row in found:
        place = (row["step"], runs.index(row["run"]))
        cells = prompts.setdefault(row["key"], [None] * len(shown))
        if row["prompt"]:
            previews.setdefault(row["key"], row["prompt"])
        if place in at:
            cells[at[place]] = Cell(int(row["k"]), int(row["n"]), row["solved_id"], row["failed_id"])
    rows = [GridRow(key, previews.get(key), tuple(cells), _flips(cells)) for key, cells in prompts.items()]
    rows.sort(key=lambda row: (-row.flips, _share(row.cells), row.prompt_key))
    named = tuple((runs[which], int(step)) for step, which in shown)
    return FlipGrid(named, tuple(rows[:MOST_PROMPTS]), len(rows), len(columns_of), said)


def _flips(cells: Sequence[Cell | None]) -> int:
    mostly = [2 * cell.solved >= cell.trials for cell in cells if cell is not None]
    return sum(a != b for a, b in itertools.pairwise(mostly))


def _share(cells: Sequence[Any]) -> float:
    asked = [cell for cell in cells if cell is not None]
    return sum(cell.solved for cell in asked) / max(sum(cell.trials for cell in asked), 1)
