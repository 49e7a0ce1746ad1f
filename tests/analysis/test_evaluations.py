"""A falling evaluation leads to the prompts that it lost."""

from __future__ import annotations

from rollout_traces.analysis.curves import SeriesName
from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.evaluations import with_flips
from tests.analysis.builders import table


def entry(before: float, after: float, column: str = "eval-rollout/success") -> Diagnosis:
    return Diagnosis(
        "warn", "s", "", 0, (SeriesName(column),), (), "level", (20, 20), 20, before=before, after=after
    )


def test_the_two_evaluations_are_named():
    relations = table([{"step": step, "split": "eval-rollout"} for step in (0, 10, 20, 30)])
    fell, rose, other = with_flips(
        relations, "run", [entry(0.6, 0.3), entry(0.3, 0.6), entry(0.6, 0.3, "success")]
    )
    assert fell.flips == ("eval-rollout", 10, 20)
    assert (rose.flips, other.flips) == (None, None)
