"""Whether advantages are taken against the mean of their own group."""

from __future__ import annotations

import numpy as np

from rollout_traces.analysis.relations import as_arrays, unit
from rollout_traces.analysis.series import RunSeries, Series

UNCENTRED = "advantage/uncentred"
OFF = 0.05
"""A group's mean advantage is not 0 when it is more than this part of their root mean square."""


def uncentred_query(run: RunSeries) -> str:
    """The SELECT of `uncentred`; takes the run's `params`."""
    groups = (
        f"select step, avg(advantage) as mean, avg(advantage*advantage) as square from rollouts where {run.scope} "
        f"and isfinite(cast(advantage as double)) group by step, {unit(run.columns)} having count(*) > 1"
    )
    off = f"cast(abs(mean) > {OFF}*sqrt(square) as int)"
    return f"select step, avg({off}) as share, count(*) as n from ({groups}) where square > 0 group by step order by step"


def uncentred(run: RunSeries) -> list[Series]:
    """The share of the groups of a step whose advantages do not have the mean 0; empty where none are known."""
    if not run.columns.has("advantage"):
        return []
    found = as_arrays(run.relations.sql(uncentred_query(run), run.params))
    share = found["share"].astype(float)
    steps = found["step"].astype(np.int64)
    return (
        [Series(UNCENTRED, None, None, steps, share, share, found["n"].astype(float))] if len(steps) else []
    )
