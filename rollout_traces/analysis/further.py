"""Parts of the rollouts beside source and engine: any text column of few values that a run logged, such as a rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rollout_traces.analysis.series import RunSeries, Series


def parts_further(run: RunSeries) -> Iterator[Series]:
    """The series of every number and share in each value of each of the further columns."""
    for name in run.further:
        beside = tuple(each for each in run.segments if each == "source")
        by_value = replace(run, segments=(*beside, name))
        for series in (*by_value.numbers(), *by_value.shares()):
            if series.segment is not None and series.segment[0] == name:
                yield series
