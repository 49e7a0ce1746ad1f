"""A histogram of a step's loss tokens, from which clipping and masking rules can be tried later over the whole step.

Every loss token of a row that was used falls into a cell: the log ratios of the new and of the prox against the
rollout logprob, the sign of its advantage, its staleness, its source and its turn. A cell holds how many tokens
it has and how much they update, |A| x loss weight (1 where none is given). The bins end at the thresholds that are
commonly used (ratios of 0.5, 0.8, 1.2, 1.28, 2, 3, 5), so that rules with these are answered exactly. Where a step has
more cells than fit, neighbouring bins are merged first, then turns, then sources, then staleness.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.ledger.masked_tokens import MaskedTokens
from rollout_traces.packed_batch import PackedBatch

MAX_BYTES = 10_000
"""Bytes of a packed histogram at most."""
EDGES = tuple(
    sorted(
        [math.log(r) for r in (0.2, 0.5, 0.8, 0.9, 1.0, 1.1, 1.2, 1.28, 2, 3, 5)] + [-0.05, -0.02, 0.02, 0.05]
    )
)
"""Edges of the bins of a log ratio, nats; the first and the last bin are open, and -1 is unknown."""
MEDIUM_EDGES = tuple(math.log(r) for r in (0.2, 0.5, 0.8, 1.0, 1.2, 1.28, 2, 3, 5))
COARSE_EDGES = tuple(math.log(r) for r in (0.5, 0.8, 1.2, 2))
MAX_SOURCES = 8
MAX_STALENESS = 3
MAX_TURN = 3
DIMENSIONS = ("new", "prox", "sign", "staleness", "source", "turn")
_MERGED_FIRST = ("turn", "source", "staleness")


@dataclass(frozen=True, eq=False)
class LossHistogram:
    """The loss tokens of a step in C cells.

    Attributes:
        edges: of the bins of `new` and `prox`, nats.
        sources: what the numbers in `source` stand for; sources beyond the first ones are `other`.
        cells: dimension -> int [C]; bins of `new` and `prox` by `edges` (-1 = unknown), `sign` of the advantage
            (-1, 0, 1; 2 = unknown), `staleness` (-1 = unknown, 3 = 3 or more), `source` (-1 = unknown), `turn`
            (3 = 3 or more, -1 = merged).
        tokens: int64 [C].
        weight: float64 [C]; sum of |advantage| x loss weight.
    """

    edges: tuple[float, ...]
    sources: tuple[str, ...]
    cells: Mapping[str, np.ndarray]
    tokens: np.ndarray
    weight: np.ndarray


def loss_histogram(batch: PackedBatch) -> LossHistogram | None:
    """The histogram of a step's loss tokens.

    Args:
        batch: all rollouts of the step.

    Returns:
        None where no token is in the loss, or neither new nor prox logprobs are known.
    """
    if "logprobs" not in batch.tracks or not {"new_logprobs", "prox_logprobs"} & batch.tracks.keys():
        return None
    in_loss = MaskedTokens.in_loss(batch)
    logprobs = in_loss.track("logprobs")
    others = {"new": in_loss.track("new_logprobs"), "prox": in_loss.track("prox_logprobs")}
    discarded = np.asarray(
        [reason is not None for reason in batch.row_lists.get("discard_reasons", [None] * batch.n_rows)], bool
    )
    row = np.repeat(np.arange(batch.n_rows), in_loss.segments.counts)
    used = ~discarded[row]
    if logprobs is None or not used.any():
        return None
    ratios = {name: _difference(other, logprobs) for name, other in others.items()}
    advantages = in_loss.advantages
    advantages = np.full(len(row), np.nan) if advantages is None else advantages
    weights = in_loss.track("loss_weights")
    weight = np.abs(advantages) * (1.0 if weights is None else np.abs(np.nan_to_num(weights, nan=1.0)))
    names, source = _sources(batch)
    cells = {
        "sign": np.where(np.isfinite(advantages), np.sign(advantages), 2).astype(np.int64),
        "staleness": _staleness(batch, in_loss),
        "source": source[row],
        "turn": np.minimum(_turns(batch)[in_loss.positions], MAX_TURN),
    }
    weight = np.where(np.isfinite(weight), weight, 0.0)
    return _within_limit(cells, ratios, weight, used, names)


def pack(histogram: LossHistogram) -> dict[str, Any]:
    """Plain values of at most `MAX_BYTES`, for a step summary."""
    cells = np.stack([histogram.cells[name] for name in DIMENSIONS]).astype(np.int8)
    arrays = (
        cells.tobytes() + histogram.tokens.astype("<u4").tobytes() + histogram.weight.astype("<f4").tobytes()
    )
    return {
        "version": 1,
        "edges": list(histogram.edges),
        "sources": list(histogram.sources),
        "n": len(histogram.tokens),
        "packed": base64.b64encode(zlib.compress(arrays, 6)).decode("ascii"),
    }


def unpack(values: Mapping[str, Any]) -> LossHistogram:
    """The histogram that `pack` gave.

    Raises:
        ValueError: it is damaged, or of a newer version.
    """
    n = int(values["n"])
    if values.get("version") != 1 or not 0 <= n <= MAX_BYTES:
        raise ValueError(f"loss histogram: version {values.get('version')!r} with {n} cells cannot be read.")
    inflater = zlib.decompressobj()
    data = inflater.decompress(base64.b64decode(values["packed"]), n * 14 + 1)
    if len(data) != n * 14:
        raise ValueError(f"loss histogram: {len(data)} bytes for {n} cells. Expected {n * 14}.")
    cells = np.frombuffer(data, np.int8, n * len(DIMENSIONS)).reshape(len(DIMENSIONS), n).astype(np.int64)
    tokens = np.frombuffer(data, "<u4", n, n * 6).astype(np.int64)
    weight = np.frombuffer(data, "<f4", n, n * 10).astype(np.float64)
    named = dict(zip(DIMENSIONS, cells, strict=True))
    return LossHistogram(tuple(values["edges"]), tuple(values["sources"]), named, tokens, weight)


def _difference(other: np.ndarray | None, logprobs: np.ndarray) -> np.ndarray:
    return np.full(len(logprobs), np.nan) if other is None else other.astype(np.float64) - logprobs


def _sources(batch: PackedBatch) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the sources, and int64 [B]: each row's number."""
    given: Sequence[Any] = batch.row_lists.get("sources") or [None] * batch.n_rows
    texts = [None if value is None else str(value) for value in given]
    names = list(dict.fromkeys(text for text in texts if text is not None))
    if len(names) > MAX_SOURCES:
        names = [*names[: MAX_SOURCES - 1], "other"]
    numbers = {name: number for number, name in enumerate(names)}
    return tuple(names), np.asarray(
        [-1 if text is None else numbers.get(text, len(names) - 1) for text in texts], np.int64
    )


def _staleness(batch: PackedBatch, in_loss: MaskedTokens) -> np.ndarray:
    versions = in_loss.track("versions")
    if versions is None or batch.train_version is None:
        return np.full(len(in_loss.positions), -1, np.int64)
    lag = np.clip(int(batch.train_version) - versions.astype(np.int64), 0, MAX_STALENESS)
    return np.where(versions >= 0, lag, -1)


def _turns(batch: PackedBatch) -> np.ndarray:
    """int64 [N]: the number of the sampled run that a token belongs to, from 0 in each row."""
    starts = batch.response_mask.copy()
    starts[1:] &= ~batch.response_mask[:-1]
    first = batch.offsets[:-1][batch.lengths > 0]
    starts[first] = batch.response_mask[first]
    begun = np.cumsum(starts)
    before = np.concatenate([np.zeros(1, np.int64), begun])[batch.offsets[:-1]]
    return np.maximum(begun - np.repeat(before, batch.lengths) - 1, 0)


def _within_limit(
    cells: dict[str, np.ndarray],
    ratios: Mapping[str, np.ndarray],
    weight: np.ndarray,
    used: np.ndarray,
    sources: tuple[str, ...],
) -> LossHistogram:
    """The histogram with as many dimensions as fit."""
    binned = {name: _bins(values, EDGES) for name, values in ratios.items()}
    whole = _count({**binned, **cells}, weight, used, sources)
    for n_merged in range(len(_MERGED_FIRST) + 1):
        for edges in (EDGES, MEDIUM_EDGES, COARSE_EDGES):
            found = _merged(whole, edges, _MERGED_FIRST[:n_merged])
            if len(pack(found)["packed"]) <= MAX_BYTES - 1000:
                return found
    return found


def _merged(whole: LossHistogram, edges: tuple[float, ...], without: Sequence[str]) -> LossHistogram:
    """The histogram with fewer edges, all of them among those it has, and without some dimensions."""
    bin_of = np.searchsorted(edges, [-np.inf, *whole.edges], side="right")
    cells = {
        name: np.where(values < 0, -1, bin_of[values]) if name in ("new", "prox") else values
        for name, values in whole.cells.items()
    }
    cells |= {name: np.full_like(cells[name], -1) for name in without}
    named, tokens, weight = _summed(cells, whole.tokens, whole.weight)
    return LossHistogram(edges, whole.sources, named, tokens, weight)


def _bins(values: np.ndarray, edges: tuple[float, ...]) -> np.ndarray:
    return np.where(np.isfinite(values), np.searchsorted(edges, values, side="right"), -1).astype(np.int64)


def _count(
    cells: Mapping[str, np.ndarray], weight: np.ndarray, used: np.ndarray, sources: tuple[str, ...]
) -> LossHistogram:
    named, tokens, summed = _summed(
        {name: values[used] for name, values in cells.items()}, np.ones(int(used.sum())), weight[used]
    )
    return LossHistogram(EDGES, sources, named, tokens, summed)


def _summed(
    cells: Mapping[str, np.ndarray], tokens: np.ndarray, weight: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Equal cells as one: dimension -> int64 [C], tokens int64 [C], weight float64 [C]."""
    code = np.zeros(len(tokens), np.int64)
    for name in DIMENSIONS:
        code = code * 32 + (cells[name] + 1)
    codes, inverse = np.unique(code, return_inverse=True)
    named: dict[str, np.ndarray] = {}
    left = codes
    for name in reversed(DIMENSIONS):
        named[name] = left % 32 - 1
        left = left // 32
    counts, summed = (np.bincount(inverse, weights=of, minlength=len(codes)) for of in (tokens, weight))
    return {name: named[name] for name in DIMENSIONS}, counts.astype(np.int64), summed
