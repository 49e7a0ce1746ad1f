"""What needs no statistics: numbers that are NaN or end, and rewards that are all equal."""

from __future__ import annotations

import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.curves import FEWEST_BESIDE
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import drawn, logged

NAN = float("nan")


def said(values: list[float]) -> list[tuple[str, str]]:
    report = diagnose(logged(steps(40), values), "run")
    return [(each.severity, each.sentence) for each in report.diagnoses if "train/loss" in each.sentence]


class TestNumbers:
    def test_that_are_nan_for_some_steps_are_an_error_with_first_and_last(self):
        """Seen once: a gradient that was NaN for seven steps of sixty, and nothing said so."""
        values = [0.1 * (i % 3) for i in range(40)]
        values[20:27] = [NAN] * 7
        assert (
            "error",
            "what the trainer logs is no longer a number: “train/loss”, from step 20 to 26.",
        ) in said(values)

    def test_that_are_nan_at_one_step_are_too(self):
        values = [0.1 * (i % 3) for i in range(40)]
        values[30] = NAN
        assert ("error", "what the trainer logs is no longer a number: “train/loss”, at step 30.") in said(
            values
        )

    def test_that_are_there_at_times_from_the_start_are_meant_so(self):
        values = [1.0 + i % 3 if i % 10 == 0 else NAN for i in range(40)]
        assert not said(values)
        values = [0.1 * (i % 3) for i in range(40)]
        values[FEWEST_BESIDE - 1] = NAN
        assert not [each for each in said(values) if each[0] == "error"]


class TestFewSteps:
    @pytest.mark.parametrize(
        ("n", "remark"),
        [
            (1, "1 step is too few to look for changes; 6 are needed."),
            (5, "5 steps are too few to look for changes; 6 are needed."),
            (8, "8 steps show what groups are sure of alone; of logged scalars 12 are needed."),
        ],
    )
    def test_what_was_not_looked_at_is_said_and_not_that_nothing_stands_out(self, n, remark):
        report = diagnose(table(steps(n, n_sampled=lambda s, g, i: 50 + drawn(s, g, i))), "run")
        assert report.remarks == (remark,)
        assert ("Nothing stands out." in repr(report)) == (n >= 6)

    def test_a_plain_fall_within_ten_steps_is_said(self):
        def thought(s: int, g: int, i: int) -> float:
            return (200 if s < 6 else 0) + 5 * drawn(s, g, i)

        report = diagnose(table(steps(10, groups=10, n_thinking=thought)), "run")
        assert any(str(each.series[0]) == "n_thinking" and each.step == 6 for each in report.diagnoses)

    def test_scalars_of_a_run_without_rollouts_are_looked_at(self):
        values = [0.1 * drawn(s, 0, 0) + (5.0 if s >= 20 else 0.0) for s in range(40)]
        rows = [row | {"split": "eval-rollout"} for row in steps(1)]
        report = diagnose(logged(rows, values), "run")
        assert (report.n_rows, report.n_steps) == (0, 40)
        assert report.diagnoses[0].severity == "error" and report.diagnoses[0].step == 20
        assert report.remarks == ("No rollouts: what the trainer logged is all that is looked at.",)
