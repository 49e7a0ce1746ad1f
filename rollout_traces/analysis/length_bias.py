"""Whether longer answers are rewarded inside groups, since when, and how much longer they became."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.recomputed import LATE
from rollout_traces.analysis.relations import known_number
from rollout_traces.analysis.series import RunSeries, Series

FEWEST_STEPS = 20
BIASED = 0.15
"""Correlation of reward and length inside groups that is a bias when lengths grow."""
SUREST = 8.0
"""A rise of the correlation by so many standard errors is a change of what is rewarded, whether lengths grew or not."""
WINDOW = 20
"""Steps before and after its rise over which the correlation is pooled."""
EARLY = 10
"""Steps before its rise that lengths are compared with."""


@dataclass(frozen=True)
class LengthBias:
    """The correlation of reward and sampled tokens inside groups, where it rose the most.

    Attributes:
        step: the first step of the steps that it is of.
        last: the last of them.
        rose: whether it rose at `step`; the whole run is meant where not.
        gain: the rise over its standard error; 0 where it did not rise.
        correlation: pooled over the steps.
        z: of the correlation, by Fisher's transform.
        grown: mean length of the last steps over that of the steps up to `step`.
        lengths: first and last of those steps, and the first of the last ones.
    """

    step: int
    last: int
    rose: bool
    gain: float
    correlation: float
    z: float
    grown: float
    lengths: tuple[int, int, int]

    @property
    def sure(self) -> bool:
        """Whether reward and length go together at all."""
        return self.correlation >= BIASED and self.z >= 5


def length_bias(correlation: Series | None, lengths: Series | None) -> LengthBias | None:
    """Looks for the step at which reward and length begin to go together.

    Args:
        correlation: `RunSeries.length_correlation`.
        lengths: mean sampled tokens of each step.
    """
    if correlation is None or lengths is None or len(correlation.values) < FEWEST_STEPS:
        return None
    start, stop, gain, r, z = _onset(correlation.values, correlation.rows)
    step = int(correlation.steps[start])
    begun = int(np.searchsorted(lengths.steps, step))
    low = max(0, begun - EARLY)
    early = float(np.mean(lengths.values[low : begun + 1]))
    return LengthBias(
        step=step,
        last=int(correlation.steps[stop - 1]),
        rose=start > 0,
        gain=gain,
        correlation=r,
        z=z,
        grown=float(np.mean(lengths.values[-LATE:])) / max(early, 1e-9),
        lengths=(int(lengths.steps[low]), int(lengths.steps[begun]), int(lengths.steps[-LATE])),
    )


def length_bias_queries(run: RunSeries, bias: LengthBias) -> tuple[str, str]:
    """SELECTs of the correlation with its z, and of the lengths."""
    clipped = "atanh(greatest(least(correlation, 0.99), -0.99))"
    first, last, late = bias.lengths
    length = run.by_step(f"avg({known_number('n_sampled')}) as length")
    return (
        f"select tanh(sum({clipped}*freedom) / sum(freedom)) as correlation, sum({clipped}*freedom) / sqrt(sum(freedom)) as z "
        f"from ({run.with_values(run.length_correlation_query)}) where step between {bias.step} and {bias.last}",
        f"select avg(length) filter (step >= {late}) as late, avg(length) filter (step between {first} and {last}) as early, "
        f"late / early as grown from ({length})",
    )


def _onset(values: np.ndarray, freedom: np.ndarray) -> tuple[int, int, float, float, float]:
    """Where the correlation rises the most, where the steps from there end, the rise, its mean over them, its z.

    Over the whole series, from its beginning, where no step stands out.
    """
    sums, weights = (
        np.cumsum(np.r_[0, np.arctanh(np.clip(values, -0.99, 0.99)) * freedom]),
        np.cumsum(np.r_[0, freedom]),
    )
    best = (
        0,
        len(values),
        0.0,
        float(np.tanh(sums[-1] / weights[-1])),
        float(sums[-1] / np.sqrt(weights[-1])),
    )
    largest = 5.0
    for at in range(8, len(values) - 8):
        stop, start = min(at + WINDOW, len(values)), max(0, at - WINDOW)
        after, before = weights[stop] - weights[at], weights[at] - weights[start]
        level, earlier = (sums[stop] - sums[at]) / after, (sums[at] - sums[start]) / before
        gain = float((level - earlier) / np.sqrt(1 / after + 1 / before))
        if gain > largest:
            largest, best = gain, (at, stop, gain, float(np.tanh(level)), float(level * np.sqrt(after)))
    return best
