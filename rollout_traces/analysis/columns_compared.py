"""Every number, value, flag and tool of A against B, where groups are the units and steps are too; and what the trainer logged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from rollout_traces.analysis.compare import (
    DISCOVERY,
    FEWEST,
    NEIGHBOURS,
    Effect,
    aligned_p,
    alike,
    between_ranges,
    between_steps,
    cliffs_delta,
    either,
    paired,
    shares,
    step_p,
    tails_before,
    young_change,
)
from rollout_traces.analysis.finding import Finding, OneSided, PartOfRows
from rollout_traces.analysis.parts import REMAINS
from rollout_traces.analysis.relations import Relations, as_arrays, sql_text
from rollout_traces.analysis.run_rows import ROUNDING, distinct
from rollout_traces.analysis.schedules import counts
from rollout_traces.analysis.selections import Selection
from rollout_traces.analysis.two_sides import LEFT_OUT, A, B, EarlierVisits, SideRows, needs_texts
from rollout_traces.metrics import is_computed

LEAST_SHARE = 0.02
"""A share that neither side reaches is not compared."""
FEWEST_ROWS, NEW_SHARE = 3, 0.01
"""A value is new in A when so many rollouts of two groups have it, and that share of them."""
SHARED = 0.5
"""Groups or prompts are paired where at least this part of the smaller side's are in both."""
FEWEST_PAIRS = 5
PROVING_PAIRS, MANY_PAIRS = 11, 20
"""Pairs whose surest rank sum, of p 2^(1 - pairs), proves something among ten columns; and pairs from which on they alone decide."""
OFTEN = 4
"""Groups of a pair, on average, from which on all of them are compared inside it, net of its mean."""
FEWEST_KNOWN = 4
"""Rollouts that know a number, below which it is not compared."""
MOST_SAID = 3
"""Values that are said of a column that one side alone knows."""
MOST_VALUES = 200
"""Values of a column that are compared, the most frequent of both sides."""


@dataclass(frozen=True, eq=False)
class _Cells:
    """Groups cut into the values of a column.

    Attributes:
        rows: int [K], the rollouts of A and B that know it.
        cell: int [K], of each.
        place: int [C], side times values plus the value of each.
        n_values: how many values it has.
    """

    rows: np.ndarray
    cell: np.ndarray
    place: np.ndarray
    n_values: int

    @cached_property
    def n_rows(self) -> np.ndarray:
        """int [C]: rollouts of each."""
        return np.bincount(self.cell)


@dataclass(eq=False)
class ColumnsCompared:
    """Two sides, and how their columns are compared.

    Attributes:
        rows: the rollouts.
        neighbours: whether B is the steps before A, so that the steps before those tell how far steps differ.
        earlier: the prompts' earlier visits, where they are known.
        young: column and value -> p of a change among B's steps, and its step.
    """

    rows: SideRows
    neighbours: bool
    earlier: EarlierVisits | None
    young: dict[str, tuple[float, int]] = field(default_factory=dict)

    @cached_property
    def in_a(self) -> np.ndarray:
        """bool [G]."""
        return self.rows.group_side == A

    @cached_property
    def in_b(self) -> np.ndarray:
        """bool [G]."""
        return self.rows.group_side == B

    @cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int [G], the step of its side that a group is in, counted in order of time; int [T] side; int [T] step."""
        code = self.rows.group_step * (LEFT_OUT + 1) + (LEFT_OUT - self.rows.group_side)
        known, index = np.unique(code, return_inverse=True)
        return index, LEFT_OUT - known % (LEFT_OUT + 1), known // (LEFT_OUT + 1)

    @cached_property
    def pairs(self) -> np.ndarray | None:
        """int [G]: which shared group, else prompt, each group belongs to, -1 for none; None where too few are shared."""
        if self.neighbours:
            return None
        for keys in (self.rows.group_unit, self.rows.group_prompt):
            a, b = np.unique(keys[self.in_a]), np.unique(keys[self.in_b])
            shared = np.intersect1d(a[a >= 0], b[b >= 0])
            if len(shared) >= max(FEWEST_PAIRS, SHARED * min(len(a), len(b))):
                at = np.minimum(np.searchsorted(shared, keys), len(shared) - 1)
                return np.where(shared[at] == keys, at, -1)
        return None

    @cached_property
    def are_same_groups(self) -> bool:
        """Whether both sides have rollouts of one group, which may hang together."""
        units = [self.rows.group_unit[side] for side in (self.in_a, self.in_b)]
        return len(np.intersect1d(*units)) > 0

    def young_step(self) -> tuple[str, int] | None:
        """The first of B's steps at which something is sure to have changed, and what; None where nothing is."""
        sure = [(step, p, name) for name, (p, step) in self.young.items() if p * len(self.young) < DISCOVERY]
        return (min(sure)[2], min(sure)[0]) if sure else None

    def group_sums(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """float [G] rollouts that know a number, and its sum; of float [N], NaN for unknown."""
        known = np.isfinite(values)
        if known.all():
            return self._n_rows, self._by_group(values)
        return self._by_group(known.astype(float)), self._by_group(np.where(known, values, 0.0))

    @cached_property
    def _n_rows(self) -> np.ndarray:
        """float [G]: rollouts of each group."""
        return self._by_group(np.ones(len(self.rows.group)))

    def _by_group(self, values: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        return np.bincount(self.rows.group[rows], values, len(self.rows.group_side))

    def means(self, name: str) -> np.ndarray:
        """float [G]: the mean of a number, NaN where no rollout of a group knows it."""
        return _mean(*self.group_sums(self.rows.number(name)))

    def number(self, name: str) -> Iterator[Finding | OneSided]:
        """One number compared; what the side says that alone knows it; nothing where there is too little."""
        values = self.rows.number(name)
        known, total = self.group_sums(values)
        n_a, n_b = int(known[self.in_a].sum()), int(known[self.in_b].sum())
        if (n_a == 0) != (n_b == 0):
            yield OneSided(name, "A" if n_a else "B", n_a or n_b, self.rows.counts[A if n_a else B])
        if not n_a or not n_b or n_a + n_b < FEWEST_KNOWN:
            return
        level_a, level_b = float(total[self.in_a].sum() / n_a), float(total[self.in_b].sum() / n_b)
        if abs(level_a - level_b) <= ROUNDING * float(np.nanmax(np.abs(values))):
            return
        effect = self._effect(name, _mean(known, total), name)
        yield Finding(name, None, level_a, level_b, n_a, n_b, n_a, n_b, effect)

    def in_its_part(self, name: str, columns: Sequence[str]) -> Finding | None:
        """One number compared in the part in which it moved most, by a p for all that were looked at: where few rollouts moved, all together hardly did.

        Args:
            name: the number.
            columns: those by which the rollouts are parted.

        Returns:
            None where no part has enough groups on both sides, or the others moved as well.
        """
        values = self.rows.number(name)
        best, n_looked_at = (0.0, "", -1), 0
        for column in columns:
            t = self._moved_by(values, self._cells[column])
            n_looked_at += int(np.count_nonzero(np.isfinite(t)))
            if np.isfinite(t).any() and np.nanmax(t) >= best[0]:
                best = float(np.nanmax(t)), column, int(np.nanargmax(t))
        t_best, column, code = best
        if code < 0:
            return None
        codes, texts = self.rows.parts[column]
        part = PartOfRows(column, (texts[code],))
        known, total = self.group_sums(np.where(codes == code, values, np.nan))
        others = self.group_sums(np.where((codes >= 0) & (codes != code), values, np.nan))
        n_a, n_b = (int(known[side].sum()) for side in (self.in_a, self.in_b))
        levels, rest = (
            [float(_mean(n[side].sum(), x[side].sum())) for side in (self.in_a, self.in_b)]
            for n, x in ((known, total), others)
        )
        if abs(rest[0] - rest[1]) >= REMAINS * abs(levels[0] - levels[1]):
            return None
        effect = Effect(0.0, 0.0, 0.0, 1.0)
        by_chance = 2 * n_looked_at * NormalDist().cdf(-t_best)
        if by_chance <= DISCOVERY and abs(levels[0] - levels[1]) > ROUNDING * float(
            np.nanmax(np.abs(values))
        ):
            effect = self._effect(name, _mean(known, total))
            effect = replace(effect, p=min(1.0, n_looked_at * effect.p))
        return Finding(name, None, levels[0], levels[1], n_a, n_b, n_a, n_b, effect, part=part)

    @cached_property
    def _cells(self) -> dict[str, _Cells]:
        """Column by which the rollouts are parted -> the groups, each cut into its values."""
        found = {}
        for column, (codes, values) in self.rows.parts.items():
            some = np.flatnonzero((codes >= 0) & (self.rows.side <= B))
            cells, cell = distinct(self.rows.group[some] * len(values) + codes[some])
            side = self.rows.group_side[cells // len(values)]
            found[column] = _Cells(some, cell, side * len(values) + cells % len(values), len(values))
        return found

    def _moved_by(self, values: np.ndarray, cells: _Cells) -> np.ndarray:
        """float [V]: by how many errors the mean over a part's groups differs, NaN where a side has too few."""
        x = values[cells.rows]
        known = np.isfinite(x)
        n, x = (cells.n_rows, x) if known.all() else (np.bincount(cells.cell, known), np.where(known, x, 0.0))
        mean = np.bincount(cells.cell, x) / np.maximum(n, 1)
        there, size = n > 0, 2 * cells.n_values
        at, mean = cells.place[there], mean[there]
        groups = np.bincount(at, minlength=size).astype(float)
        level = np.bincount(at, mean, size) / np.maximum(groups, 1)
        squares = np.bincount(at, (mean - level[at]) ** 2, size)
        groups, level, squares = (each.reshape(2, -1) for each in (groups, level, squares))
        variance = squares.sum(axis=0) / np.maximum(groups.sum(axis=0) - 2, 1)
        error = np.sqrt(variance * (1 / np.maximum(groups, 1)).sum(axis=0))
        t = np.abs(level[0] - level[1]) / np.maximum(error, ROUNDING * np.abs(level).max(initial=1.0))
        return np.where(groups.min(axis=0) >= FEWEST_PAIRS, t, np.nan)

    def _effect(self, name: str, means: np.ndarray, about: str = "") -> Effect:
        weight = np.isfinite(means).astype(float)
        if self.pairs is not None and (found := self._paired(about, means, weight)) is not None:
            return found
        net = self.earlier.adjusted(name, means, self.rows.group_side) if self.earlier is not None else None
        used = means if net is None else alike(net)
        there = np.isfinite(used)
        effect = cliffs_delta(used[there & self.in_a], used[there & self.in_b])
        p = self._p_of_steps(about, used, there.astype(float))
        return replace(effect, p=max(effect.p, p if p is not None else 0.0), paired=net is not None)

    def _paired(
        self, about: str, values: np.ndarray, weight: np.ndarray, p_of_groups: float | None = None
    ) -> Effect | None:
        """The effect on differences inside pairs; None where too few pairs know the column.

        Of few pairs the ranks prove little however large the difference: then the p is that of their groups, and
        where both may prove something, twice the smaller one.

        Args:
            about: what it is a mean of.
            values: float [G].
            weight: float [G], what each counts; 0 for none.
            p_of_groups: p of A's groups against B's; by their ranks where it is not given.
        """
        assert self.pairs is not None
        use = (self.pairs >= 0) & (weight > 0)
        size = int(self.pairs.max(initial=-1)) + 1
        sides = []
        for side in (self.in_a, self.in_b):
            here = use & side
            n = np.bincount(self.pairs[here], weight[here], size)
            total = np.bincount(self.pairs[here], (values * weight)[here], size)
            sides.append(np.where(n > 0, total / np.maximum(n, np.finfo(float).tiny), np.nan))
        both = np.isfinite(sides[0] - sides[1])
        if (n_pairs := int(both.sum())) < FEWEST_PAIRS:
            return None
        found = paired(sides[0][both], sides[1][both])
        if n_pairs >= MANY_PAIRS or (self.are_same_groups and _opposed(sides[0][both], sides[1][both])):
            return found
        there = use & (self.in_a | self.in_b) & both[np.maximum(self.pairs, 0)]
        net = values
        if np.count_nonzero(there) >= OFTEN * n_pairs:
            block, in_a = self.pairs[there], self.in_a[there]
            p_of_groups = aligned_p(values[there], block, in_a)
            net = values - ((sides[0] + sides[1]) / 2)[np.maximum(self.pairs, 0)]
        elif p_of_groups is None:
            p_of_groups = cliffs_delta(values[there & self.in_a], values[there & self.in_b]).p
        p_of_steps = self._p_of_steps(about, net, np.where(there, weight, 0.0)) or 0.0
        clustered = max(p_of_groups, p_of_steps)
        return replace(found, p=clustered if n_pairs < PROVING_PAIRS else either(found.p, clustered))

    def _p_of_steps(self, name: str, values: np.ndarray, weight: np.ndarray) -> float | None:
        """p against the spread between steps, of a mean over groups; None where it is not known.

        Args:
            name: what it is a mean of, to tell of a change among B's steps; "" to look for none.
            values: float [G].
            weight: float [G], what each counts; 0 for none.
        """
        at, side, step = self.places
        known = (weight > 0) & (self.rows.group_side != LEFT_OUT)
        groups = np.bincount(at[known], minlength=len(side)).astype(float)
        total = np.bincount(at[known], weight[known], len(side))
        level = np.bincount(at[known], (values * weight)[known], len(side)) / np.maximum(
            total, np.finfo(float).tiny
        )
        there = groups > 0
        share = weight[known] / np.maximum(total[at[known]], np.finfo(float).tiny)
        residual = share * (values[known] - level[at[known]])
        spread = np.bincount(at[known], residual**2, len(side))
        compared = there & (side <= B)
        freedom = max(float(np.maximum(groups - 1, 0)[compared].sum()), 1.0)
        pooled = float((spread * groups**2)[compared].sum() / freedom)
        if self.neighbours and (side == A).sum() == 1:
            order = np.flatnonzero(there)
            now, before = groups[side == A], groups[order][:-1][-NEIGHBOURS:]
            within = pooled * float(1 / max(now.sum(), 1) + 1 / max(before.sum(), 1))
            young = young_change(level[order], groups[order], pooled) if name else None
            if young is not None and young[1]:
                self.young[name] = young[0], int(step[order][-1 - young[1]])
            return step_p(level[order], within=within, within_freedom=freedom)
        return between_steps(level[compared], groups[compared], side[compared], pooled)

    def shares(self, name: str) -> Iterator[Finding | OneSided]:
        """The most frequent values of a text column, or of one of several values; what the side says that alone knows some."""
        known, rows, codes, values = self.rows.values(name)
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(values) + 1))
        frequent = np.bincount(codes[self.rows.side[rows] <= B], minlength=len(values))
        of_all: dict[bool, tuple[np.ndarray, np.ndarray, list[int]]] = {}
        alone: dict[bool, list[tuple[str, int, float]]] = {}
        for code in np.argsort(-frequent, kind="stable")[:MOST_VALUES]:
            by_text = needs_texts(self.rows.columns, name, values[code])
            if by_text not in of_all:
                use, weight = self.rows.weighed(name, values[code])
                weight = np.where(known & use, weight, 0.0)
                counts = [int((weight[self.rows.side == side] > 0).sum()) for side in (A, B)]
                of_all[by_text] = weight, self._by_group(weight), counts
            weight, n, counts = of_all[by_text]
            if not frequent[code] or not any(counts):
                continue
            mine = rows[order[starts[code] : starts[code + 1]]]
            mine = mine[weight[mine] > 0]
            if all(counts):
                yield from self._share(name, values[code], mine, weight, n, counts)
            elif len(mine := mine[self.rows.side[mine] <= B]):
                share = float(weight[mine].sum() / weight[self.rows.side <= B].sum())
                alone.setdefault(by_text, []).append((values[code], len(mine), share))
        for by_text, said in alone.items():
            counts = of_all[by_text][2]
            at = A if counts[0] else B
            most = sorted(said, key=lambda each: -each[1])[:MOST_SAID]
            yield OneSided(name, "AB"[at], counts[at], self.rows.counts[at], tuple(most), by_text)

    def _share(
        self, name: str, value: str, mine: np.ndarray, weight: np.ndarray, n: np.ndarray, known: list[int]
    ) -> Iterator[Finding]:
        """The share of one value, if either side has enough of it.

        Args:
            name: the column.
            value: the value.
            mine: int [K], the rollouts that have it.
            weight: float [N], what each rollout counts.
            n: float [G], what those that know the column count together.
            known: how many of A and of B know it.
        """
        hits = self._by_group(weight[mine], mine)
        a, b = (float(hits[side].sum() / n[side].sum()) for side in (self.in_a, self.in_b))
        if max(a, b) < LEAST_SHARE:
            return
        counts = [int((self.rows.side[mine] == side).sum()) for side in (A, B)]
        effect = shares(hits[self.in_a], n[self.in_a], hits[self.in_b], n[self.in_b])
        several = int(np.count_nonzero(hits[self.in_a])) >= 2
        new = counts[1] == 0 and counts[0] >= max(FEWEST_ROWS, NEW_SHARE * known[0]) and several
        there = hits / np.where(n > 0, n, 1)
        inside = self._paired(f"{name} {value}", there, n, effect.p) if self.pairs is not None else None
        if inside is not None:
            effect = replace(effect, p=inside.p, paired=True)
        elif counts[1]:
            p = self._p_of_steps(f"{name} {value}", there, n)
            effect = replace(effect, p=max(effect.p, p if p is not None else 0.0))
        yield Finding(name, value, a, b, known[0], known[1], counts[0], counts[1], effect, new)


def _opposed(a: np.ndarray, b: np.ndarray) -> bool:
    """Tells whether one side of a pair is low where the other is high, as advantages are: by more than the error of a correlation."""
    x, y = a - a.mean(), b - b.mean()
    return float(x @ y) < -float(np.sqrt((x @ x) * (y @ y) / len(x)))


def _mean(known: np.ndarray, total: np.ndarray) -> np.ndarray:
    return alike(np.where(known > 0, total / np.maximum(known, 1), np.nan))


def compare_logged(
    relations: Relations, a: Selection, b: Selection, before: tuple[int, int] | None
) -> Iterator[Finding]:
    """Every logged number compared.

    A single step is measured by how far each earlier step was from the ten before it, on a log scale where all
    values are positive, by tails that all numbers tell of together. Ranges are compared by rank; their values follow
    each other, so that fewer count: n (1 - r) / (1 + r), r the autocorrelation at lag 1 of what they lie from a line:
    a number that drifts says more, not less.

    Args:
        relations: where to read.
        a: A, of one run.
        b: B, of one run.
        before: first and last of the steps before A that tell how far steps differ; None where B is no earlier steps.
    """
    if a.run is None or b.run is None:
        return
    series_b = _read(relations, b.run, b.steps)
    earlier = _read(relations, a.run, before) if before is not None else {}
    series_a = _read(relations, a.run, a.steps)
    compared = [key for key in series_a if key in series_b and not _goes_on(series_a[key], series_b[key])]
    whole = {}
    for key in compared if before is not None else ():
        if len(series_a[key][1]) == 1:
            known = [side[key][1] for side in (earlier, series_b, series_a) if key in side]
            values = np.concatenate(known)
            whole[key] = np.log(values) if (values > 0).all() else values
    tails = dict(zip(whole, tails_before(list(whole.values())), strict=True))
    for key in compared:
        (steps, values), others = series_a[key], series_b[key]
        if key in whole:
            effect = _at_a_step(values, others[1], step_p(whole[key], tails=tails[key]))
        else:
            effect = between_ranges(values, others[1])
        if effect is not None:
            a_mean, b_mean = float(values.mean()), float(others[1].mean())
            n_a, n_b = len(values), len(others[1])
            query = _query(key, ((a.run, steps), (b.run, others[0])))
            yield Finding(key, None, a_mean, b_mean, n_a, n_b, n_a, n_b, effect, logged=True, query=query)


def _at_a_step(now: np.ndarray, neighbours: np.ndarray, p: float | None) -> Effect | None:
    delta = float(np.sign(now - neighbours).mean())
    return None if p is None else Effect(delta, delta, delta, p)


def _goes_on(*sides: tuple[np.ndarray, np.ndarray]) -> bool:
    """Tells whether a number counts steps, samples or epochs from one side to the other."""
    steps, values = (np.concatenate(each) for each in zip(*sides, strict=True))
    in_order = values[np.argsort(steps, kind="stable")]
    return len(in_order) > FEWEST and counts(in_order - in_order[0])


def _read(
    relations: Relations, run: str, steps: tuple[int | None, int | None]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Key -> int [T] steps and float [T] values, the last attempt's where a step was logged twice."""
    query = """
        select coalesce(split || '/', '') as split, key, step, arg_max(value, coalesce(attempt, '')) as value from metrics
        where run = ? and isfinite(cast(value as double)) and step between ? and ? and not coalesce(superseded, false)
        and key not like 'phase/%' group by 1, 2, 3 order by 1, 2, 3"""
    ends = [0 if steps[0] is None else steps[0], np.iinfo(np.int64).max if steps[1] is None else steps[1]]
    found = as_arrays(relations.sql(query, [run, int(ends[0]), int(ends[1])]))
    names = [
        key if key.startswith(split) else f"{split}{key}"
        for split, key in zip(found["split"].tolist(), found["key"].tolist(), strict=True)
    ]
    computed = {name for name in set(names) if is_computed(name)}
    places: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        if name not in computed:
            places.setdefault(name, []).append(at)
    steps_of, values = found["step"].astype(np.int64), found["value"].astype(float)
    return {name: (steps_of[at], values[at]) for name, at in places.items()}


def _query(key: str, sides: tuple[tuple[str, np.ndarray], ...]) -> str:
    """The levels of both sides: side 0 for A and 1 for B."""
    return (
        " union all ".join(
            f"select {side} as side, avg(value) as level, count(*) as steps from ("
            f"select step, arg_max(value, coalesce(attempt, '')) as value from metrics where run = {sql_text(run)} "
            f"and (key = {sql_text(key)} or split || '/' || key = {sql_text(key)}) and not coalesce(superseded, false) "
            f"and isfinite(cast(value as double)) and step in ({', '.join(map(str, steps.tolist()))}) group by step)"
            for side, (run, steps) in enumerate(sides)
        )
        + " order by side"
    )
