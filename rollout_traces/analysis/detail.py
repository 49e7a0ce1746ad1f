"""What stands behind one finding: the part it happened in, typical rollouts, both distributions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.columns_compared import TEXT_ALONE
from rollout_traces.analysis.finding import Detail, Finding, PartOfRows, Picture
from rollout_traces.analysis.in_words import literal, value_filter
from rollout_traces.analysis.rows import A, B, SideRows
from rollout_traces.analysis.scope import SEGMENTS
from rollout_traces.flags import needs_text

BINS = 20
"""Bars of a picture."""
EXAMPLES = 3
FEWEST = 3
"""Rollouts that a part of a side needs."""
INSIDE, OUTSIDE = 0.5, 0.25
"""Parts move together from this share of the largest movement on; the others move less than this of it."""


@dataclass(frozen=True, eq=False)
class Levels:
    """One number, or the presence of one value, in every rollout.

    Attributes:
        x: float [N], NaN where unknown.
        weight: float [N], what each counts.
    """

    x: np.ndarray
    weight: np.ndarray

    def mean(self, rows: np.ndarray) -> float:
        """Over some rollouts, NaN where none knows it."""
        known = rows & np.isfinite(self.x)
        return float(np.average(self.x[known], weights=self.weight[known])) if known.any() else float("nan")

    def known(self, rows: np.ndarray) -> int:
        """How many of some rollouts know it."""
        return int((rows & np.isfinite(self.x)).sum())


def levels(rows: SideRows, column: str, value: str | None) -> Levels:
    """What a finding speaks of, in every rollout."""
    if value is None:
        return Levels(rows.number(column), np.ones(len(rows.side)))
    if column in rows.texts:
        codes, values = rows.texts[column]
        return Levels(np.where(codes < 0, np.nan, codes == values.index(value)), np.ones(len(codes)))
    known, at, codes, values = rows.tags(column)
    x = np.where(known, 0.0, np.nan)
    x[at[codes == values.index(value)]] = 1.0
    texted = column in TEXT_ALONE or (column == "flags" and needs_text(value))
    if texted and rows.columns.has("traced", "selected_by"):
        random, weight = rows.at_random
        return Levels(np.where(random, x, np.nan), weight)
    return Levels(x, np.ones(len(known)))


def detail_of(rows: SideRows, finding: Finding) -> Detail:
    """Looks behind one finding.

    Args:
        rows: both sides.
        finding: what differs.
    """
    of = levels(rows, finding.column, finding.value)
    a, b = rows.side == A, rows.side == B
    part, inside = _part(rows, of)
    elsewhere, n_elsewhere, hits = None, 0, 0
    if part is not None:
        codes = rows.texts[part.column][0]
        outside = a & (codes >= 0) & ~inside
        n_elsewhere = of.known(outside)
        elsewhere = of.mean(outside) if n_elsewhere else None
        hits = int((of.x[outside] == 1).sum()) if finding.value is not None else n_elsewhere
        a, b = a & inside, b & inside
    numeric = finding.value is None
    picture, medians = _picture(rows, of) if numeric else (None, (None, None))
    return Detail(
        part, of.mean(a), of.mean(b), elsewhere, hits, n_elsewhere, *medians,
        _examples(rows, of, medians[0], numeric), picture, _where(finding, part),
    )  # fmt: skip


def _part(rows: SideRows, of: Levels) -> tuple[PartOfRows | None, np.ndarray]:
    """The values of one segment column that hold the difference, and which rollouts have them."""
    best: tuple[float, PartOfRows, np.ndarray] | None = None
    for segment in SEGMENTS:
        if segment not in rows.texts:
            continue
        codes, values = rows.texts[segment]
        known = np.isfinite(of.x) & (codes >= 0)
        jumps = {}
        for code, value in enumerate(values):
            mine = known & (codes == code)
            if all(((rows.side == side) & mine).sum() >= FEWEST for side in (A, B)):
                jumps[value] = of.mean(mine & (rows.side == A)) - of.mean(mine & (rows.side == B))
        largest = max(jumps.values(), key=abs, default=0.0)
        if len(jumps) < 2 or largest == 0:
            continue
        inside = [v for v, jump in jumps.items() if jump / largest >= INSIDE]
        rest = [abs(jump / largest) for v, jump in jumps.items() if v not in inside]
        if not rest or max(rest) > OUTSIDE or len(inside) > max(len(jumps) // 2, 1):
            continue
        if best is None or (max(rest), len(inside)) < (best[0], len(best[1].values)):
            chosen = np.isin(codes, [values.index(v) for v in inside])
            best = max(rest), PartOfRows(segment, tuple(sorted(inside))), chosen
    return (best[1], best[2]) if best is not None else (None, np.ones(len(rows.side), bool))


def _picture(rows: SideRows, of: Levels) -> tuple[Picture | None, tuple[float | None, float | None]]:
    known = np.isfinite(of.x)
    a, b = of.x[known & (rows.side == A)], of.x[known & (rows.side == B)]
    if not len(a) or not len(b):
        return None, (None, None)
    medians = (float(np.median(a)), float(np.median(b)))
    low, high = min(a.min(), b.min()), max(a.max(), b.max())
    if low == high:
        return None, medians
    edges = np.linspace(low, high, BINS + 1)
    bars = [np.histogram(each, edges)[0] / len(each) for each in (a, b)]
    return Picture(tuple(edges.tolist()), tuple(bars[0].tolist()), tuple(bars[1].tolist())), medians


def _examples(rows: SideRows, of: Levels, median: float | None, numeric: bool) -> tuple[str, ...]:
    """Three typical rollouts of A: with the value, or nearest to the median; traced ones first."""
    held = np.isfinite(of.x) if numeric else of.x == 1
    there = np.flatnonzero(held & (rows.side == A))
    traced = np.zeros(len(there))
    if rows.columns.has("traced"):
        traced = np.nan_to_num(rows.table.column("traced").to_numpy(zero_copy_only=False).astype(float))[
            there
        ]
    distance = np.abs(of.x[there] - (median or 0.0)) if numeric else np.zeros(len(there))
    return rows.ids(there[np.lexsort((distance, -traced))][:EXAMPLES])


def _where(finding: Finding, part: PartOfRows | None) -> str:
    """A filter for the rollouts of a finding."""
    parts = []
    if finding.value is not None:
        parts.append(value_filter(finding.column, finding.value))
    if part is not None:
        each = " or ".join(f"{part.column} = {literal(v)}" for v in part.values)
        parts.append(each if len(part.values) == 1 else f"({each})")
    return " and ".join(parts)
