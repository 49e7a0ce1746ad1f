"""What cannot be answered is said in words: never a wrong number, never a stack trace."""

from __future__ import annotations

import math

import pytest

from rollout_traces.analysis import (
    Selection,
    diagnose,
    explain,
    first_seen,
    flips,
    list_prompts,
    prompt_over_time,
)
from rollout_traces.analysis.timeline import events
from rollout_traces.errors import StoreError
from tests.analysis.builders import normal, steps, table

A, B = Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0))


def noisy(step: int, group: int, sample: int) -> float:
    return normal(step, group, sample)


class TestExplain:
    def test_two_rows(self):
        found = explain(table([{"step": 0, "reward": 1.0}, {"step": 1, "reward": 0.0}]), A, B)
        assert found.findings == ()
        assert "One rollout cannot be compared." in found.remarks

    def test_no_rows_on_one_side_names_the_side(self):
        found = explain(table([{"step": 0, "reward": 1.0}] * 3), A, B)
        assert found.rows == (0, 3)
        assert any("no rollouts" in remark and "step 1" in remark for remark in found.remarks)

    def test_one_group_a_side_is_said(self):
        rows = steps(2, groups=1, reward=lambda step, *_: float(step))
        found = explain(table(rows), A, B)
        assert any("one group only" in remark for remark in found.remarks)
        assert found.findings == ()

    def test_without_groups_every_rollout_counts_and_it_is_said(self):
        rows = [{"step": i % 2, "reward": noisy(i, 0, 0)} for i in range(200)]
        assert any("No groups" in remark for remark in explain(table(rows), A, B).remarks)

    def test_equal_rewards_and_unknown_ones_make_no_finding(self):
        rows = steps(12, reward=0.5, n_sampled=7, mean_logprob=math.nan)
        found = explain(table(rows), Selection("run", "rollout", (11, 11)))
        assert found.findings == ()
        assert found.one_sided == ()

    def test_a_column_that_one_side_has_is_named_and_not_tested(self):
        rows = steps(2, reward=noisy)
        for row in rows:
            row["judge"] = 1.0 if row["step"] == 1 else None
        (said,) = explain(table(rows), A, B).one_sided
        assert said.sentence == "judge: known of 24 of A's 24 rollouts, of none of B's"

    def test_infinite_values_are_left_out_of_means(self):
        rows = steps(2, groups=20, reward=noisy)
        rows[0]["reward"] = math.inf
        found = explain(table(rows), A, B)
        assert all(math.isfinite(f.a) and math.isfinite(f.b) for f in found.findings)

    def test_five_thousand_values_of_a_text_column(self):
        rows = [
            {"step": i % 2, "group": i // 4, "answer": f"answer {i}", "source": f"s{i % 5000}"}
            for i in range(10_000)
        ]
        assert explain(table(rows), A, B).findings == ()

    def test_no_step_before_is_said(self):
        with pytest.raises(StoreError, match="no first step"):
            explain(table(steps(2, reward=1.0)), Selection("run", "rollout"))

    def test_hostile_names_and_values_are_data(self):
        rows = steps(2, groups=20, reward=noisy)
        for row in rows:
            row["source"] = "'; drop table rollouts; --" if row["step"] else "it's"
            row['a "quoted" column'] = 8.0 * row["step"] + noisy(row["step"], row["group"], 1)
        found = explain(table(rows), A, B)
        assert {f.column for f in found.findings} >= {'a "quoted" column'}


class TestDiagnose:
    @pytest.mark.parametrize("n_steps", [0, 1, 2, 5])
    def test_too_few_steps_are_said(self, n_steps: int):
        report = diagnose(table(steps(n_steps, reward=1.0) or [{"step": None}]), "run")
        assert report.diagnoses == ()
        assert report.remarks

    def test_a_run_that_is_not_there(self):
        report = diagnose(table(steps(3, reward=1.0)), "another")
        assert report.remarks == ("No rollouts of split “rollout” in run “another”.",)

    def test_rewards_alone_are_enough_and_the_rest_is_unobserved(self):
        report = diagnose(
            table([{"step": s, "reward": noisy(s, i, 0)} for s in range(30) for i in range(8)]), "run"
        )
        assert report.diagnoses == ()
        assert {"groups", "parts by engine", "policy versions"} <= {
            missing.what for missing in report.unobserved
        }

    def test_all_unknown(self):
        rows = steps(20, reward=None, source=None, n_sampled=None)
        assert diagnose(table(rows), "run").diagnoses == ()

    def test_events_of_a_run_without_any(self):
        assert events(table(steps(12, reward=noisy)), "run") == []

    def test_steps_with_gaps_and_resumes(self):
        rows = steps(30, reward=noisy)
        rows = [
            {**row, "step": row["step"] * 10 + (500 if row["step"] > 20 else 0), "attempt": "1"}
            for row in rows
        ]
        assert [e.kind for e in events(table(rows), "run")] == ["gap"]


class TestFlips:
    def test_no_prompt_keys(self):
        with pytest.raises(StoreError, match="prompt_keys"):
            flips(table([{"step": 0, "success": 1}, {"step": 1, "success": 0}]), B, A)

    def test_sets_that_share_nothing(self):
        rows = steps(2, success=1)
        with pytest.raises(StoreError, match="share no prompt"):
            flips(table(rows), B, A)

    def test_sets_that_differ_are_said(self):
        rows = [{"step": s, "prompt_key": f"p{i + s}", "success": 1} for s in (0, 1) for i in range(20)]
        found = flips(table(rows), B, A)
        assert (found.only_a, found.only_b) == (1, 1)
        assert "sets differ" in found.remarks[0]

    def test_prompts_without_a_key_are_counted(self):
        rows = [
            {"step": s, "prompt_key": f"p{i}" if i else None, "success": 1} for s in (0, 1) for i in range(20)
        ]
        assert flips(table(rows), B, A).keyless == 2

    def test_all_rewards_equal_need_a_threshold(self):
        rows = [{"step": s, "prompt_key": f"p{i}", "reward": 0.5} for s in (0, 1) for i in range(20)]
        with pytest.raises(StoreError, match="threshold"):
            flips(table(rows), B, A)
        assert flips(table(rows), B, A, threshold=0.5).counts["kept"] == 20


class TestPrompts:
    def test_no_prompt_keys(self):
        with pytest.raises(StoreError, match="prompt_keys"):
            list_prompts(table([{"step": 0, "reward": 1.0}]), Selection("run"))

    def test_no_such_prompt(self):
        with pytest.raises(StoreError, match="nothing"):
            prompt_over_time(table(steps(1, reward=1.0)), "nothing")

    def test_an_unknown_order(self):
        with pytest.raises(StoreError, match="Orders"):
            list_prompts(table(steps(1, reward=1.0)), Selection("run"), order="loudest")  # type: ignore[arg-type]

    def test_no_rewards_and_no_groups(self):
        found = list_prompts(
            table([{"step": 0, "prompt_key": "p"}, {"step": 1, "prompt_key": None}]), Selection("run")
        )
        assert (found.total, found.keyless) == (1, 1)
        assert found.prompts[0].solve_rate is None and found.prompts[0].mean_reward is None


class TestFirstSeen:
    def test_five_thousand_values(self):
        rows = [{"step": i // 500, "source": f"source {i % 5000}"} for i in range(10_000)]
        assert first_seen(table(rows), "run") == []

    def test_empty(self):
        assert first_seen(table([{"step": None, "source": "a"}]), "run") == []
