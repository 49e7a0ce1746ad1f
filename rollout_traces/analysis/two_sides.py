"""The rollouts of A and B as arrays, those of the steps before them where a step is compared with its neighbours, and what the same
prompts got when they were asked before: the largest noise in a small step, taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    as_arrays,
    known_text,
    known_value,
    quoted,
    unit_over_steps,
)
from rollout_traces.analysis.run_rows import MOST_PARTS, distinct
from rollout_traces.analysis.selections import OUTCOMES, Selection
from rollout_traces.flags import needs_text

A, B, BEFORE, LEFT_OUT = 0, 1, 2, 3
"""Sides: the two that are compared, the steps before both, which tell how far steps differ anyway, and none."""
MOST_ROWS = 2_000_000
"""Rollouts of A and B that are read; of more, those of evenly spread steps, and the answer says so."""
NO_STEP = -1
"""Step of a rollout that has none."""
COUNTED = {"tool_names": "n_tool_calls", "error_signatures": "n_tool_errors"}
"""Columns that only rollouts with text know, each with the number of what it names: where that is known, no name is none."""


@dataclass(frozen=True, eq=False)
class SideRows:
    """Rollouts of both sides, one an entry of every array.

    Attributes:
        columns: what `rollouts` has.
        side: int [N], `A`, `B` or `BEFORE`; a rollout of both sides is there twice.
        step: int [N].
        group: int [N], code of its group on its side.
        group_side: int [G], side of each group.
        group_step: int [G].
        group_unit: int [G], the same for one group on both sides.
        group_prompt: int [G], the same for one prompt, -1 where it is unknown.
        prompts: the prompt keys that `group_prompt` counts.
        texts: column -> (int [N], -1 where unknown, the values that the codes stand for).
        left_out: steps of which every so many were read; 1 for all.
        table: the Arrow table behind it.
    """

    columns: RolloutColumns
    side: np.ndarray
    step: np.ndarray
    group: np.ndarray
    group_side: np.ndarray
    group_step: np.ndarray
    group_unit: np.ndarray
    group_prompt: np.ndarray
    prompts: tuple[str, ...]
    texts: dict[str, tuple[np.ndarray, list[str]]]
    left_out: int
    table: Any = field(repr=False)
    _numbers: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def number(self, name: str) -> np.ndarray:
        """float [N], NaN where unknown, NaN or infinite, and the reward where its function failed."""
        if name not in self._numbers:
            self._numbers[name] = self._column(name)
        return self._numbers[name]

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
        """A text, or a column of several values: bool [N] known; rows int [K] and codes int [K] of each value; the values."""
        import pyarrow.compute as pc

        if name in self.texts:
            codes, values = self.texts[name]
            rows = np.flatnonzero(codes >= 0)
            return codes >= 0, rows, codes[rows], values
        column = _whole(self.table.column(name))
        known = column.is_valid().to_numpy(zero_copy_only=False)
        if name in COUNTED and COUNTED[name] in self.columns.numbers:
            known |= self.traced & np.isfinite(self.number(COUNTED[name]))
        rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        codes, values = coded(pc.list_flatten(column))
        there = codes >= 0
        pairs = np.unique(rows[there] * max(len(values), 1) + codes[there])
        return known, pairs // max(len(values), 1), pairs % max(len(values), 1), values

    @cached_property
    def parts(self) -> dict[str, tuple[np.ndarray, list[str]]]:
        """The text columns by which A and B are parted: int [N], -1 where unknown, and the values that the codes stand for."""
        compared = self.side <= B
        return {
            name: (codes, values)
            for name, (codes, values) in self.texts.items()
            if name not in OUTCOMES and 2 <= len(np.unique(codes[compared & (codes >= 0)])) <= MOST_PARTS
        }

    def weighed(self, name: str, value: str) -> tuple[np.ndarray, np.ndarray]:
        """bool [N] which rollouts can tell whether they have a value, and float [N] what each of them counts."""
        if needs_texts(self.columns, name, value):
            return self.at_random
        return np.ones(len(self.side), bool), np.ones(len(self.side))

    @property
    def counts(self) -> tuple[int, int]:
        """Rollouts of A and of B."""
        return int((self.side == A).sum()), int((self.side == B).sum())

    @property
    def group_counts(self) -> tuple[int, int]:
        """Groups of A and of B."""
        return int((self.group_side == A).sum()), int((self.group_side == B).sum())

    @cached_property
    def at_random(self) -> tuple[np.ndarray, np.ndarray]:
        """bool [N] traced at random, and float [N] what each of them weighs: 1 / its probability."""
        import pyarrow as pa
        import pyarrow.compute as pc

        selected_by = pc.fill_null(_whole(self.table.column("selected_by")), "all")
        by_random = pc.is_in(selected_by, pa.array(["all", "random"]))
        weight = np.ones(len(self.side))
        if self.columns.has("selected_probability"):
            chance = self._column("selected_probability")
            weight = 1 / np.where(chance > 0, chance, 1.0)
        return self.traced & by_random.to_numpy(zero_copy_only=False), weight

    @cached_property
    def traced(self) -> np.ndarray:
        """bool [N]: of which the text was kept."""
        known = self.columns.has("traced")
        return np.nan_to_num(self._column("traced")).astype(bool) if known else np.zeros(len(self.side), bool)

    def _column(self, name: str) -> np.ndarray:
        return np.asarray(self.table.column(name).to_numpy(zero_copy_only=False).astype(float))

    def without(self, first: int, n_steps: int) -> SideRows:
        """The same where B is some steps before a step, and what lies between it and A is left out.

        Args:
            first: the first step that is left out.
            n_steps: how many steps B has.
        """
        known = np.unique(self.group_step[self.group_side != A])
        of_b = known[known < first][-n_steps:]

        def moved(side: np.ndarray, step: np.ndarray) -> np.ndarray:
            other = np.where(step >= first, LEFT_OUT, np.where(np.isin(step, of_b), B, BEFORE))
            return np.where(side == A, A, other)

        return replace(
            self, side=moved(self.side, self.step), group_side=moved(self.group_side, self.group_step)
        )

    def ids(self, rows: Sequence[int] | np.ndarray) -> tuple[str, ...]:
        """The ids of some rows; those without are left out."""
        if "id" not in self.table.column_names:
            return ()
        found = self.table.column("id").take(np.asarray(rows, np.int64)).to_pylist()
        return tuple(str(each) for each in found if each is not None)


def read_rows(
    relations: Relations, columns: RolloutColumns, sides: Sequence[tuple[int, Selection]]
) -> SideRows:
    """Reads the rollouts of some sides, a query each.

    Args:
        relations: where to read.
        columns: what `rollouts` has.
        sides: side and its rollouts.
    """
    import pyarrow as pa

    runs = {(s.run, s.split) for _, s in sides}
    one_run = len(runs) == 1 and None not in next(iter(runs))
    further = (n for n in ("id", "traced", "selected_by", "selected_probability") if columns.has(n))
    names = dict.fromkeys((*columns.texts, *columns.tags, *further))
    key, unit_of = columns.expression("prompt_key"), unit_over_steps(columns, one_run=one_run)
    what = [
        f'coalesce(step, {NO_STEP}) as "_step"',
        f'{unit_of} as "_unit"',
        f'{key} as "_prompt"',
        *(f"{known_value(columns, name)} as {quoted(name)}" for name in columns.numbers),
        *(f"{known_text(name)} as {quoted(name)}" for name in names),
    ]
    every = _every(relations, columns, [each for side, each in sides if side != BEFORE])
    parts = []
    for _, selection in sides:
        condition, params = selection.condition(columns)
        some = f" and hash(step) % {every} = 0" if every > 1 else ""
        parts.append(relations.sql(f"select {', '.join(what)} from rollouts where {condition}{some}", params))
    table = pa.concat_tables(parts)
    sides_N = np.repeat([side for side, _ in sides], [part.num_rows for part in parts])
    prompt, prompts = coded(table.column("_prompt"))
    step = table.column("_step").to_numpy().astype(np.int64)
    units, unit = np.unique(table.column("_unit").to_numpy(), return_inverse=True)
    code = sides_N * max(len(units), 1) + unit
    groups, group = distinct(code)
    first = np.empty(len(groups), np.int64)
    first[group[::-1]] = np.arange(len(code))[::-1]
    return SideRows(
        columns,
        sides_N,
        step,
        group,
        sides_N[first],
        step[first],
        groups % max(len(units), 1),
        prompt[first],
        tuple(prompts),
        {name: coded(table.column(name)) for name in columns.texts},
        every,
        table,
    )


def _every(relations: Relations, columns: RolloutColumns, selections: Sequence[Selection]) -> int:
    """1 where all rollouts are read, else: of every so many steps one."""
    counts = []
    for each in selections:
        condition, params = each.condition(columns)
        counts += relations.sql(f"select count(*) as n from rollouts where {condition}", params)[
            "n"
        ].to_pylist()
    return int(1 + sum(counts) // MOST_ROWS)


def needs_texts(columns: RolloutColumns, name: str, value: str) -> bool:
    """Tells whether rollouts whose text was kept alone can have a value, so that those kept at random speak for all."""
    texted = name in COUNTED or (name == "flags" and needs_text(value))
    return texted and columns.has("traced", "selected_by")


def coded(column: Any) -> tuple[np.ndarray, list[str]]:
    """A text column as numbers, -1 for unknown, and what they stand for."""
    found = _whole(column).dictionary_encode()
    indices = found.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return indices, [str(v) for v in found.dictionary.to_pylist()]


def _whole(column: Any) -> Any:
    """A column in one piece, and not as a dictionary."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


FEWEST_VISITED, MOSTLY = 5, 0.5
"""Groups of A, and of the others, whose prompts came before, and their part of A: below, nothing is adjusted."""


@dataclass(frozen=True, eq=False)
class EarlierVisits:
    """Every visit of some prompts, ordered by prompt and step.

    Attributes:
        start: int [G], where the visits of each group's prompt begin.
        stop: int [G], where those before its own step end.
        count: column -> float [V + 1], rollouts that know it, summed up to each visit.
        total: column -> float [V + 1], their sum.
    """

    start: np.ndarray
    stop: np.ndarray
    count: dict[str, np.ndarray]
    total: dict[str, np.ndarray]

    def mean(self, name: str) -> np.ndarray:
        """float [G]: mean over the earlier visits of each group's prompt, NaN where there were none."""
        n = self.count[name][self.stop] - self.count[name][self.start]
        total = self.total[name][self.stop] - self.total[name][self.start]
        return np.where(n > 0, total / np.maximum(n, 1), np.nan)

    def adjusted(self, name: str, means: np.ndarray, side: np.ndarray) -> np.ndarray | None:
        """Group means net of what the prompts' earlier visits let expect: their mean, drawn to that of all prompts.

        A mean over n rollouts counts by n / (n + k), k the variance inside prompts over that between them (empirical
        Bayes; Efron and Morris 1975). Both come from the groups that are not A's.

        Args:
            name: the column.
            means: float [G], NaN where unknown.
            side: int [G].

        Returns:
            NaN for groups whose prompt did not come before; None where so few did that A's mean would have no smaller error, or where
            most groups have one value, which ranks tell apart from all else.
        """
        if name not in self.count:
            return None
        before = self.mean(name)
        both = np.isfinite(before) & np.isfinite(means)
        others = both & (side != A)
        mine = int((both & (side == A)).sum())
        few = others.sum() < FEWEST_VISITED or mine < FEWEST_VISITED
        if few or mine < MOSTLY * (np.isfinite(means) & (side == A)).sum():
            return None
        n = self.count[name][self.stop] - self.count[name][self.start]
        x, y = before - before[others].mean(), means - means[others].mean()
        between = float((x * y)[others].mean())
        often = np.unique(means[others], return_counts=True)[1].max()
        if between <= 0 or often > MOSTLY * others.sum():
            return None
        within = max(float((x[others] ** 2).mean()) - between, 0.0) / float((1 / n[others]).mean())
        net = np.where(both, means - n / np.maximum(n + within / between, 1.0) * x, np.nan)
        known = np.isfinite(means)
        of_a = int((known & (side == A)).sum())
        gains = net[others].var() / mine < means[known & (side != A)].var() / of_a
        return net if gains else None


def read_earlier_visits(
    relations: Relations, columns: RolloutColumns, a: Selection, rows: SideRows
) -> EarlierVisits | None:
    """Reads all visits of the prompts in some rows; None where no prompt came twice.

    Args:
        relations: where to read.
        columns: what `rollouts` has.
        a: a step or some, of one run and split; what came later is no earlier visit.
        rows: the rollouts whose prompts are meant.
    """
    if not columns.has("prompt_key") or not rows.prompts or not columns.numbers:
        return None
    last = int(rows.step.max())
    condition, params = replace(a, steps=(None, last)).condition(columns)
    values = [known_value(columns, name) for name in columns.numbers]
    sums = ", ".join(f"count({x}) as k{i}, avg({x}) as m{i}" for i, x in enumerate(values))
    found = as_arrays(
        relations.sql(
            f"select prompt_key, step, {sums} from rollouts where {condition} and prompt_key in (select unnest(?)) "
            "group by prompt_key, step",
            [*params, list(rows.prompts)],
        )
    )
    code = {key: i for i, key in enumerate(rows.prompts)}
    prompt = np.asarray([code[key] for key in found["prompt_key"]], np.int64)
    place = prompt * (last + 2) + found["step"].astype(np.int64)
    order = np.argsort(place, kind="stable")
    place = place[order]
    known = rows.group_prompt >= 0
    base = np.where(known, rows.group_prompt, 0) * (last + 2)
    start = np.where(known, np.searchsorted(place, base), 0)
    stop = np.where(known, np.searchsorted(place, base + np.maximum(rows.group_step, 0)), 0)
    if not (stop > start).any():
        return None
    count, total = {}, {}
    for i, name in enumerate(columns.numbers):
        mean, n = found[f"m{i}"].astype(float)[order], found[f"k{i}"].astype(float)[order]
        n = np.where(np.isfinite(mean), n, 0.0)
        count[name] = np.concatenate([[0.0], np.cumsum(n)])
        total[name] = np.concatenate([[0.0], np.cumsum(np.where(n > 0, mean, 0.0) * n)])
    return EarlierVisits(start, stop, count, total)
