"""A falling evaluation leads to the prompts that it lost."""

from __future__ import annotations

from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.flips_link import with_flips
from rollout_traces.analysis.step_series import SeriesName
from tests.analysis.builders import table


def entry(before: float, after: float, column: str = "eval-rollout/success") -> Diagnosis:
    return Diagnosis(
        "warn", "s", "", 0, (SeriesName(column),), (), "level", (20, 20), 20, before=before, after=after
    )


def test_the_command_names_the_two_evaluations():
    relations = table([{"step": step, "split": "eval-rollout"} for step in (0, 10, 20, 30)])
    fell, rose, other = with_flips(
        relations, "run", [entry(0.6, 0.3), entry(0.3, 0.6), entry(0.6, 0.3, "success")]
    )
    assert (
        fell.advice == "Which prompts were lost: rollout-traces flips run --steps 10:20 --split eval-rollout"
    )
    assert (rose.advice, other.advice) == ("", "")
