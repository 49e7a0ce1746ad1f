"""The signals of many steps at once: what `signals.signals_of` gives for each, from flat arrays over all their rows.

Most signals of a step are flags that none of its rows has. They are left out here, and put back by `filled` where
another step of the run has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rollout_traces.alarms.counts import SPARSE, Counts, from_zero
from rollout_traces.alarms.signals import (
    EVERYWHERE,
    REWARD_FAILURE,
    TOOL_ERROR,
    Level,
    StepSignals,
    explained_by,
    of_read_rows,
)
from rollout_traces.flags import REGISTRY

Key = tuple[str, str]
"""A signal and a source."""


@dataclass(frozen=True, eq=False)
class StepRows:
    """The N rollouts of some steps of a split, the steps ascending.

    Attributes:
        step: int64 [N], ascending.
        closed: bool [N]: a step's figures speak of it, see `store.step_metrics.of_closed_step`.
        group: int64 [N].
        source: int64 [N], places in `sources`, -1 where unknown.
        sources: the sources' names.
        flags: flag -> int64 [K], the rows that carry it.
        kept: bool [N]: it has a trace.
        drawn: bool [N]: it was chosen without a look at what came out, see `signals.DRAWN`.
        calls: int64 [N], tool calls, -1 where they or the failed ones are unknown.
        errors: int64 [N], failed ones.
        reward_status: int64 [N], 0 for `ok`, 1 for another one, -1 where unknown.
        levels: signal -> float64 [N], its value in each row, NaN where unknown.
    """

    step: np.ndarray
    closed: np.ndarray
    group: np.ndarray
    source: np.ndarray
    sources: Sequence[str]
    flags: Mapping[str, np.ndarray]
    kept: np.ndarray
    drawn: np.ndarray
    calls: np.ndarray
    errors: np.ndarray
    reward_status: np.ndarray
    levels: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RaisedSignals:
    """What was seen in a step, without the flags that no row of it carries.

    Attributes:
        seen: the signals.
        nothing: source -> the counts of a flag that no row carries: among all rows, and among those that are read,
            None where none is.
    """

    seen: StepSignals
    nothing: Mapping[str, tuple[Counts, Counts | None]] = field(default_factory=dict)


def filled(steps: Sequence[RaisedSignals]) -> list[StepSignals]:
    """A run's steps, each with all signals that are raised anywhere in the run.

    A signal that is raised nowhere passes no limit: `incidents.over_steps` finds the same without it.
    """
    shares = {key for one in steps for key in (*one.seen.shares, *one.seen.n_raised)}
    flags = [key for key in sorted(shares) if key[0] in REGISTRY and key[0] != TOOL_ERROR]
    seen = {name for one in steps for name in one.seen.carriers}
    carried = [name for name in REGISTRY if name in seen]
    return [_filled(one, flags, carried) for one in steps]


def _filled(one: RaisedSignals, flags: Sequence[Key], carried: Sequence[str]) -> StepSignals:
    of_all, of_read = one.nothing[EVERYWHERE]
    shares = dict(one.seen.shares)
    for key in flags:
        if key not in shares and key[1] in one.nothing:
            nothing = one.nothing[key[1]][of_read_rows(key[0])]
            if nothing is not None:
                shares[key] = nothing
    carriers = {}
    for name in carried:
        counts = one.seen.carriers.get(name, of_read if of_read_rows(name) else of_all)
        if counts is not None:
            carriers[name] = counts
    return replace(one.seen, shares=shares, carriers=carriers)


def signals_of_steps(rows: StepRows) -> dict[int, RaisedSignals]:
    """Step -> its signals, for every step that occurs."""
    if not len(rows.step):
        return {}
    starts = np.flatnonzero(np.diff(rows.step, prepend=rows.step[0] - 1))
    at = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows.step)))
    steps = rows.step[starts].tolist()
    if not rows.closed.all():
        rows, at = _closed(rows, at)
    found = [_Found() for _ in steps]
    hits = _unexplained(rows)
    read = rows.kept & (rows.drawn | (np.bincount(at, ~rows.kept, len(steps)) == 0)[at])
    group = from_zero(rows.group)
    everywhere = _Cells(at, group, len(steps))
    _count(everywhere, rows, read, hits, [(one, EVERYWHERE) for one in found])
    if len(rows.sources) > 1:
        _count_sources(rows, at, group, read, hits, found)
    _add_levels(rows, at, everywhere, found)
    return {
        step: RaisedSignals(
            StepSignals(
                step,
                one.shares,
                one.levels,
                one.n_raised,
                {name: seen for (name, source), seen in one.carriers.items() if source == EVERYWHERE},
            ),
            one.nothing,
        )
        for step, one in zip(steps, found, strict=True)
    }


@dataclass
class _Found:
    """What is known so far of one step; the fields of `StepSignals` and `RaisedSignals`."""

    shares: dict[Key, Counts] = field(default_factory=dict)
    n_raised: dict[Key, int] = field(default_factory=dict)
    carriers: dict[Key, Counts] = field(default_factory=dict)
    levels: dict[str, Level] = field(default_factory=dict)
    nothing: dict[str, tuple[Counts, Counts | None]] = field(default_factory=dict)


def _closed(rows: StepRows, at: np.ndarray) -> tuple[StepRows, np.ndarray]:
    here = rows.closed
    place = np.cumsum(here) - 1
    columns = ("step", "closed", "group", "source", "kept", "drawn", "calls", "errors", "reward_status")
    return replace(
        rows,
        **{name: getattr(rows, name)[here] for name in columns},
        flags={name: place[found[here[found]]] for name, found in rows.flags.items()},
        levels={name: values[here] for name, values in rows.levels.items()},
    ), at[here]


def _unexplained(rows: StepRows) -> dict[str, np.ndarray]:
    """Flag -> int64 [K], the rows that carry it and no flag that explains it."""
    masks = {name: _mask(found, len(rows.group)) for name, found in rows.flags.items()}
    found = {}
    for name in REGISTRY:
        if name in masks:
            hit = masks[name]
            for cause in explained_by(name):
                hit = hit & ~masks[cause] if cause in masks else hit
            found[name] = np.flatnonzero(hit)
    return found


def _mask(places: np.ndarray, n: int) -> np.ndarray:
    mask = np.zeros(n, bool)
    mask[places] = True
    return mask


def _count_sources(
    rows: StepRows,
    at: np.ndarray,
    group: np.ndarray,
    read: np.ndarray,
    hits: Mapping[str, np.ndarray],
    found: Sequence[_Found],
) -> None:
    """Counts each source of the steps that have more than one."""
    width = len(rows.sources) + 1
    cell = at * width + np.where(rows.source < 0, width - 1, rows.source)
    there = np.bincount(cell, minlength=len(found) * width).reshape(len(found), width) > 0
    several = there[:, :-1].sum(axis=1) > 1
    there &= several[:, None]
    there[:, -1] = False
    places = [
        (found[c // width], rows.sources[c % width]) if known else None
        for c, known in enumerate(there.ravel().tolist())
    ]
    _count(_Cells(cell, group, len(places)), rows, read, hits, places)


def _count(
    cells: _Cells,
    rows: StepRows,
    read: np.ndarray,
    hits: Mapping[str, np.ndarray],
    places: Sequence[tuple[_Found, str] | None],
) -> None:
    """Counts everything that is a share.

    Args:
        cells: the rows by cell.
        rows: the rows.
        read: bool [N], the rows that are read for flags that need text.
        hits: flag -> its rows.
        places: [C] the step that a cell belongs to and its source; None for a cell that nobody asks for.
    """
    of_all, of_read = cells.base(np.ones(len(read), bool)), cells.base(read)
    for at, place in enumerate(places):
        if place is not None:
            nothing = of_read.nothing(at) if of_read.n[at] else None
            place[0].nothing[place[1]] = (of_all.nothing(at), nothing)
    failures = np.flatnonzero(rows.reward_status == 1)
    for name, hit in [*hits.items(), (REWARD_FAILURE, failures)]:
        for at, n in enumerate(cells.rows(hit).tolist()):
            if n and (place := places[at]) is not None:
                place[0].n_raised[name, place[1]] = n
    for name, hit in hits.items():
        base, seen = (of_read, hit[read[hit]]) if of_read_rows(name) else (of_all, hit)
        for at, counts in cells.hits(base, seen).items():
            if (place := places[at]) is not None:
                place[0].carriers[name, place[1]] = counts
                if name != TOOL_ERROR:
                    place[0].shares[name, place[1]] = counts
    calls = read & (rows.calls > 0)
    failed = np.flatnonzero(read & (rows.calls >= 0) & (rows.errors != 0))
    _add_shares(TOOL_ERROR, cells, cells.base(calls, rows.calls), failed, rows.errors[failed], places)
    known = rows.reward_status >= 0
    _add_shares(REWARD_FAILURE, cells, cells.base(known), failures, None, places)


def _add_shares(
    signal: str,
    cells: _Cells,
    base: _Base,
    hit: np.ndarray,
    n: np.ndarray | None,
    places: Sequence[tuple[_Found, str] | None],
) -> None:
    """Adds the counts of a signal that is no flag, wherever it is known."""
    counted = cells.hits(base, hit, n)
    for at in np.flatnonzero(base.n).tolist():
        if (place := places[at]) is not None:
            place[0].shares[signal, place[1]] = counted.get(at) or base.nothing(at)


def _add_levels(rows: StepRows, at: np.ndarray, cells: _Cells, found: Sequence[_Found]) -> None:
    edges = np.searchsorted(at, np.arange(len(found) + 1))
    for name, values in rows.levels.items():
        known = np.isfinite(values)
        groups, n = cells.n_groups(known), cells.rows(known)
        for t in np.flatnonzero(n).tolist():
            here = slice(edges[t], edges[t + 1])
            total = float(values[here][known[here]].sum())
            found[t].levels[name] = Level(int(n[t]), int(groups[t]), total)


class _Cells:
    """Rows by cell, a step or a source of a step, and in it by group.

    Args:
        cell: int64 [N], below `n_cells`.
        group: int64 [N], from 0 on.
        n_cells: how many cells there are.
    """

    def __init__(self, cell: np.ndarray, group: np.ndarray, n_cells: int) -> None:
        self.n_cells = n_cells
        self._cell = cell
        width = int(group.max(initial=0)) + 1
        unit = cell * width + group
        size = n_cells * width
        if size > SPARSE * len(unit):
            units, unit = np.unique(unit, return_inverse=True)
            self._home, size = units // width, len(units)
        else:
            self._home = np.repeat(np.arange(n_cells), width)
        self._unit, self._size = unit, size

    def rows(self, hit: np.ndarray) -> np.ndarray:
        """int64 [C]: rows of each cell; `hit` is a mask or places."""
        return np.bincount(self._cell[hit], minlength=self.n_cells)

    def n_groups(self, known: np.ndarray) -> np.ndarray:
        """int64 [C]: groups of each cell that have a row of a mask."""
        there = np.bincount(self._unit[known], minlength=self._size) > 0
        return np.bincount(self._home[there], minlength=self.n_cells)

    def base(self, known: np.ndarray, n: np.ndarray | None = None) -> _Base:
        """What shares of some rows are taken of.

        Args:
            known: bool [N].
            n: int64 [N], units of each row; a rollout each when None.
        """
        weights = None if n is None else n[known].astype(np.float64)
        units = np.bincount(self._unit[known], weights, self._size).astype(np.float64)
        return _Base(
            units,
            self._sum(units),
            np.bincount(self._home[units > 0], minlength=self.n_cells),
            self._sum(units * units),
        )

    def hits(self, base: _Base, hit: np.ndarray, n: np.ndarray | None = None) -> dict[int, Counts]:
        """The counts of every cell that has hits.

        Args:
            base: what they are a share of.
            hit: int64 [K], rows.
            n: int64 [K], how many of its units; one each when None.
        """
        x = np.bincount(self._unit[hit], n, self._size)
        at = np.flatnonzero(x)
        x, home = x[at].astype(np.float64), self._home[at]
        sums = [np.bincount(home, each, self.n_cells) for each in (x, x * x, x * base.units[at])]
        cells = np.unique(home)
        columns = (base.n, base.n_groups, *sums, base.n_n)
        values = zip(*(column[cells].tolist() for column in columns), strict=True)
        return {cell: Counts(*each) for cell, each in zip(cells.tolist(), values, strict=True)}

    def _sum(self, units: np.ndarray) -> np.ndarray:
        return np.bincount(self._home, units, self.n_cells)


@dataclass(frozen=True, eq=False)
class _Base:
    """Units by group, and their sums by cell.

    Attributes:
        units: float64 [U].
        n: float64 [C].
        n_groups: int64 [C].
        n_n: float64 [C].
    """

    units: np.ndarray
    n: np.ndarray
    n_groups: np.ndarray
    n_n: np.ndarray

    def nothing(self, cell: int) -> Counts:
        """The counts of what no row of a cell has."""
        return Counts(float(self.n[cell]), int(self.n_groups[cell]), n_n=float(self.n_n[cell]))
