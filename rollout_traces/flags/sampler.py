"""Flags about what the sampler logged: its logprobs, its versions, its padding."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from rollout_traces.flags.flag import Flag, counted
from rollout_traces.flags.inputs import Population, Runs
from rollout_traces.flags.registry import make_flag, population_flag
from rollout_traces.model.packed_batch import PackedBatch


@population_flag(
    "logprob_out_of_range",
    family="policy",
    severity="error",
    meaning="rollout logprobs of sampled tokens are above 0, or all exactly 0: they are no logprobs",
    needs=("logprobs",),
)
def logprob_out_of_range(
    population: Population,
    *,
    above: Annotated[float, "nats above 0 that rounding may explain"] = 0.01,
    min_tokens: Annotated[int, "sampled tokens from which all of them being 0 is no accident"] = 32,
) -> dict[int, list[Flag]]:
    """Rollout logprob > 0.01 at a sampled token; on training rollouts also 0 at every one of 32 or more.

    An evaluation may be greedy, of which some engines log a logprob of 0.
    """
    batch, sampled = population.batch, population.sampled
    values = sampled.track("logprobs")
    if values is None:
        return {}
    found: dict[int, list[Flag]] = {}
    with np.errstate(invalid="ignore"):
        positive = values > above
    for row, at, n in _first_of_rows(population, positive):
        value = batch.tracks["logprobs"][int(batch.offsets[row]) + at]
        text = f"The rollout logprob is above 0 at {counted(n, 'sampled token')}, first {value:.3g} at token {at}."
        found[row] = [make_flag("logprob_out_of_range", text, start=at, stop=at + 1)]
    if batch.split != "rollout":
        return found
    starts, counts = sampled.segments.starts, sampled.segments.counts
    for row in (counts >= min_tokens).nonzero()[0].tolist():
        first, n = int(starts[row]), int(counts[row])
        if values[first] == 0 and not values[first : first + n].any():
            text = f"The rollout logprob is 0 at all of the row's {n} sampled tokens."
            found[row] = [make_flag("logprob_out_of_range", text)]
    return found


@population_flag(
    "version_order",
    family="policy",
    severity="warn",
    meaning="policy versions go back within a rollout, or are ahead of the trainer's",
    needs=("versions",),
)
def version_order(population: Population) -> dict[int, list[Flag]]:
    """A sampled token's version below that of an earlier one; on training rollouts also above the train version."""
    batch, sampled = population.batch, population.sampled
    versions = sampled.track("versions")
    if versions is None or not len(versions):
        return {}
    found: dict[int, list[Flag]] = {}
    for row, at, n in _first_of(population, _fallen(population, versions)):
        text = f"The policy version goes back {counted(n, 'time')}, first at token {at}, to {_at(batch, row, at)}."
        found[row] = [make_flag("version_order", text, start=at, stop=at + 1)]
    if batch.train_version is None or batch.split != "rollout":
        return found
    for row, at, n in _first_of_rows(population, versions > batch.train_version):
        text = (
            f"{counted(n, 'sampled token')} of a version ahead of the trainer's {batch.train_version}, "
            f"the first of version {_at(batch, row, at)} at token {at}."
        )
        found.setdefault(row, []).append(make_flag("version_order", text, start=at, stop=at + 1))
    return found


@population_flag(
    "pad_attended",
    family="mask",
    severity="error",
    meaning="padding is attended to: the row begins or ends with padding tokens",
    needs=("pad_id",),
)
def pad_attended(
    population: Population, *, min_tokens: Annotated[int, "padding tokens at an edge from which it fires"] = 2
) -> dict[int, list[Flag]]:
    """Two padding tokens or more at the start or the end of a row; a single one may be what ends or begins a text."""
    batch = population.batch
    runs = Runs.of(batch.input_ids == batch.pad_id, batch.offsets)
    long = np.flatnonzero(runs.lengths >= min_tokens)
    first, last = runs.offsets[runs.rows[long]], runs.offsets[runs.rows[long] + 1]
    at_edge = long[(runs.starts[long] == first) | (runs.stops[long] == last)]
    found: dict[int, list[Flag]] = {}
    for run in at_edge.tolist():
        start, stop = runs.local(run)
        where = "begins" if start == 0 else "ends"
        text = f"The row {where} with {stop - start} padding tokens (id {batch.pad_id}) that are attended to."
        found.setdefault(int(runs.rows[run]), [make_flag("pad_attended", text, start=start, stop=stop)])
    return found


def _fallen(population: Population, versions: np.ndarray) -> np.ndarray:
    """Numbers of the sampled tokens whose version is below that of the known one before it in their row."""
    known = None if versions.min() >= 0 else (versions >= 0).nonzero()[0]
    seen = versions if known is None else versions[known]
    fallen = (seen[1:] < seen[:-1]).nonzero()[0]
    if not len(fallen):
        return fallen
    before, after = (fallen, fallen + 1) if known is None else (known[fallen], known[fallen + 1])
    return after[_row_of(population, before) == _row_of(population, after)]


def _first_of_rows(population: Population, where_M: np.ndarray) -> list[tuple[int, int, int]]:
    """Row, first position in it and number of the marked sampled tokens, for each row that has any."""
    return _first_of(population, where_M.nonzero()[0])


def _first_of(population: Population, marked: np.ndarray) -> list[tuple[int, int, int]]:
    """The same of sampled tokens by their number, ascending."""
    if not len(marked):
        return []
    rows, first, counts = np.unique(_row_of(population, marked), return_index=True, return_counts=True)
    at = population.sampled.positions[marked[first]] - population.batch.offsets[rows]
    return list(zip(rows.tolist(), at.tolist(), counts.tolist(), strict=True))


def _row_of(population: Population, marked: np.ndarray) -> np.ndarray:
    """The rows of sampled tokens by their number."""
    positions = population.sampled.positions[marked]
    return np.searchsorted(population.batch.offsets, positions, side="right") - 1


def _at(batch: PackedBatch, row: int, position: int) -> int:
    return int(batch.tracks["versions"][int(batch.offsets[row]) + position])
