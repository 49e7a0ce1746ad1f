"""What moved, when, and in which part of the rollouts: change points of one column put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.advantages import uncentred
from rollout_traces.analysis.change_points import ChangePoint, change_points, controlled, is_compared
from rollout_traces.analysis.further import parts_further
from rollout_traces.analysis.logged import logged_series
from rollout_traces.analysis.movement import Moved, Part
from rollout_traces.analysis.recomputed import exact
from rollout_traces.analysis.series import RunSeries, Series

SAME = 3
"""Changes of one column within so many steps are one."""
WARM_UP = 5
"""Changes before the run's step of this place are how a run starts."""
LONGEST_ONSET = 10
"""Steps that something new may be rare before its growth is seen."""
WARM_UP_OF_VERSIONS = 12
"""Steps within which an asynchronous run takes up its staleness."""
MOST_ELSEWHERE = 0.25
"""A change belongs to some parts alone where it is at most this much of theirs in every other part."""
SHARP = 0.6
"""A part is named where its jump is at least this much of the largest of any part: a source holds a language that failed."""
HEADLINES = frozenset({"reward", "success", "n_sampled", "mean_logprob", "group/tie_share"})
"""The numbers that a run is read by; they share no chance of error with the many others."""
NOT_FOLLOWED = ("time/", "timeperf/")
"""Logged numbers in which no change is looked for: seconds depend on the machine."""


@dataclass(frozen=True, eq=False)
class Movements:
    """What moved in a run.

    Attributes:
        moved: one entry a column and step, steps ascending.
        n_series: how many series were looked at.
        series: every series by column, value and segment.
    """

    moved: tuple[Moved, ...]
    n_series: int
    series: dict[tuple[str, str | None, tuple[str, str] | None], Series]

    def get(self, column: str, value: str | None = None) -> Series | None:
        """The series of a column over all rollouts."""
        return self.series.get((column, value, None))


FURTHER_LEVEL = 0.02
"""The same for the parts by further columns, which are many and of few rollouts."""
LEVEL = 0.6
"""Nominal chance of any false change in a run, a third each for `HEADLINES`, all rollouts, and parts.

The p of one change is an upper bound: in 1,500 series of white noise one was below 0.05, with autocorrelation
0.5 eleven; 50 healthy runs of 100 steps had no false change of all rollouts or of a part at this level.
"""


def movements(run: RunSeries, level: float = LEVEL) -> Movements:
    """Looks for changes in every series of a run.

    Args:
        run: the run.
        level: chance of any false change over all series, a third each for `HEADLINES`, all rollouts, and parts.
    """
    everything = [*run.numbers(), *run.shares(), *run.group_measures(), *uncentred(run)]
    everything += [s for s in logged_series(run.relations, run.run, NOT_FOLLOWED) if not _repeats(s.column)]
    if run.always_solved is not None:
        everything.append(run.always_solved)
    first = [s for s in everything if s.segment is None and s.column in HEADLINES and s.value is None]
    whole = [s for s in everything if s.segment is None and s not in first]
    parts = [s for s in everything if s.segment is not None]
    beside = list(parts_further(run))
    everything += beside
    kept = []
    for series, chance in (
        (first, level / 3),
        (whole, level / 3),
        (parts, level / 3),
        (beside, FURTHER_LEVEL),
    ):
        found = [change for each in series for change in change_points(each)]
        kept += controlled(found, len(series), chance)
    start = run.steps[min(WARM_UP, len(run.steps) - 1)] if len(run.steps) else 0
    kept = [change for change in kept if change.step > start and not _warms_up(change, run)]
    table = {(s.column, s.value, s.segment): s for s in everything}
    moved = [exact(run, _together(changes, table)) for changes in _grouped(kept)]
    return Movements(tuple(sorted(moved, key=lambda m: (m.step, m.p))), len(everything), table)


def first_there(series: Series, at: int) -> int:
    """Position at which what is seen to grow at `at` began: where it first was there, if it never was before.

    Args:
        series: a share.
        at: position.
    """
    there = np.flatnonzero(series.values > 0)
    new = len(there) > 0 and there[0] > WARM_UP and at - LONGEST_ONSET <= there[0] <= at
    return int(there[0]) if new else at


def _warms_up(change: ChangePoint, run: RunSeries) -> bool:
    """Whether it is the staleness that an asynchronous run takes up in its first steps."""
    series = change.series
    aged = series.column == "staleness_max" or series.value in ("stale", "mixed_versions")
    return aged and len(run.steps) > 0 and change.step <= run.steps[0] + WARM_UP_OF_VERSIONS


def levels(series: Series, step: int, last: int | None = None, width: int = 14) -> tuple[float, float, int]:
    """Mean before and from a step on, over `width` steps each, weighted by rollouts, and the rollouts after."""
    weights = series.rows if len(series.rows) else np.ones(len(series.values))
    at = int(np.searchsorted(series.steps, step))
    stop = len(series.steps) if last is None else int(np.searchsorted(series.steps, last, "right"))
    before, after = slice(max(0, at - width), at), slice(at, max(min(at + width, stop), at))
    return (
        _mean(series.values[before], weights[before]),
        _mean(series.values[after], weights[after]),
        int(weights[after].sum()),
    )


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.average(values, weights=weights)) if len(values) and weights.sum() > 0 else float("nan")


def _repeats(key: str) -> bool:
    """Whether a logged key only repeats what the ledger's columns say."""
    return key.startswith(("rollout/", "eval-rollout/", "rollout_traces/", "system/"))


def _grouped(changes: Sequence[ChangePoint]) -> list[list[ChangePoint]]:
    """Changes of the same column and value at about the same step."""
    groups: list[list[ChangePoint]] = []
    for change in sorted(changes, key=lambda each: each.p):
        for group in groups:
            same = (
                group[0].series.column == change.series.column
                and group[0].series.value == change.series.value
            )
            if same and abs(group[0].step - change.step) <= SAME:
                group.append(change)
                break
        else:
            groups.append([change])
    return groups


def _together(
    changes: list[ChangePoint], table: dict[tuple[str, str | None, tuple[str, str] | None], Series]
) -> Moved:
    first = min(changes, key=lambda each: each.p)
    column, value = first.series.column, first.series.value
    part = where(column, value, first.step, first.last, table)
    if part is None and is_compared(first.series):
        part = _farthest(first, table)
    within = first
    if part is not None:
        inside = [
            c
            for c in changes
            if c.series.segment and c.series.segment[0] == part.column and c.series.segment[1] in part.values
        ]
        within = min(inside, key=lambda each: each.p) if inside else first
    before, after, elsewhere, rows = _of_part(column, value, within.step, within.last, part, table)
    if not np.isfinite(before) or not np.isfinite(after):
        before, after = within.before, within.after
    return Moved(
        column,
        value,
        within.step,
        within.last,
        before,
        after,
        within.size,
        within.p,
        part,
        elsewhere,
        rows,
        _window(within),
    )


def _farthest(
    change: ChangePoint, table: dict[tuple[str, str | None, tuple[str, str] | None], Series]
) -> Part | None:
    """The value of a column whose parts were compared with each other that moved the most.

    Of two parts each moved as far from the other, so what each did by itself decides.
    """
    of = change.series
    parts = [
        series
        for (column, value, segment), series in table.items()
        if segment and of.segment and (column, value, segment[0]) == (of.column, of.value, of.segment[0])
    ]
    jumps: dict[tuple[str, str], float] = {}
    for series in parts:
        compared = (
            replace(series, values=series.against) if len(parts) > 2 and len(series.against) else series
        )
        before, after, _ = levels(compared, change.step, change.last)
        if series.segment and np.isfinite(after - before):
            jumps[series.segment] = abs(after - before)
    if not jumps:
        return None
    name, of_name = max(jumps, key=lambda segment: jumps[segment])
    return Part(name, (of_name,))


def where(
    column: str,
    value: str | None,
    step: int,
    last: int | None,
    table: dict[tuple[str, str | None, tuple[str, str] | None], Series],
) -> Part | None:
    """The sources or engines in which a change happened, where it spared the others.

    Of several columns that separate it, the one whose other values moved least, among those of the largest jumps.
    """
    found: list[tuple[float, float, Part]] = []
    for segment in dict.fromkeys(
        key[2][0] for key in table if key[0] == column and key[1] == value and key[2]
    ):
        jumps, compared = {}, False
        for key, series in table.items():
            if key[0] == column and key[1] == value and key[2] and key[2][0] == segment:
                compared = compared or is_compared(series)
                before, after, rows = levels(series, step, last)
                if not np.isfinite(after):
                    continue
                jumps[key[2][1]] = (after - (before if np.isfinite(before) else 0.0), rows)
        if len(jumps) < 2:
            continue
        if len(jumps) > 2 and compared:
            usual = float(np.median([jump for jump, _ in jumps.values()]))
            jumps = {name: (jump - usual, rows) for name, (jump, rows) in jumps.items()}
        largest = max((jump for jump, _ in jumps.values()), key=abs)
        if largest == 0:
            continue
        inside = [name for name, (jump, _) in jumps.items() if jump / largest >= 0.5]
        outside = [abs(jump / largest) for name, (jump, _) in jumps.items() if name not in inside]
        if outside and max(outside) <= MOST_ELSEWHERE and len(inside) <= max(len(jumps) // 2, 1):
            share = max(outside) + 0.05 * len(inside)
            found.append((share, abs(largest), Part(segment, tuple(sorted(inside)))))
    sharp = max((jump for _, jump, _ in found), default=0.0) * SHARP
    return min((each for each in found if each[1] >= sharp), default=(0, 0, None), key=lambda each: each[0])[
        2
    ]


def _window(change: ChangePoint, width: int = 14) -> tuple[int, int, int, int]:
    """Steps before and after a change that its levels speak of."""
    steps = change.series.steps
    at = int(np.searchsorted(steps, change.step))
    stop = len(steps) if change.last is None else int(np.searchsorted(steps, change.last, "right"))
    end = max(min(at + width, stop), at + 1)
    return int(steps[max(0, at - width)]), int(steps[max(at - 1, 0)]), int(steps[at]), int(steps[end - 1])


def _of_part(
    column: str,
    value: str | None,
    step: int,
    last: int | None,
    part: Part | None,
    table: dict[tuple[str, str | None, tuple[str, str] | None], Series],
) -> tuple[float, float, float | None, int]:
    """Level before and after inside a part, after outside of it, and the rollouts behind `after`."""
    if part is None:
        before, after, rows = levels(table[(column, value, None)], step, last)
        return before, after, None, rows
    inside: list[tuple[float, float, int]] = []
    outside: list[tuple[float, float, int]] = []
    for key, series in table.items():
        if key[0] == column and key[1] == value and key[2] and key[2][0] == part.column:
            (inside if key[2][1] in part.values else outside).append(levels(series, step, last))
    other = _pooled(outside, 1)
    return (
        _pooled(inside, 0),
        _pooled(inside, 1),
        other if np.isfinite(other) else None,
        sum(rows for _, _, rows in inside),
    )


def _pooled(parts: Sequence[tuple[float, float, int]], which: int) -> float:
    known = [(part[which], max(part[2], 1)) for part in parts if np.isfinite(part[which])]
    return float(np.average([v for v, _ in known], weights=[n for _, n in known])) if known else float("nan")
