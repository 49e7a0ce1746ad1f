"""Parts of the rollouts beside source and engine: any text column of few values that a run logged, such as a rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rollout_traces.analysis.relations import quoted
from rollout_traces.analysis.series import RunSeries, Series

OUTCOMES = frozenset(("reward_status", "stop_reason", "discard_reason", "answer"))
"""Text columns that say how a rollout came out, which is no part of the rollouts to look into."""
MOST_COLUMNS = 3
MOST_VALUES = 12


def further(run: RunSeries) -> tuple[str, ...]:
    """The text columns of 2 to `MOST_VALUES` values beside the segments, `MOST_COLUMNS` at most."""
    names = [name for name in run.columns.texts if name not in run.segments and name not in OUTCOMES]
    if not names:
        return ()
    counts = ", ".join(f"approx_count_distinct({quoted(name)}) as d{i}" for i, name in enumerate(names))
    row = run.relations.sql(f"select {counts} from rollouts where {run.scope}", run.params).to_pylist()[0]
    few = [name for i, name in enumerate(names) if 2 <= row[f"d{i}"] <= MOST_VALUES]
    return tuple(few[:MOST_COLUMNS])


def parts_further(run: RunSeries) -> Iterator[Series]:
    """The series of every number and share in each value of each of the further columns."""
    for name in further(run):
        beside = tuple(each for each in run.segments if each == "source")
        by_value = replace(run, segments=(*beside, name))
        for series in (*by_value.numbers(), *by_value.shares()):
            if series.segment is not None and series.segment[0] == name:
                yield series
