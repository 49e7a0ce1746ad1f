"""Every number, value, flag and tool of A against B: groups are the units, steps are too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rollout_traces.analysis.compare import (
    DISCOVERY,
    NEIGHBOURS,
    Effect,
    between_steps,
    cliffs_delta,
    paired,
    shares_of_sums,
    step_p,
    sums_of,
    young_change,
)
from rollout_traces.analysis.earlier_visits import EarlierVisits
from rollout_traces.analysis.finding import Finding
from rollout_traces.analysis.rows import LEFT_OUT, A, B, SideRows
from rollout_traces.flags import needs_text

LEAST_SHARE = 0.02
"""A share that neither side reaches is not compared."""
FEWEST_ROWS, NEW_SHARE = 3, 0.01
"""A value is new in A when so many rollouts of two groups have it, and that share of them."""
SHARED = 0.5
"""Groups or prompts are paired where at least this part of the smaller side's are in both."""
FEWEST_PAIRS = 5
FEWEST_KNOWN = 4
"""Rollouts that know a number, below which it is not compared."""
MOST_VALUES = 200
"""Values of a column that are compared, the most frequent of both sides."""
TEXT_ALONE = ("tool_names", "error_signatures")
"""Columns that only rollouts with text know."""


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

    def young_step(self) -> tuple[str, int] | None:
        """The first of B's steps at which something is sure to have changed, and what; None where nothing is."""
        sure = [(step, p, name) for name, (p, step) in self.young.items() if p * len(self.young) < DISCOVERY]
        return (min(sure)[2], min(sure)[0]) if sure else None

    def group_sums(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """float [G] rollouts that know a number, and its sum; of float [N], NaN for unknown."""
        known = np.isfinite(values)
        size = len(self.rows.group_side)
        if known.all():
            return np.bincount(self.rows.group, minlength=size).astype(float), np.bincount(
                self.rows.group, values, size
            )
        return (
            np.bincount(self.rows.group, known, size),
            np.bincount(self.rows.group, np.where(known, values, 0.0), size),
        )

    def number(self, name: str) -> Finding | str | None:
        """One number compared; the side that alone knows it; None where there is too little."""
        values = self.rows.number(name)
        known, total = self.group_sums(values)
        n_a, n_b = int(known[self.in_a].sum()), int(known[self.in_b].sum())
        if (n_a == 0) != (n_b == 0):
            return "A" if n_a else "B"
        if not n_a or n_a + n_b < FEWEST_KNOWN:
            return None
        with np.errstate(invalid="ignore"):
            means = np.where(known > 0, total / known, np.nan)
        level_a, level_b = float(total[self.in_a].sum() / n_a), float(total[self.in_b].sum() / n_b)
        return Finding(name, None, level_a, level_b, n_a, n_b, n_a, n_b, self._effect(name, means))

    def _effect(self, name: str, means: np.ndarray) -> Effect:
        if self.pairs is not None:
            found = self._paired(means, np.isfinite(means).astype(float))
            if found is not None:
                return found
        net = self.earlier.adjusted(name, means, self.rows.group_side) if self.earlier is not None else None
        used = means if net is None else net
        there = np.isfinite(used)
        effect = cliffs_delta(used[there & self.in_a], used[there & self.in_b])
        p = self._p_of_steps(name, used, there.astype(float))
        return replace(effect, p=max(effect.p, p if p is not None else 0.0), paired=net is not None)

    def _paired(self, values: np.ndarray, weight: np.ndarray) -> Effect | None:
        """The effect on differences inside pairs; None where too few pairs know the column."""
        assert self.pairs is not None
        use = (self.pairs >= 0) & (weight > 0)
        size = int(self.pairs.max(initial=-1)) + 1
        sides = []
        for side in (self.in_a, self.in_b):
            here = use & side
            n = np.bincount(self.pairs[here], weight[here], size)
            total = np.bincount(self.pairs[here], (values * weight)[here], size)
            sides.append(np.where(n > 0, total / np.maximum(n, np.finfo(float).tiny), np.nan))
        differences = sides[0] - sides[1]
        known = np.isfinite(differences)
        return paired(differences[known]) if known.sum() >= FEWEST_PAIRS else None

    def _p_of_steps(self, name: str, values: np.ndarray, weight: np.ndarray) -> float | None:
        """p against the spread between steps, of a mean over groups; None where it is not known.

        Args:
            name: what it is a mean of.
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
            young = young_change(level[order], groups[order], pooled)
            if young is not None and young[1]:
                self.young[name] = young[0], int(step[order][-1 - young[1]])
            return step_p(level[order], within=within, within_freedom=freedom)
        return between_steps(level[compared], groups[compared], side[compared], pooled)

    def shares(self, name: str) -> Iterator[Finding | str]:
        """The values of a text column, or of one of several values; the side's name where one side alone knows it."""
        if name in self.rows.texts:
            codes, values = self.rows.texts[name]
            rows = np.flatnonzero(codes >= 0)
            yield from self._values(name, codes >= 0, rows, codes[rows], values, np.ones(len(codes)))
            return
        known, rows, codes, values = self.rows.tags(name)
        drawn = self.rows.columns.has("traced", "selected_by")
        texted = np.asarray(
            [drawn and (name in TEXT_ALONE or (name == "flags" and needs_text(v))) for v in values], bool
        )
        random, weight = self.rows.at_random
        for with_text in (False, True):
            mine = np.flatnonzero(texted == with_text)
            if len(mine):
                use = known & random if with_text else known
                here = np.isin(codes, mine) & use[rows]
                weights = weight if with_text else np.ones(len(known))
                yield from self._values(name, use, rows[here], codes[here], values, weights)

    def _values(
        self,
        name: str,
        known: np.ndarray,
        rows: np.ndarray,
        codes: np.ndarray,
        values: list[str],
        weight: np.ndarray,
    ) -> Iterator[Finding | str]:
        """The shares of the most frequent values.

        Args:
            name: the column.
            known: bool [N].
            rows: int [K], rollouts with a value.
            codes: int [K], which.
            values: what the codes stand for.
            weight: float [N].
        """
        size = len(self.rows.group_side)
        side = self.rows.side
        known_a, known_b = int((known & (side == A)).sum()), int((known & (side == B)).sum())
        if not known_a or not known_b:
            if known_a or known_b:
                yield "A" if known_a else "B"
            return
        n = np.bincount(self.rows.group[known], weight[known], size)
        compared = side[rows] <= B
        frequent = np.bincount(codes[compared], minlength=len(values))
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(values) + 1))
        for code in np.argsort(-frequent, kind="stable")[:MOST_VALUES]:
            if not frequent[code]:
                break
            mine = rows[order[starts[code] : starts[code + 1]]]
            hits = np.bincount(self.rows.group[mine], weight[mine], size)
            of = side[mine]
            counts = (int((of == A).sum()), int((of == B).sum()))
            found = self._share(name, values[code], hits, n, (known_a, known_b), counts)
            if found is not None:
                yield found

    def _share(
        self,
        name: str,
        value: str,
        hits: np.ndarray,
        n: np.ndarray,
        known: tuple[int, int],
        counts: tuple[int, int],
    ) -> Finding | None:
        a, b = (sums_of(hits[side], n[side]) for side in (self.in_a, self.in_b))
        if max(a.share, b.share) < LEAST_SHARE:
            return None
        effect = shares_of_sums(a, b)
        new = counts[1] == 0 and counts[0] >= max(FEWEST_ROWS, NEW_SHARE * known[0]) and a.with_hits >= 2
        there = np.where(n > 0, hits / np.where(n > 0, n, 1), 0.0)
        inside = self._paired(there, n) if self.pairs is not None else None
        if inside is not None:
            effect = replace(effect, p=inside.p, paired=True)
        elif counts[1]:
            p = self._p_of_steps(f"{name} {value}", there, n)
            effect = replace(effect, p=max(effect.p, p if p is not None else 0.0))
        return Finding(name, value, a.share, b.share, *known, *counts, effect, new)


def group_means(compared: ColumnsCompared, names: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Column -> float [G], for the numbers that are named."""
    found = {}
    for name in names:
        known, total = compared.group_sums(compared.rows.number(name))
        with np.errstate(invalid="ignore"):
            found[name] = np.where(known > 0, total / known, np.nan)
    return found
