"""Flags about the policy: which weights sampled the tokens, what the sampler logged, and whether the trainer sees the same tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from rollout_traces.flags.detect import Population, RowFlags, Runs, TracedRow
from rollout_traces.flags.registry import also_on_rows, counted, make_flag, population_flag
from rollout_traces.ledger.groups import reward_failed
from rollout_traces.ledger.tokens import LOG_RATIO_LIMIT, log_ratio
from rollout_traces.metrics.shapes import broken_prefixes, trajectories
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.text import quoted
from rollout_traces.model.transcript import FLOAT_TRACKS, Flag

_MEAN, _FEWEST = 1.05, 16
"""Thresholds of `logprob_mismatch`, which two detectors find."""


@population_flag(
    meaning="sampled tokens are older than the trainer's off-policy limit",
    needs=("versions", "train_version", "stale.limit"),
    splits=("rollout",),
    explained_by=("version_order",),
    given="staleness_max",
    follows=("staleness_max",),
)
def stale(
    population: Population, *, limit: Annotated[int | None, "versions a token may lag; off until set"] = None
) -> RowFlags:
    """train_version - version > limit on sampled tokens."""
    batch = population.batch
    versions = batch.tracks["versions"]
    oldest = int(batch.train_version or 0) - int(limit or 0)
    runs = Runs.of(batch.response_mask & (versions >= 0) & (versions < oldest), batch.offsets)
    counts = np.bincount(runs.rows, weights=runs.lengths, minlength=batch.n_rows).astype(np.int64)
    lag = int(batch.train_version or 0) - population.ledger.get("version_min")
    for row, run in zip(*(part.tolist() for part in runs.first_of_rows()), strict=True):
        start, stop = runs.local(run)
        text = (
            f"More than {limit} versions old: {counted(counts[row], 'sampled token')}, the oldest {lag[row]}."
        )
        yield row, make_flag("stale", text, start=start, stop=stop)


@population_flag(
    severity="info",
    meaning="the policy version changes inside a sampled turn",
    needs=("versions",),
    explained_by=("version_order",),
    given="staleness_max",
    follows=("staleness_max",),
)
def mixed_versions(population: Population) -> RowFlags:
    """Neighbouring sampled tokens of one turn with different versions."""
    seen = population.sampled.track("versions")
    if seen is None or not len(seen) or seen.min() == seen.max():
        return
    batch = population.batch
    versions = batch.tracks["versions"]
    sampled = batch.response_mask & (versions >= 0)
    changed = np.zeros(len(versions), bool)
    changed[1:] = sampled[1:] & sampled[:-1] & (versions[1:] != versions[:-1])
    turn_ids = batch.tracks.get("turn_ids")
    if turn_ids is not None:
        changed[1:] &= turn_ids[1:] == turn_ids[:-1]
    changed[batch.offsets[:-1][batch.lengths > 0]] = False
    at = changed.nonzero()[0]
    if not len(at):
        return
    rows, first, counts = np.unique(
        np.searchsorted(batch.offsets, at, side="right") - 1, return_index=True, return_counts=True
    )
    for row, change, count in zip(rows.tolist(), at[first].tolist(), counts.tolist(), strict=True):
        inside = slice(change, int(batch.offsets[row + 1]))
        same = sampled[inside] & (versions[inside] == versions[change])
        length = int(np.argmin(same)) if not same.all() else len(same)
        start = change - int(batch.offsets[row])
        text = (
            f"The policy version changes from {versions[change - 1]} to {versions[change]} inside a turn, "
            f"at token {start}" + (f" ({count} such changes in the row)." if count > 1 else ".")
        )
        yield row, make_flag("mixed_versions", text, start=start, stop=start + length)


@population_flag(
    meaning="the row's mean exp(|prox - rollout logprob|) is too large at staleness 0",
    needs=("logprobs", "prox_logprobs"),
    splits=("rollout",),
    explained_by=("logprob_out_of_range",),
    given="mismatch_abs_max",
    follows=("mismatch_k3",),
)
def logprob_mismatch(
    population: Population,
    *,
    mean_above: Annotated[float, "mean exp(|d|) from which it fires"] = _MEAN,
    min_tokens: Annotated[int, "sampled tokens at staleness 0 that a row needs"] = _FEWEST,
) -> RowFlags:
    """Mean of e^|d| over the row's sampled tokens, d = prox minus rollout logprob clamped to +-20.

    Tokens of another staleness are left out; where staleness is unknown all tokens count.
    """
    sampled = population.sampled
    d = sampled.log_ratio
    if d is None or not len(d):
        return
    used = np.isfinite(d)
    versions = sampled.track("versions")
    if versions is not None and population.batch.train_version is not None:
        newest = sampled.segments.max(versions, -1)
        unknown = np.repeat(newest < 0, sampled.segments.counts)
        used &= (versions == population.batch.train_version) | unknown
    size = np.where(used, np.abs(d), 0)
    segments = sampled.segments
    counts = segments.sum(used)
    excess = segments.sum(np.expm1(size))
    fires = (counts >= min_tokens) & (excess > (mean_above - 1) * counts)
    starts = segments.starts
    for row in np.flatnonzero(fires).tolist():
        inside = slice(int(starts[row]), int(starts[row] + segments.counts[row]))
        local = sampled.positions[inside] - population.batch.offsets[row]
        mean = 1 + excess[row] / counts[row]
        yield row, _mismatch_flag(mean, int(counts[row]), local, np.where(used, d, 0)[inside], None)


@also_on_rows("logprob_mismatch", needs=("logprobs", "prox_logprobs"))
def logprob_mismatch_with_text(
    row: TracedRow,
    *,
    mean_above: Annotated[float, "mean exp(|d|) from which it fires"] = _MEAN,
    min_tokens: Annotated[int, "sampled tokens at staleness 0 that a row needs"] = _FEWEST,
) -> Iterator[Flag]:
    """The same on a decoded row, which can show the worst tokens."""
    tokens = row.transcript.tokens
    d = log_ratio(tokens.tracks.get("prox_logprobs"), tokens.tracks.get("logprobs"))
    if d is None:
        return
    used = np.isfinite(d) & tokens.response_mask
    versions = tokens.tracks.get("versions")
    if versions is not None and row.batch.train_version is not None and (versions[used] >= 0).any():
        used &= versions == row.batch.train_version
    at = np.flatnonzero(used)
    if len(at) < min_tokens:
        return
    mean = float(np.exp(np.abs(d[at].astype(np.float64))).mean())
    if mean > mean_above:
        yield _mismatch_flag(mean, len(at), at, d[at], list(row.transcript.token_texts()))


def _mismatch_flag(
    mean: float, count: int, positions: np.ndarray, d: np.ndarray, texts: Sequence[str] | None
) -> Flag:
    worst = np.argsort(-np.abs(d), kind="stable")[:3]
    named = []
    for index in worst.tolist():
        at = int(positions[index])
        limit = "at least " if abs(d[index]) >= LOG_RATIO_LIMIT else ""
        text = f" {quoted(texts[at])}" if texts is not None else ""
        named.append(f"{at}{text} ({limit}{d[index]:+.2f})")
    message = (
        f"Mean exp(|d|) is {mean:.3f} over {count} tokens, d = prox minus rollout logprob; "
        f"the largest d at tokens {', '.join(named)}."
    )
    at = int(positions[worst[0]])
    return make_flag("logprob_mismatch", message, start=at, stop=at + 1)


@population_flag(
    severity="error", meaning="a sampled or trained token, or the row, has a NaN or an infinite value"
)
def nonfinite(population: Population) -> RowFlags:
    """NaN or inf in a float track at a sampled or loss token, or in a reward.

    What a row came without was not given (`PackedBatch.not_given`); components and sample metrics may be NaN
    where they do not apply; a discarded row or one whose reward function failed may have no reward.
    """
    batch = population.batch
    seen: dict[int, list[tuple[str, np.ndarray]]] = {}
    used = batch.response_mask | batch.loss_mask
    for name in FLOAT_TRACKS:
        if name in batch.tracks:
            for row, positions in _bad_tokens(batch, name, used).items():
                seen.setdefault(row, []).append((name, positions))
    for name, bad in _bad_rows(population):
        for row in np.flatnonzero(bad).tolist():
            seen.setdefault(row, []).append((name, np.zeros(0, np.int64)))
    for row, where in sorted(seen.items()):
        yield row, _nonfinite_flag(batch, row, where)


def _bad_tokens(batch: PackedBatch, name: str, used: np.ndarray) -> dict[int, np.ndarray]:
    """Row -> its positions, among the tokens `used`, at which a track is not finite."""
    bad = ~np.isfinite(batch.tracks[name]) & used
    if not bad.any():
        return {}
    at = np.flatnonzero(bad)
    rows = np.searchsorted(batch.offsets, at, side="right") - 1
    given = ~batch.lacks("tracks", name)[rows]
    at, rows = at[given], rows[given]
    edges = np.flatnonzero(np.diff(rows)) + 1
    return {
        int(r[0]): a - batch.offsets[r[0]]
        for r, a in zip(np.split(rows, edges), np.split(at, edges), strict=True)
        if len(r)
    }


def _bad_rows(population: Population) -> Iterator[tuple[str, np.ndarray]]:
    batch, ledger = population.batch, population.ledger
    if not (batch.row_floats or batch.reward_components or batch.sample_metrics):
        return
    excused = np.asarray([reason is not None for reason in ledger.get("discard_reason")], bool)
    excused |= reward_failed(ledger)
    for name, values in batch.row_floats.items():
        unknown = np.isnan(values) & ~excused & ~batch.lacks("row_floats", name)
        yield name, np.isinf(values) | unknown
    named: Mapping[str, Any] = {**batch.reward_components, **batch.sample_metrics}
    for name, values in named.items():
        yield quoted(name), np.isinf(values)


def _nonfinite_flag(batch: PackedBatch, row: int, where: Sequence[tuple[str, np.ndarray]]) -> Flag:
    parts = []
    first = None
    for name, positions in where:
        if len(positions):
            value = batch.tracks[name][int(batch.offsets[row] + positions[0])]
            parts.append(
                f"{name} at {counted(len(positions), 'token')}, the first {value} at token {positions[0]}"
            )
            first = positions if first is None or positions[0] < first[0] else first
        else:
            parts.append(f"{name} of the row")
    text = f"Not finite: {'; '.join(parts)}."
    if first is None:
        return make_flag("nonfinite", text)
    breaks = np.flatnonzero(np.diff(first) > 1)
    stop = first[breaks[0]] if len(breaks) else first[-1]
    return make_flag("nonfinite", text, start=first[0], stop=stop + 1)


@population_flag(
    severity="error",
    meaning="in row-per-call exports, the prompt of a call does not extend the call before it",
    needs=("extras",),
)
def prefix_broken(population: Population) -> RowFlags:
    """Rows of one trajectory whose prompt does not begin with all tokens of the row before, see `trajectories`."""
    batch = population.batch
    for rows in trajectories(batch, population.ledger.get("group")):
        for broken in broken_prefixes(batch, rows):
            text = (
                f"The prompt of call {broken.call} departs from call {broken.call - 1} at token {broken.shared}: "
                f"it repeats {broken.shared} of its {broken.past} tokens."
            )
            last = min(max(broken.prompt, broken.shared + 1), int(batch.n_tokens[broken.row]))
            start = min(broken.shared, last - 1)
            yield broken.row, make_flag("prefix_broken", text, start=start, stop=last)


@population_flag(
    severity="error",
    meaning="rollout logprobs of sampled tokens are above 0, or all exactly 0: they are no logprobs",
    needs=("logprobs",),
)
def logprob_out_of_range(
    population: Population,
    *,
    above: Annotated[float, "nats above 0 that rounding may explain"] = 0.01,
    min_tokens: Annotated[int, "sampled tokens from which all of them being 0 is no accident"] = 32,
) -> RowFlags:
    """Rollout logprob > 0.01 at a sampled token; on training rollouts also 0 at every one of 32 or more.

    An evaluation may be greedy, of which some engines log a logprob of 0.
    """
    batch, sampled = population.batch, population.sampled
    values = sampled.track("logprobs")
    if values is None:
        return
    with np.errstate(invalid="ignore"):
        positive = values > above
    for row, at, n in _first_of_rows(population, positive):
        value = batch.tracks["logprobs"][int(batch.offsets[row]) + at]
        text = f"The rollout logprob is above 0 at {counted(n, 'sampled token')}, first {value:.3g} at token {at}."
        yield row, make_flag("logprob_out_of_range", text, start=at, stop=at + 1)
    if batch.split != "rollout":
        return
    starts, counts = sampled.segments.starts, sampled.segments.counts
    for row in (counts >= min_tokens).nonzero()[0].tolist():
        first, n = int(starts[row]), int(counts[row])
        if values[first] == 0 and not values[first : first + n].any():
            text = f"The rollout logprob is 0 at all of the row's {n} sampled tokens."
            yield row, make_flag("logprob_out_of_range", text)


@population_flag(
    meaning="policy versions go back within a rollout, or are ahead of the trainer's", needs=("versions",)
)
def version_order(population: Population) -> RowFlags:
    """A sampled token's version below that of an earlier one; on training rollouts also above the train version."""
    batch, sampled = population.batch, population.sampled
    versions = sampled.track("versions")
    if versions is None or not len(versions):
        return
    for row, at, n in _first_of(population, _fallen(population, versions)):
        text = f"The policy version goes back {counted(n, 'time')}, first at token {at}, to {_at(batch, row, at)}."
        yield row, make_flag("version_order", text, start=at, stop=at + 1)
    if batch.train_version is None or batch.split != "rollout":
        return
    for row, at, n in _first_of_rows(population, versions > batch.train_version):
        text = (
            f"{counted(n, 'sampled token')} of a version ahead of the trainer's {batch.train_version}, "
            f"the first of version {_at(batch, row, at)} at token {at}."
        )
        yield row, make_flag("version_order", text, start=at, stop=at + 1)


@population_flag(
    family="mask",
    severity="error",
    meaning="padding is attended to: the row begins or ends with padding tokens",
    needs=("pad_id",),
)
def pad_attended(
    population: Population, *, min_tokens: Annotated[int, "padding tokens at an edge from which it fires"] = 2
) -> RowFlags:
    """Two padding tokens or more at the start or the end of a row; a single one may be what ends or begins a text."""
    batch = population.batch
    runs = Runs.of(batch.input_ids == batch.pad_id, batch.offsets)
    long = np.flatnonzero(runs.lengths >= min_tokens)
    first, last = runs.offsets[runs.rows[long]], runs.offsets[runs.rows[long] + 1]
    at_edge = long[(runs.starts[long] == first) | (runs.stops[long] == last)]
    rows, first_run = np.unique(runs.rows[at_edge], return_index=True)
    for row, run in zip(rows.tolist(), at_edge[first_run].tolist(), strict=True):
        start, stop = runs.local(run)
        where = "begins" if start == 0 else "ends"
        text = f"The row {where} with {stop - start} padding tokens (id {batch.pad_id}) that are attended to."
        yield row, make_flag("pad_attended", text, start=start, stop=stop)


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
