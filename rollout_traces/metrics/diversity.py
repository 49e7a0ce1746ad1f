"""Differences between the completions of a group, on the first sampled tokens of each."""

from __future__ import annotations

import zlib

import numpy as np

from rollout_traces.ledger.groups import GroupIndex
from rollout_traces.ledger.tokens import Segments, ratio
from rollout_traces.metrics.registry import Key, family, mean_of
from rollout_traces.metrics.view import StepView, Values

FIRST_TOKENS = 512
"""Sampled tokens of each rollout that are looked at."""
VOCABULARY = 2**20
"""Token ids beyond this are renumbered, so that a damaged id cannot ask for memory."""
COMPRESSED_FROM = 32
"""Sampled tokens below which a rollout is too short for its compression to say anything."""
PAIRWISE_ROLLOUTS = 64
"""Rollouts of a group that are compared pair by pair, in the order handed over."""


@family(
    reads="tokens",
    source="MaxEnt-GRPO, corrected",
    keys=(
        Key(
            "diversity/{distinct_2,jaccard_distance}", "inside groups, mean over groups; see the notes", True
        ),
        Key("diversity/distinct_1", "different tokens per token inside a group, mean over groups"),
        Key("diversity/{distinct_1,distinct_2,jaccard_distance}_micro", "groups weighted by their size"),
    ),
)
def diversity(view: StepView) -> Values:
    """Over groups of two or more, on the first 512 sampled tokens of each rollout.

    distinct_n = different n-grams / n-grams of the group; no n-gram crosses rollouts. jaccard_distance =
    mean over pairs of rollouts of 1 - |A and B| / |A or B| of their token sets.
    """
    if not view.has("group_ids"):
        return {}
    groups = view.groups
    several = groups.count(view.sampled.segments.filled) >= 2
    if not several.any():
        return {}
    heads = FirstTokens.of(view)
    sizes = groups.sizes.astype(np.float64)
    measures = {
        "distinct_1": distinct(heads.ids, heads.rows, groups),
        "distinct_2": distinct(*heads.bigrams(), groups),
        "jaccard_distance": jaccard_distances(heads, groups),
    }
    result: Values = {}
    for name, values in measures.items():
        usable = several & np.isfinite(values)
        result |= mean_of(f"diversity/{name}", values[usable])
        if usable.any():
            result[f"diversity/{name}_micro"] = float(np.average(values[usable], weights=sizes[usable]))
    return result


class FirstTokens:
    """The first sampled tokens of every rollout.

    Attributes:
        ids: int64 [M], 0 .. V - 1.
        rows: int64 [M], the rollout of each.
        n_ids: V.
    """

    def __init__(self, ids: np.ndarray, rows: np.ndarray) -> None:
        self.ids = ids
        self.rows = rows
        self.n_ids = int(ids.max(initial=0)) + 1

    @classmethod
    def of(cls, view: StepView) -> FirstTokens:
        """Takes them from a step."""
        segments = view.sampled.segments
        short = Segments(np.minimum(segments.counts, FIRST_TOKENS))
        rows = short.rows()
        at = np.arange(len(rows)) - short.starts[rows] + segments.starts[rows]
        ids = view.tokens.input_ids[view.sampled.positions[at]]
        if len(ids) and (ids.min() < 0 or ids.max() >= VOCABULARY):
            ids = np.unique(ids, return_inverse=True)[1].reshape(-1)
        return cls(ids, rows)

    def bigrams(self) -> tuple[np.ndarray, np.ndarray]:
        """Codes [M'] of the pairs of neighbours inside a rollout, and the rollout of each."""
        inside = self.rows[1:] == self.rows[:-1]
        return (self.ids[:-1] * self.n_ids + self.ids[1:])[inside], self.rows[1:][inside]


def distinct(grams: np.ndarray, rows: np.ndarray, groups: GroupIndex) -> np.ndarray:
    """float64 [K]: different n-grams / n-grams of each group, NaN where there are none.

    Args:
        grams: int64 [M], a code for each n-gram.
        rows: int64 [M], its rollout.
        groups: K groups.
    """
    codes = groups.codes[rows]
    span = int(grams.max(initial=0)) + 1
    different = np.bincount(sorted_unique(codes * span + grams) // span, minlength=len(groups))
    return ratio(different, np.bincount(codes, minlength=len(groups)))


def jaccard_distances(heads: FirstTokens, groups: GroupIndex) -> np.ndarray:
    """float64 [K]: mean over pairs of rollouts of the Jaccard distance of their token sets."""
    pairs = sorted_unique(heads.rows * heads.n_ids + heads.ids)
    rows, ids = pairs // heads.n_ids, pairs % heads.n_ids
    sizes = np.bincount(rows, minlength=len(groups.codes))
    starts = np.cumsum(sizes) - sizes
    distances = np.full(len(groups), np.nan)
    column_of = np.empty(heads.n_ids, np.int64)
    for code, members in enumerate(groups.rows()):
        members = members[sizes[members] > 0][:PAIRWISE_ROLLOUTS]
        if len(members) < 2:
            continue
        tokens = [ids[starts[row] : starts[row] + sizes[row]] for row in members.tolist()]
        vocabulary = np.concatenate(tokens)
        column_of[vocabulary] = -1
        column_of[vocabulary] = np.arange(len(vocabulary))
        present = np.zeros((len(members), len(vocabulary)), np.float32)
        for index, mine in enumerate(tokens):
            present[index, column_of[mine]] = 1
        shared = present @ present.T
        mine_sizes = sizes[members]
        upper = np.triu_indices(len(members), 1)
        together = (mine_sizes[:, None] + mine_sizes[None, :])[upper] - shared[upper]
        distances[code] = float(np.mean(1 - shared[upper] / together))
    return distances


def sorted_unique(codes: np.ndarray) -> np.ndarray:
    """The different values of an integer array, ascending; `np.unique` hashes them, which takes five times as long."""
    ordered = np.sort(codes)
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]


@family(
    reads="tokens",
    source="Shaib et al. 2024",
    keys=(
        Key(
            "diversity/compression_ratio",
            "bytes of a rollout's first 512 sampled ids / their bytes after zlib; higher repeats itself more",
        ),
    ),
)
def compression(view: StepView) -> Values:
    """Mean over rollouts of 32 sampled tokens or more; ids take four bytes each."""
    segments, positions = view.sampled.segments, view.sampled.positions
    ratios = []
    for row in np.flatnonzero(segments.counts >= COMPRESSED_FROM).tolist():
        first = int(segments.starts[row])
        at = positions[first : first + min(int(segments.counts[row]), FIRST_TOKENS)]
        raw = view.tokens.input_ids[at].astype("<i4").tobytes()
        ratios.append(len(raw) / len(zlib.compress(raw)))
    return mean_of("diversity/compression_ratio", np.asarray(ratios))


@family(
    reads="tokens",
    needs=("parsed_answers",),
    source="MaxEnt-GRPO",
    keys=(
        Key("diversity/unique_answer_share", "different answers / answers inside a group, mean over groups"),
    ),
)
def unique_answers(view: StepView) -> Values:
    """Mean over groups with two or more parsed answers of different answers / answers."""
    answers = view.tokens.row_lists["parsed_answers"]
    shares = []
    for rows in view.groups.rows():
        mine = [repr(answers[row]) for row in rows.tolist() if answers[row] is not None]
        if len(mine) >= 2:
            shares.append(len(set(mine)) / len(mine))
    return mean_of("diversity/unique_answer_share", np.asarray(shares))
