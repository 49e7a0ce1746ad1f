"""The numbers that a run logged, as series over its steps."""

from __future__ import annotations

import numpy as np

from rollout_traces.analysis.relations import Relations, as_arrays
from rollout_traces.analysis.run_rows import UNKNOWN
from rollout_traces.analysis.step_series import Series, SeriesName


def logged_series(relations: Relations, run: str) -> list[Series]:
    """The run's logged numbers, the last attempt's value where a step was logged twice; superseded ones are left out.

    Of a number that is NaN, infinite or null at some steps, also the share of such steps.

    Args:
        relations: where to read.
        run: the run.
    """
    query = """
        select coalesce(split, '') as split, key, step,
            arg_max(coalesce(cast(value as double), 'nan'), coalesce(attempt, '')) as value
        from metrics where run = ? and step is not null and not coalesce(superseded, false) and key not like 'phase/%'
        group by 1, 2, 3 order by 1, 2, 3"""
    found = as_arrays(relations.sql(query, [run]))
    if not len(found["step"]):
        return []
    names = np.asarray(
        [
            f"{s}/{k}" if s and not str(k).startswith(s) else str(k)
            for s, k in zip(found["split"], found["key"], strict=True)
        ]
    )
    starts = np.flatnonzero(np.r_[True, names[1:] != names[:-1]])
    series = []
    for start, stop in zip(starts, np.r_[starts[1:], len(names)], strict=True):
        column = str(names[start])
        steps, values = found["step"][start:stop].astype(np.int64), found["value"][start:stop].astype(float)
        known = np.isfinite(values)
        if not known.any():
            continue
        series.append(_series(SeriesName(column, None, "logged"), steps[known], values[known]))
        if not known.all():
            series.append(_series(SeriesName(column, UNKNOWN, "share"), steps, (~known).astype(float)))
    return series


def _series(name: SeriesName, steps: np.ndarray, values: np.ndarray) -> Series:
    return Series(name, (), steps, values, np.zeros(len(values)))
