"""The grid of prompts by evaluations, against counts made by hand."""

from __future__ import annotations

import pytest

from rollout_traces.analysis.flip_grid import flip_grid
from rollout_traces.errors import StoreError
from tests.analysis.builders import table


def trial(step, key, success, **more):
    return {
        "split": "eval-rollout",
        "step": step,
        "prompt_key": key,
        "success": success,
        "id": f"{step}{key}{success}",
        **more,
    }


def test_prompts_that_flip_stand_first_with_a_rollout_of_each_outcome():
    rows = [trial(step, "flips", int(step != 10)) for step in (0, 10, 20)]
    rows += [trial(step, "never", 0) for step in (0, 10, 20)]
    rows += [trial(0, "mixed", 1), trial(0, "mixed", 0)]
    grid = flip_grid(table(rows), ["run"])
    assert grid.evaluations == (("run", 0), ("run", 10), ("run", 20))
    assert [(row.prompt_key, row.flips) for row in grid.rows] == [("flips", 2), ("never", 0), ("mixed", 0)]
    assert grid.rows[0].cells[1].failed_id == "10flips0" and grid.rows[0].cells[1].solved_id is None
    mixed = grid.rows[2].cells
    assert (mixed[0].solved, mixed[0].trials) == (1, 2) and mixed[1] is None


def test_two_runs_stand_beside_each_other_at_each_step():
    rows = [
        trial(step, "p", int(run == "run"), run=run, id=f"{run}{step}")
        for step in (0, 10)
        for run in ("run", "b")
    ]
    grid = flip_grid(table(rows), ["run", "b"])
    assert grid.evaluations == (("run", 0), ("b", 0), ("run", 10), ("b", 10))
    assert grid.rows[0].flips == 3


def test_without_prompt_keys_it_says_what_to_log():
    with pytest.raises(StoreError, match="prompt_keys"):
        flip_grid(table([{"split": "eval-rollout", "step": 0, "success": 1}]), ["run"])
