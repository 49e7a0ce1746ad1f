"""A run's columns as series over its steps: overall, and for each source and engine.

A step's value is a mean (numbers) or a share (values of text columns and tags) over **all** its rollouts; what
needs text is a share of the rollouts traced at random. Overall and engine series have the mix of sources
taken out: each source's usual level is subtracted before the mean, so that sources that alternate do not look
like a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rollout_traces.analysis.relations import (
    as_arrays,
    failed,
    known_number,
    known_reward,
    quoted,
    unit,
)
from rollout_traces.analysis.scope import RunScope
from rollout_traces.flags import needs_text
from rollout_traces.ledger.rewards import TIED_SQL

MOST_VALUES = 60
"""Values of one text column that get a series, the most frequent first."""
RARE_TEXTS = frozenset(("answer",))
"""Text columns with too many values to follow each over the steps."""
MOSTLY = 0.5
"""Share of the groups that hold several values of a column from which they are drawn inside groups."""
LEAST_FREEDOM = 8
"""Rollouts less their groups that a step's correlation of reward and length needs."""
FEWEST = 3
"""Rollouts that a part of a step needs to have a value."""


GROUP_SHARES: Mapping[str, tuple[str, str]] = {
    "group/tie_share": ("several", "tied"),
    "group/wasted_tokens": ("tokens", "tied_tokens"),
    "group/mixed_prompts": ("several", "mixed"),
    "group/repeated_prompts": ("groups", "repeated"),
    "group/size": ("groups", "rows_"),
    "reward/unknown_share": ("rows_", "unknown"),
}
"""A measure of groups -> what it is a share of, or a mean over, and of what, as columns of `RunSeries.groups`."""


@dataclass(frozen=True, eq=False)
class Series:
    """One number over the steps of a run.

    Attributes:
        column: ledger column, derived measure (`group/...`) or metric key.
        value: the value whose share it is; None for a mean.
        segment: `(column, value)` of the part of the step it speaks of; None for all of it.
        steps: int [n], ascending.
        values: float [n], as a person reads them.
        adjusted: float [n], with the mix of sources taken out; what is tested.
        rows: float [n], rollouts behind each value; empty for logged metrics.
        against: float [n], as `values`, with the level of the other parts of the same step and source taken out; empty
            where parts are not drawn inside groups, so that they need not be alike.
    """

    column: str
    value: str | None
    segment: tuple[str, str] | None
    steps: np.ndarray
    values: np.ndarray
    adjusted: np.ndarray
    rows: np.ndarray = field(default_factory=lambda: np.empty(0))
    against: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def is_share(self) -> bool:
        """Whether the values are shares."""
        return self.value is not None

    @property
    def name(self) -> str:
        """Column, value and segment in words."""
        value = f" {self.value}" if self.value is not None else ""
        part = f" on {self.segment[0]} {self.segment[1]}" if self.segment else ""
        return f"{self.column}{value}{part}"


@dataclass(eq=False)
class RunSeries(RunScope):
    """The series of one run and split, read once and computed when asked."""

    @cached_property
    def _cells(self) -> dict[str, np.ndarray]:
        """Counts and sums of each number by step, source and engine."""
        parts = ["count(*) as n"]
        for i, name in enumerate(self.columns.numbers):
            known = known_number(name)
            parts += [f"count({known}) as k{i}", f"sum({known}) as s{i}"]
        keys = ", ".join(["step", *map(quoted, self.segments)])
        query = f"select {keys}, {', '.join(parts)} from rollouts where {self.scope} group by {keys}"
        return as_arrays(self.relations.sql(query, self.params))

    @cached_property
    def steps(self) -> np.ndarray:
        """int [T]: the steps of the split, ascending."""
        return np.unique(self._cells["step"].astype(np.int64))

    @cached_property
    def row_counts(self) -> np.ndarray:
        """float [T]: rollouts of each step."""
        at = np.searchsorted(self.steps, self._cells["step"].astype(np.int64))
        return np.bincount(at, self._cells["n"].astype(float), len(self.steps))

    def numbers(self) -> Iterator[Series]:
        """A series for the mean of each numeric column, overall and by segment."""
        for i, name in enumerate(self.columns.numbers):
            cells = {key: self._cells[key] for key in ("step", *self.segments)}
            yield from self._of_cells(name, None, cells, self._cells[f"k{i}"], self._cells[f"s{i}"])

    def shares(self) -> Iterator[Series]:
        """A series for the share of each value of each text and tag column, overall and by segment."""
        bases = [
            (name, texted, condition)
            for name in (*self.columns.texts, *self.columns.tags)
            if name not in RARE_TEXTS
            for texted, condition in self._bases(name)
        ]
        if not bases:
            return
        parts = [self._counts_query(at, name, condition) for at, (name, _, condition) in enumerate(bases)]
        found = as_arrays(self.relations.sql(" union all ".join(parts)))
        for at, (name, texted, _) in enumerate(bases):
            here = found["which"] == at
            yield from self._shares_of(
                name, texted, {key: found[key][here] for key in ("step", *self.segments, "v", "n")}
            )

    def _counts_query(self, at: int, name: str, condition: str) -> str:
        """A SELECT of the rollouts with each value in each cell; of a column of several values also of those that know it."""
        keys = ", ".join(["step", *map(quoted, self.segments)])
        where = self.with_values(
            f"from rollouts where {self.scope} and {quoted(name)} is not null{condition}"
        )
        if name not in self.columns.tags:
            return f"select {at} as which, {keys}, cast({quoted(name)} as varchar) as v, count(*) as n {where} group by all"
        each = f"select {keys}, unnest(list_distinct({quoted(name)})) as v {where}"
        return (
            f"select {at} as which, {keys}, v, count(*) as n from ({each}) where v is not null group by all "
            f"union all select {at}, {keys}, null, count(*) {where} group by all"
        )

    def _shares_of(self, name: str, texted: bool | None, found: dict[str, np.ndarray]) -> Iterator[Series]:
        if not len(found["n"]):
            return
        keys = ("step", *self.segments)
        cell = _codes([found[key] for key in keys])
        _, first = np.unique(cell, return_index=True)
        cells = {key: found[key][first] for key in keys}
        n, size = found["n"].astype(float), len(first)
        of_value = np.asarray([v is not None for v in found["v"]])
        known = of_value if name not in self.columns.tags else ~of_value
        base = np.bincount(cell[known], n[known], size)
        values, totals = _most_frequent(found["v"][of_value], n[of_value])
        for v in values:
            if texted is not None and needs_text(v) is not texted:
                continue
            if name not in self.columns.tags and totals[v] >= base.sum():
                continue
            here = found["v"] == v
            hits = np.bincount(cell[here], n[here], size)
            yield from self._of_cells(
                name, str(v), cells, base, hits, name if name in self.segments else None
            )

    def _bases(self, name: str) -> list[tuple[bool | None, str]]:
        """Over which rows shares of a column are taken: all, or those traced at random where it needs text."""
        if not self.columns.has("traced", "selected_by"):
            return [(None, "")]
        random = " and traced and selected_by = 'random'"
        if name == "flags":
            return [(False, ""), (True, random)]
        if name in ("tool_names", "error_signatures"):
            return [(None, random)]
        return [(None, "")]

    def _of_cells(
        self,
        column: str,
        value: str | None,
        cells: dict[str, np.ndarray],
        n: np.ndarray,
        total: np.ndarray,
        is_segment: str | None = None,
    ) -> Iterator[Series]:
        n, total = n.astype(float), np.nan_to_num(total.astype(float))
        keep = n > 0
        if not keep.any():
            return
        at = np.searchsorted(self.steps, cells["step"].astype(np.int64))
        level = np.zeros(len(n))
        if "source" in cells and is_segment != "source":
            level = _usual_level(cells["source"], n, total)
        yield self._one(column, value, None, at, n, total, level, keep)
        for segment in self.segments:
            if segment == is_segment or segment not in cells:
                continue
            names = [name for name in dict.fromkeys(cells[segment].tolist()) if name is not None]
            if len(names) < 2 or len(names) > MOST_VALUES:
                continue
            others = self._level_of_others(segment, cells, n, total) if segment in self._drawn else None
            for name in names:
                rows = keep & (cells[segment] == name)
                if n[rows].sum() >= FEWEST:
                    of = np.zeros(len(n)) if segment == "source" else level
                    yield self._one(column, value, (segment, str(name)), at, n, total, of, rows, others)

    @cached_property
    def _drawn(self) -> frozenset[str]:
        """The segments, but for the source, of which most groups hold several values: engines that share the work."""
        names = [name for name in self.segments if name != "source"]
        if not names or not len(self.steps):
            return frozenset()
        some = {int(self.steps[int(q * (len(self.steps) - 1))]) for q in (0.0, 0.5, 1.0)}
        counts = ", ".join(f"count(distinct {quoted(name)}) as d{i}" for i, name in enumerate(names))
        query = (
            f"select {', '.join(f'avg(cast(d{i} > 1 as int)) as s{i}' for i in range(len(names)))} from (select {counts} from "
            f"rollouts where {self.scope} and step in ({', '.join(map(str, sorted(some)))}) group by step, {unit(self.columns)} having count(*) > 1)"
        )
        row = self.relations.sql(query, self.params).to_pylist()[0]
        return frozenset(name for i, name in enumerate(names) if (row[f"s{i}"] or 0) > MOSTLY)

    def _level_of_others(
        self, segment: str, cells: dict[str, np.ndarray], n: np.ndarray, total: np.ndarray
    ) -> np.ndarray:
        """float [C]: for each cell the mean of the other values of a segment in its step and source; NaN where there are none."""
        keys = [cells[key] for key in ("step", "source") if key in cells]
        code = _codes(keys)
        rest = np.bincount(code, n)[code] - n
        sums = np.bincount(code, total)[code] - total
        return np.where(rest > 0, sums / np.maximum(rest, 1), np.nan)

    def _one(
        self,
        column: str,
        value: str | None,
        segment: tuple[str, str] | None,
        at: np.ndarray,
        n: np.ndarray,
        total: np.ndarray,
        level: np.ndarray,
        rows: np.ndarray,
        others: np.ndarray | None = None,
    ) -> Series:
        size = len(self.steps)
        count = np.bincount(at[rows], n[rows], size)
        sums = np.bincount(at[rows], total[rows], size)
        less = np.bincount(at[rows], (total - level * n)[rows], size)
        there = count >= (FEWEST if segment is not None else 1)
        raw = sums[there] / count[there]
        centre = float(np.average(level[rows], weights=n[rows]))
        adjusted = less[there] / count[there] + centre
        against = np.empty(0)
        if others is not None:
            beside = rows & np.isfinite(others)
            n_beside = np.bincount(at[beside], n[beside], size)
            apart = np.bincount(at[beside], (total - others * n)[beside], size)
            if (n_beside[there] > 0).all():
                against = apart[there] / n_beside[there] + float(
                    np.average(others[beside], weights=n[beside])
                )
        return Series(column, value, segment, self.steps[there], raw, adjusted, count[there], against)

    def needs_text(self, column: str, value: str) -> bool:
        """Whether the share of a value is taken over the rollouts traced at random."""
        if not self.columns.has("traced", "selected_by"):
            return False
        return column in ("tool_names", "error_signatures") or (column == "flags" and needs_text(value))

    @cached_property
    def groups(self) -> dict[str, np.ndarray]:
        """What only whole groups know, summed by step and source."""
        return as_arrays(self.relations.sql(self.groups_query, self.params))

    @property
    def groups_query(self) -> str:
        """The SELECT of `groups`; takes `params`."""
        c = self.columns
        by_source = c.expression("source")
        reward = known_reward(c)
        given = known_number("reward") if c.has("reward") else "cast(null as double)"
        length = known_number("n_sampled") if c.has("n_sampled") else "cast(null as double)"
        inner = f"""
            select step, {by_source} as source, {unit(c)} as unit, count(*) as n,
                count({reward}) as known, sum({failed(c)}) as failed, count({given}) as given, min({reward}) as low, max({reward}) as high,
                sum({length}) as tokens,
                covar_pop({reward}, {length})*count({reward}) as sxy,
                var_pop({reward})*count({reward}) as syy, var_pop({length})*count({length}) as sxx,
                min({c.expression("prompt_key")}) as first_key,
                cast(min({c.expression("prompt_key")}) <> max({c.expression("prompt_key")}) as int) as mixed
            from rollouts where {self.scope} group by 1, 2, 3"""
        return f"""
            select step, source, count(*) as groups, sum(cast(n >= 2 as int)) as several,
                sum(cast({TIED_SQL} as int)) as tied,
                sum(case when {TIED_SQL} then tokens end) as tied_tokens, sum(tokens) as tokens,
                sum(case when {TIED_SQL} then high end) as tied_reward,
                sum(case when known >= 2 then sxy end) as sxy, sum(case when known >= 2 then syy end) as syy,
                sum(case when known >= 2 then sxx end) as sxx, sum(case when known >= 2 then known - 1 end) as freedom,
                sum(cast(known >= 2 and high > low as int)) as varied,
                sum(cast(n >= 2 and known >= 2 and mixed = 1 as int)) as mixed, sum(n) as rows_,
                sum(given) as known, count(first_key) - count(distinct first_key) as repeated,
                min(low) as low, max(high) as high, sum(n) - sum(given) as unknown
            from ({inner}) group by 1, 2"""

    def group_measures(self) -> Iterator[Series]:
        """Shares of groups: tied, of several prompts, of repeated prompts; wasted tokens; update in three rows."""
        g = self.groups
        if not len(g["step"]):
            return
        cells = {"step": g["step"]} | ({"source": g["source"]} if self.columns.has("source") else {})
        for name, (of, what) in GROUP_SHARES.items():
            yield from self._of_cells(name, None, cells, np.nan_to_num(g[of].astype(float)), g[what])
        yield from (
            series
            for series in (self.top_rows, self.length_correlation, self.advantage_scale)
            if series is not None
        )

    @property
    def top_rows_query(self) -> str:
        """The SELECT of `top_rows`; takes `params`."""
        return f"""
            select step, list_sum(max(update_share, 3)) / nullif(sum(update_share), 0) as top, count(update_share) as n
            from rollouts where {self.scope} and update_share >= 0 group by step having n > 3 order by step"""

    @cached_property
    def top_rows(self) -> Series | None:
        """Share of the step's update that its three heaviest rows carry."""
        if not self.columns.has("update_share"):
            return None
        found = as_arrays(self.relations.sql(self.top_rows_query, self.params))
        top = found["top"].astype(float)
        there = np.isfinite(top)
        return Series(
            "update/top3_share",
            None,
            None,
            found["step"][there].astype(np.int64),
            top[there],
            top[there],
            found["n"][there],
        )

    @property
    def advantage_scale_query(self) -> str:
        """The SELECT of `advantage_scale`; takes `params`."""
        return (
            f"select step, avg(advantage*advantage) as square, count(*) as n from rollouts where {self.scope} "
            "and isfinite(cast(advantage as double)) and advantage <> 0 group by step order by step"
        )

    @cached_property
    def advantage_scale(self) -> Series | None:
        """Root mean square of the advantages that are not 0: about 1 where they are divided by their spread."""
        if not self.columns.has("advantage"):
            return None
        found = as_arrays(self.relations.sql(self.advantage_scale_query, self.params))
        if not len(found["step"]):
            return None
        scale = np.sqrt(found["square"].astype(float))
        return Series("advantage/scale", None, None, found["step"].astype(np.int64), scale, scale, found["n"])

    @property
    def length_correlation_query(self) -> str:
        """The SELECT of `length_correlation`; takes `params`."""
        return f"""
            select step, sum(sxy) / sqrt(sum(sxx)*sum(syy)) as correlation, sum(freedom) as freedom
            from ({self.groups_query}) group by step
            having sum(sxx) > 0 and sum(syy) > 0 and sum(freedom) >= {LEAST_FREEDOM} order by step"""

    @cached_property
    def length_correlation(self) -> Series | None:
        """Correlation of reward and sampled tokens inside groups, pooled over the groups of a step."""
        g = self.groups
        steps, at = np.unique(g["step"].astype(np.int64), return_inverse=True)
        sxy, sxx, syy, freedom = (
            np.bincount(at, np.nan_to_num(g[name].astype(float)), len(steps))
            for name in ("sxy", "sxx", "syy", "freedom")
        )
        there = (sxx > 0) & (syy > 0) & (freedom >= LEAST_FREEDOM)
        if not there.any():
            return None
        values = sxy[there] / np.sqrt(sxx[there] * syy[there])
        return Series("group/reward_corr_length", None, None, steps[there], values, values, freedom[there])

    def component_spreads(self) -> Iterator[Series]:
        """Standard deviation of each reward component over the rollouts of a step."""
        names = [name for name in self.columns.numbers if name.startswith("component/")]
        if not names:
            return
        parts = ", ".join(f"stddev_pop({known_number(name)}) as d{i}" for i, name in enumerate(names))
        found = as_arrays(
            self.relations.sql(
                f"select step, {parts} from rollouts where {self.scope} group by step order by step",
                self.params,
            )
        )
        for i, name in enumerate(names):
            values = found[f"d{i}"].astype(float)
            there = np.isfinite(values)
            yield Series(
                name, None, None, found["step"][there].astype(np.int64), values[there], values[there]
            )

    @cached_property
    def newest_versions(self) -> Series | None:
        """The newest policy version of each step."""
        if not self.columns.has("version_max"):
            return None
        query = f"select step, max(version_max) as v from rollouts where {self.scope} and version_max is not null group by step order by step"
        found = as_arrays(self.relations.sql(query, self.params))
        if not len(found["step"]):
            return None
        values = found["v"].astype(float)
        return Series("version_max", None, None, found["step"].astype(np.int64), values, values)

    @property
    def always_solved_query(self) -> str:
        """The SELECT of `always_solved`; takes `params`."""
        return f"""
            with visits as (
                select step, prompt_key, {unit(self.columns)} as unit, cast(bool_and(coalesce(success = 1, false)) as int) as solved
                from rollouts where {self.scope} and prompt_key is not null group by 1, 2, 3),
            recorded as (
                select step, count(distinct step) over (partition by prompt_key) as visits,
                    min(solved) over (partition by prompt_key) as always
                from visits)
            select step, count(*) as n, avg(cast(always = 1 and visits > 1 as int)) as share
            from recorded group by step order by step"""

    @cached_property
    def always_solved(self) -> Series | None:
        """Share of a step's groups that ask a prompt which every rollout of two or more visits solved."""
        if not self.columns.has("prompt_key", "success"):
            return None
        found = as_arrays(self.relations.sql(self.always_solved_query, self.params))
        if not len(found["step"]):
            return None
        values = found["share"].astype(float)
        return Series(
            "prompts/always_solved_share",
            None,
            None,
            found["step"].astype(np.int64),
            values,
            values,
            found["n"],
        )


def _most_frequent(values: np.ndarray, counts: np.ndarray) -> tuple[list[Any], dict[Any, float]]:
    totals: dict[Any, float] = {}
    for v, n in zip(values.tolist(), counts.tolist(), strict=True):
        totals[v] = totals.get(v, 0) + n
    return sorted(totals, key=lambda v: (-totals[v], str(v)))[:MOST_VALUES], totals


def _codes(keys: Sequence[np.ndarray]) -> np.ndarray:
    """int [C]: the same number for cells with the same keys, counted from 0."""
    code = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        if key.dtype == object:
            index: dict[Any, int] = {}
            of_key = np.asarray([index.setdefault(value, len(index)) for value in key.tolist()], np.int64)
        else:
            _, of_key = np.unique(key, return_inverse=True)
        code = code * (int(of_key.max(initial=0)) + 1) + of_key
    return np.unique(code, return_inverse=True)[1]


def _usual_level(sources: np.ndarray, n: np.ndarray, total: np.ndarray) -> np.ndarray:
    """float [C]: for each cell the mean over the run of its source."""
    names, code = np.unique(np.asarray([str(s) for s in sources]), return_inverse=True)
    counts = np.bincount(code, n, len(names))
    return (np.bincount(code, total, len(names)) / np.maximum(counts, 1))[code]
