"""The rollouts of A and B as arrays, and of the steps before them where a step is compared with its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rollout_traces.analysis.relations import Relations, RolloutColumns, quoted, unit_over_steps
from rollout_traces.analysis.selections import Selection

A, B, BEFORE, LEFT_OUT = 0, 1, 2, 3
"""Sides: the two that are compared, the steps before both, which tell how far steps differ anyway, and none."""
MOST_ROWS = 2_000_000
"""Rollouts of A and B that are read; of more, those of evenly spread steps, and the answer says so."""
NO_STEP = -1
"""Step of a rollout that has none."""


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
        """float [N], NaN where unknown, NaN or infinite."""
        if name not in self._numbers:
            values = self.table.column(name).to_numpy(zero_copy_only=False).astype(float)
            self._numbers[name] = np.where(np.isfinite(values), values, np.nan)
        return self._numbers[name]

    def tags(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
        """A column of several values: bool [N] known; rows int [K] and codes int [K] of each value there; the values."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.table.column(name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        known = column.is_valid().to_numpy(zero_copy_only=False)
        rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        codes, values = coded(pc.list_flatten(column))
        there = codes >= 0
        pairs = np.unique(rows[there] * max(len(values), 1) + codes[there])
        return known, pairs // max(len(values), 1), pairs % max(len(values), 1), values

    @cached_property
    def at_random(self) -> tuple[np.ndarray, np.ndarray]:
        """bool [N] traced at random, and float [N] what each of them weighs: 1 / its probability."""
        everyone = np.ones(len(self.side))
        if not self.columns.has("traced", "selected_by"):
            return everyone.astype(bool), everyone
        traced = np.nan_to_num(
            self.table.column("traced").to_numpy(zero_copy_only=False).astype(float)
        ).astype(bool)
        by = np.asarray(self.table.column("selected_by").to_pylist(), object)
        weight = everyone
        if self.columns.has("selected_probability"):
            chance = self.table.column("selected_probability").to_numpy(zero_copy_only=False).astype(float)
            weight = np.where(chance > 0, 1 / np.where(chance > 0, chance, 1), 1.0)
        return traced & (by == "random"), weight

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

    one_run = len({(s.run, s.split) for _, s in sides}) == 1 and None not in (
        sides[0][1].run,
        sides[0][1].split,
    )
    names = [*columns.numbers, *columns.texts, *columns.tags]
    names += [n for n in ("id", "traced", "selected_by", "selected_probability") if columns.has(n)]
    what = [
        f'coalesce(step, {NO_STEP}) as "_step"',
        f'{unit_over_steps(columns, one_run=one_run)} as "_unit"',
    ]
    what += [f'{columns.expression("prompt_key")} as "_prompt"', *map(quoted, dict.fromkeys(names))]
    every = _every(relations, columns, [each for side, each in sides if side != BEFORE])
    parts, side_of = [], []
    for side, selection in sides:
        condition, params = selection.condition(columns)
        some = f" and hash(step) % {every} = 0" if every > 1 else ""
        part = relations.sql(f"select {', '.join(what)} from rollouts where {condition}{some}", params)
        parts.append(part)
        side_of.append(np.full(part.num_rows, side))
    table = pa.concat_tables(parts)
    sides_N = np.concatenate(side_of)
    prompt, prompts = coded(table.column("_prompt"))
    step = table.column("_step").to_numpy().astype(np.int64)
    units, unit = np.unique(table.column("_unit").to_numpy(), return_inverse=True)
    code = sides_N * max(len(units), 1) + unit
    groups, first, group = np.unique(code, return_index=True, return_inverse=True)
    return SideRows(
        columns, sides_N, step, group, sides_N[first], step[first], groups % max(len(units), 1), prompt[first],
        tuple(prompts), {name: coded(table.column(name)) for name in columns.texts}, every, table,
    )  # fmt: skip


def _every(relations: Relations, columns: RolloutColumns, selections: Sequence[Selection]) -> int:
    """1 where all rollouts are read, else: of every so many steps one."""
    total = 0
    for each in selections:
        condition, params = each.condition(columns)
        total += relations.sql(f"select count(*) as n from rollouts where {condition}", params)["n"][
            0
        ].as_py()
    return 1 + total // MOST_ROWS


def coded(column: Any) -> tuple[np.ndarray, list[str]]:
    """A text column as numbers, -1 for unknown, and what they stand for."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    found = column.dictionary_encode()
    indices = found.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return indices, [str(v) for v in found.dictionary.to_pylist()]
