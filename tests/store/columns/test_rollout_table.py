from __future__ import annotations

import pyarrow as pa

from rollout_traces.store.columns.engine import Engine
from rollout_traces.store.columns.rollout_table import superseded_from, superseded_sql


class TestSuperseded:
    def test_a_resume_supersedes_the_steps_that_it_writes_anew(self) -> None:
        first = {(1, "rollout", "a"): 1, (1, "rollout", "b"): 5}
        assert superseded_from(first) == {(1, "rollout", "a"): 5}

    def test_an_evaluation_of_weights_that_were_thrown_away_goes_with_them(self) -> None:
        first = {(1, "rollout", "a"): 1, (1, "eval-rollout", "a"): 4, (1, "rollout", "b"): 5}
        assert superseded_from(first)[(1, "eval-rollout", "a")] == 5

    def test_the_earliest_step_that_a_later_attempt_wrote_counts(self) -> None:
        first = {(1, "rollout", "a"): 1, (1, "rollout", "b"): 5, (1, "rollout", "c"): 3}
        assert superseded_from(first) == {(1, "rollout", "a"): 3, (1, "rollout", "b"): 3}

    def test_runs_do_not_supersede_each_other(self) -> None:
        assert superseded_from({(1, "rollout", "a"): 1, (2, "rollout", "b"): 1}) == {}

    def test_rows_from_that_step_on_are_marked(self) -> None:
        rows = pa.table(
            {"run_no": [1] * 3, "split": ["rollout"] * 3, "attempt": ["a", "a", None], "step": [4, 5, 6]}
        )
        for since, marked in (({(1, "rollout", "a"): 5}, [False, True, False]), ({}, [False] * 3)):
            found = Engine().run(f"SELECT {superseded_sql(since)} AS m FROM rows", (), {"rows": rows})
            assert found["m"].to_pylist() == marked
