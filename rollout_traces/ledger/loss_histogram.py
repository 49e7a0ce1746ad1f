"""A histogram of a step's loss tokens, from which clipping and masking rules can be tried later over the whole step.

Every loss token of a row that was used falls into a cell: the log ratios of the new and of the prox against the
rollout logprob, the sign of its advantage, its staleness, its source and its turn. A cell holds how many tokens
it has and how much they update, |A| x loss weight (1 where none is given). The bins end at the thresholds that are
commonly used (ratios of 0.5, 0.8, 1.2, 1.28, 2, 3, 5), so that rules of one of the two ratios with these are answered
exactly; the ratio of new to prox, a difference of both, has bounds. Where a step has more cells than fit, neighbouring bins
are merged first, then turns, then sources, then staleness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.ledger.build import turn_numbers
from rollout_traces.ledger.tokens import MaskedTokens
from rollout_traces.model.packed_arrays import check_count, damage_said, pack_text, unpack_text
from rollout_traces.model.packed_batch import PackedBatch

MAX_BYTES = 10_000
"""Bytes of a packed histogram at most."""
COARSE_EDGES = tuple(math.log(r) for r in (0.5, 0.8, 1.2, 2))
MEDIUM_EDGES = tuple(sorted([*COARSE_EDGES, *(math.log(r) for r in (0.2, 1.0, 1.28, 3, 5))]))
_NEAR_ONE = tuple(sign * nats for nats in (0.02, 0.05) for sign in (-1, 1))
EDGES = tuple(sorted([*MEDIUM_EDGES, *_NEAR_ONE, math.log(0.9), math.log(1.1)]))
"""Edges of the bins of a log ratio, nats; the first and the last bin are open, and -1 is unknown."""
MAX_SOURCES = 8
MAX_STALENESS = 3
MAX_TURN = 3
DIMENSIONS = ("new", "prox", "sign", "staleness", "source", "turn")
_WHAT = "loss histogram"
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
    reasons = batch.row_lists.get("discard_reasons", [None] * batch.n_rows)
    used = np.asarray([reason is None for reason in reasons], bool)[in_loss.rows]
    if not used.any():
        return None
    unknown = np.full(len(used), np.nan)
    advantages = unknown if in_loss.advantages is None else in_loss.advantages
    weights = in_loss.track("loss_weights")
    weight = np.abs(advantages) * (1.0 if weights is None else np.abs(np.nan_to_num(weights, nan=1.0)))
    names, source = _sources(batch)
    others = {"new": in_loss.track("new_logprobs"), "prox": in_loss.track("prox_logprobs")}
    ratios = {
        name: unknown if other is None else other.astype(np.float64) - in_loss["logprobs"]
        for name, other in others.items()
    }
    cells = {
        name: np.where(np.isfinite(d), np.searchsorted(EDGES, d, side="right"), -1)
        for name, d in ratios.items()
    } | {
        "sign": np.where(np.isfinite(advantages), np.sign(advantages), 2).astype(np.int64),
        "staleness": _staleness(batch, in_loss),
        "source": source[in_loss.rows],
        "turn": np.minimum(turn_numbers(batch)[in_loss.positions], MAX_TURN),
    }
    of_used = {name: values[used] for name, values in cells.items()}
    weight = np.where(np.isfinite(weight), weight, 0.0)[used]
    return _within_limit(_summed(EDGES, names, of_used, np.ones(len(weight)), weight))


def pack(histogram: LossHistogram) -> str:
    """Packs a histogram into a text of at most `MAX_BYTES`, for a step summary."""
    cells = {name: histogram.cells[name].astype(np.int8) for name in DIMENSIONS}
    counts = {"tokens": histogram.tokens.astype(np.uint32), "weight": histogram.weight.astype(np.float32)}
    return pack_text({"edges": histogram.edges, "sources": histogram.sources}, cells | counts)


def unpack(packed: str) -> LossHistogram:
    """Reads what `pack` made.

    Raises:
        StoreError: it is damaged, or of another schema.
    """
    head, arrays = unpack_text(packed, _WHAT)
    with damage_said(_WHAT):
        n_cells = check_count(len(arrays["tokens"]), MAX_BYTES)
        if any(len(column) != n_cells for column in arrays.values()):
            raise ValueError("columns of different lengths")
        tokens, weight = arrays["tokens"].astype(np.int64), arrays["weight"].astype(np.float64)
        cells = {name: arrays[name].astype(np.int64) for name in DIMENSIONS}
        return LossHistogram(tuple(head["edges"]), tuple(head["sources"]), cells, tokens, weight)


def joined(parts: Sequence[LossHistogram]) -> LossHistogram:
    """The histogram of a step of several parts, those that came late among them, with the edges that all have.

    Args:
        parts: at least one.
    """
    edges = min((part.edges for part in parts), key=len)
    names = list(dict.fromkeys(name for part in parts for name in part.sources))
    names = names if len(names) <= MAX_SOURCES else [*names[: MAX_SOURCES - 1], "other"]
    numbers = {name: number for number, name in enumerate(names)}
    merged = [_merged(part, edges, ()) for part in parts]
    cells = {name: np.concatenate([part.cells[name] for part in merged]) for name in DIMENSIONS}
    renamed = [
        np.asarray([*(numbers.get(name, len(names) - 1) for name in part.sources), -1])[part.cells["source"]]
        for part in merged
    ]
    cells["source"] = np.concatenate(renamed)
    tokens, weight = (np.concatenate([getattr(part, of) for part in merged]) for of in ("tokens", "weight"))
    return _summed(edges, tuple(names), cells, tokens, weight)


def _sources(batch: PackedBatch) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the sources, and int64 [B]: each row's number."""
    given = batch.row_lists.get("sources") or [None] * batch.n_rows
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


def _within_limit(whole: LossHistogram) -> LossHistogram:
    """The histogram with as many bins and dimensions as fit."""
    for n_merged in range(len(_MERGED_FIRST) + 1):
        for edges in (EDGES, MEDIUM_EDGES, COARSE_EDGES):
            found = _merged(whole, edges, _MERGED_FIRST[:n_merged])
            if len(pack(found)) <= MAX_BYTES:
                return found
    return found


def _merged(whole: LossHistogram, edges: tuple[float, ...], without: Sequence[str]) -> LossHistogram:
    """The histogram with fewer edges, all of them among those it has, and without some dimensions."""
    bin_of = np.searchsorted(edges, [-np.inf, *whole.edges], side="right")
    cells = dict(whole.cells)
    cells |= {name: np.where(cells[name] < 0, -1, bin_of[cells[name]]) for name in ("new", "prox")}
    cells |= {name: np.full_like(cells[name], -1) for name in without}
    return _summed(edges, whole.sources, cells, whole.tokens, whole.weight)


def _summed(
    edges: tuple[float, ...],
    sources: tuple[str, ...],
    cells: Mapping[str, np.ndarray],
    tokens: np.ndarray,
    weight: np.ndarray,
) -> LossHistogram:
    """The histogram with equal cells as one."""
    shape = (32,) * len(DIMENSIONS)
    numbers = np.ravel_multi_index([cells[name] + 1 for name in DIMENSIONS], shape)
    codes, inverse = np.unique(numbers, return_inverse=True)
    named = {name: at - 1 for name, at in zip(DIMENSIONS, np.unravel_index(codes, shape), strict=True)}
    counts, summed = (np.bincount(inverse, weights=of, minlength=len(codes)) for of in (tokens, weight))
    return LossHistogram(edges, sources, named, counts.astype(np.int64), summed)
