"""Groups of a step as rows of their own: ties, how far their rewards lie apart, their size and their prompts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rollout_traces.analysis.curves import SeriesName
from rollout_traces.analysis.run_rows import FEWEST_HITS, MOST, ROUNDING, RowMeasure, RunRows
from rollout_traces.ledger.groups import TIE_TOLERANCE

LENGTH = "n_sampled"
OF_WHOLE_GROUPS = ("group/size_mean", "group/prompts")
"""Measures of whole groups, unknown where a part cuts through groups."""

AGAIN = "again"
JUST_BEFORE = 6
"""Steps before one, in two of which a prompt that is asked again and again was asked too; of an epoch that is longer none is."""


def group_rows(rows: RunRows) -> RunRows | None:
    """The groups of a run as rows, parted by the columns that are one value in a group; None without groups.

    Args:
        rows: the rollouts.
    """
    n_units = int(rows.unit.max(initial=-1)) + 1
    if not n_units or n_units == len(rows.unit):
        return None
    size = np.bincount(rows.unit, minlength=n_units)
    whole = [name for name in rows.parts if name not in rows.cutting]
    parts = {name: (rows.parts[name][0][rows.first], rows.parts[name][1]) for name in whole}
    groups = RunRows(rows.steps, rows.at[rows.first], np.arange(n_units), parts, weight=np.ones(n_units))
    if np.ptp(size):
        groups.measures.append(_of("group/size_mean", size.astype(float)))
    _prompts(rows, groups, n_units)
    means = [measure for measure in rows.measures if measure.name.statistic == "mean"]
    by_name = {measure.name.column: measure for measure in means if measure.name.value is None}
    reward = by_name.get("reward")
    if reward is None:
        return groups
    values = reward.read()
    apart, count = _apart(rows, values, n_units)
    several = count > 1
    groups.measures.append(_of("group/tie_share", _tied(rows, values, n_units)))
    spread = np.sqrt(np.bincount(rows.unit, apart**2, n_units) / np.maximum(count, 1))
    groups.measures.append(_of("group/reward_std_mean", np.where(several, spread, np.nan)))
    if (length := by_name.get(LENGTH)) is not None:
        _covariance(rows, groups, apart, length.read(), n_units)
    for name in ("success", "advantage"):
        if name in by_name:
            _correlation(rows, groups, values, by_name[name], n_units)
    return groups


def _of(name: str, values: np.ndarray) -> RowMeasure:
    return RowMeasure(SeriesName(name), _constant(values))


def _constant(values: np.ndarray) -> Callable[[], np.ndarray]:
    return lambda: values


def _tied(rows: RunRows, values: np.ndarray, n_units: int) -> np.ndarray:
    """float [G]: whether all of a group's values are one; NaN for a group of fewer than two."""
    known = np.isfinite(values)
    high, low = np.full(n_units, -MOST), np.full(n_units, MOST)
    np.maximum.at(high, rows.unit[known], values[known])
    np.minimum.at(low, rows.unit[known], values[known])
    wide = np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    several = np.bincount(rows.unit, known, n_units) > 1
    return np.where(several, high - low <= TIE_TOLERANCE * wide, np.nan)


def _prompts(rows: RunRows, groups: RunRows, n_units: int) -> None:
    """Adds the share of groups whose prompt an earlier group of the step has too, or groups of two of the steps just before, and of groups of several prompts."""
    if not len(rows.prompt) or (rows.prompt < 0).any():
        return
    high, low = np.full(n_units, -1), np.full(n_units, np.iinfo(np.int64).max)
    np.maximum.at(high, rows.unit, rows.prompt)
    np.minimum.at(low, rows.unit, rows.prompt)
    n_prompts = int(rows.prompt.max()) + 1
    cell = groups.at.astype(np.int64) * n_prompts + high
    again = sum(np.isin(cell - back * n_prompts, cell).astype(int) for back in range(1, JUST_BEFORE + 1)) >= 2
    of_step = np.ones(n_units, bool)
    of_step[np.unique(cell, return_index=True)[1]] = False
    again |= of_step
    for value, held, is_known in (
        (AGAIN, again, groups.at >= JUST_BEFORE),  # what was asked before the run nobody knows
        ("several", high != low, np.ones(n_units, bool)),
    ):
        if held.sum() >= FEWEST_HITS:
            name = SeriesName("group/prompts", value, "share")
            groups.measures.append(
                RowMeasure(name, _constant(np.where(is_known, held.astype(float), np.nan)))
            )


def _covariance(rows: RunRows, groups: RunRows, apart: np.ndarray, length: np.ndarray, n_units: int) -> None:
    """Adds the product of reward and length inside each group, in standard units of the run: their covariance."""
    beside, count = _apart(rows, length, n_units)
    scale = float(np.sqrt((apart**2).mean() * (beside**2).mean()))
    if scale > 0 and np.isfinite(scale):
        product = np.bincount(rows.unit, apart * beside, n_units) / np.maximum(count, 1) / scale
        values = np.where(count > 1, product, np.nan)
        groups.measures.append(RowMeasure(SeriesName(LENGTH, None, "covariance"), _constant(values)))


def _correlation(
    rows: RunRows, groups: RunRows, reward: np.ndarray, measure: RowMeasure, n_units: int
) -> None:
    """Adds the correlation of reward and another measure inside each group in which both differ, unless one says what the other does."""
    other = measure.read()
    known = np.isfinite(reward) & np.isfinite(other)
    one, two = (_apart(rows, np.where(known, each, np.nan), n_units)[0] for each in (reward, other))
    product, *squares = (np.bincount(rows.unit, each, n_units) for each in (one * two, one**2, two**2))
    differ = np.minimum(*squares) > 0
    values = np.full(n_units, np.nan)
    values[differ] = product[differ] / np.sqrt(squares[0][differ] * squares[1][differ])
    if differ.any() and np.nanmin(values) < 1 - ROUNDING:
        groups.measures.append(
            RowMeasure(SeriesName(measure.name.column, None, "correlation"), _constant(values))
        )


def _apart(rows: RunRows, values: np.ndarray, n_units: int) -> tuple[np.ndarray, np.ndarray]:
    """How far each row lies from the mean of its group, float [N], 0 where it is unknown; and how many each group knows, float [G]."""
    known = np.isfinite(values)
    count = np.bincount(rows.unit, known, n_units)
    mean = np.bincount(rows.unit, np.where(known, values, 0.0), n_units) / np.maximum(count, 1)
    return np.where(known, values - mean[rows.unit], 0.0), count
