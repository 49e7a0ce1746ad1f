"""The rollouts of a run as arrays: every number, its group, and the parts that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.analysis.relations import quoted, unit_over_steps
from rollout_traces.analysis.series import RunSeries

LOOKED_THROUGH = 125_000
"""Rollouts that are read; of a longer run those of a part of its steps."""


@dataclass(frozen=True, eq=False)
class RowSample:
    """Rollouts of whole steps.

    Attributes:
        steps: int [T], ascending.
        at: int [N], position of each rollout's step.
        group: uint64 [N], its group.
        parts: text column -> (int [N], -1 where unknown, the values that the codes stand for).
        numbers: numeric column -> float [N], NaN where unknown.
    """

    steps: np.ndarray
    at: np.ndarray
    group: np.ndarray
    parts: dict[str, tuple[np.ndarray, list[str]]]
    numbers: dict[str, np.ndarray]

    def splits(self) -> Iterator[tuple[tuple[str, ...], np.ndarray, list[tuple[str, ...]]]]:
        """Ways to part the rollouts: by nothing, by one column, by the source and another column.

        Yields:
            The columns, int [N] with the part of each rollout, -1 where unknown, and the values of each part.
        """
        yield (), np.zeros(len(self.at), np.int64), [()]
        for name, (codes, values) in self.parts.items():
            yield (name,), codes, [(value,) for value in values]
        if "source" not in self.parts:
            return
        sources, of_source = self.parts["source"]
        for name, (codes, values) in self.parts.items():
            if name != "source":
                both = np.where((codes >= 0) & (sources >= 0), sources * len(values) + codes, -1)
                yield ("source", name), both, [(s, v) for s in of_source for v in values]


def row_sample(run: RunSeries) -> RowSample:
    """Reads the rollouts of a run, or of steps spread over it where they are more than `LOOKED_THROUGH`."""
    every_so_many = 1 + int(run.row_counts.sum()) // LOOKED_THROUGH
    names = list(dict.fromkeys((*run.segments, *run.further)))
    numbers = run.columns.numbers
    what = [f"step, {unit_over_steps(run.columns, one_run=True)} as unit"]
    what += [f"cast({quoted(name)} as double) as c{i}" for i, name in enumerate(numbers)]
    what += [f"{quoted(name)} as t{i}" for i, name in enumerate(names)]
    found = run.relations.sql(
        f"select {', '.join(what)} from rollouts where {run.scope} and hash(step) % {every_so_many} = 0",
        run.params,
    )
    steps, at = np.unique(found.column("step").to_numpy().astype(np.int64), return_inverse=True)
    parts = {name: _coded(found.column(f"t{i}")) for i, name in enumerate(names)}
    return RowSample(
        steps,
        at,
        found.column("unit").to_numpy(),
        {name: (codes, values) for name, (codes, values) in parts.items() if len(values) >= 2},
        {name: found.column(f"c{i}").to_numpy().astype(float) for i, name in enumerate(numbers)},
    )


def _coded(column: Any) -> tuple[np.ndarray, list[str]]:
    """A text column as numbers, -1 for unknown, and what they stand for."""
    coded = column.combine_chunks().dictionary_encode()
    if hasattr(coded, "combine_chunks"):
        coded = coded.combine_chunks()
    indices = coded.indices.to_numpy(zero_copy_only=False).astype(float)
    return np.nan_to_num(indices, nan=-1).astype(np.int64), [str(v) for v in coded.dictionary.to_pylist()]
