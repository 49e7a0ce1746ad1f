"""Which entries `explain` prints."""

from __future__ import annotations

from rollout_traces.analysis.diagnosis import Diagnosis, Severity
from rollout_traces.cli.explain import unfolded


def entry(severity: Severity, *, is_sure: bool = True) -> Diagnosis:
    return Diagnosis(severity, "s", "", 0, (), (), "level", (0, 0), 0, is_sure=is_sure)


def test_every_warning_and_ten_entries_with_three_that_may_be_chance():
    """Seen once: 38 entries of one run, most of them “perhaps by chance”."""
    errors, sure, doubtful = ([entry("error")] * 4, [entry("info")] * 9, [entry("info", is_sure=False)] * 9)
    assert unfolded([*errors, *doubtful, *sure]) == [*errors, *doubtful[:3], *sure[:3]]
    assert unfolded([entry("warn")] * 14) == [entry("warn")] * 14
    assert unfolded(doubtful) == doubtful[:3]
