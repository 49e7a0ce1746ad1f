"""Row-per-call exports: whether the prompt of a call holds all that came before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rollout_traces.metrics.registry import Key, family, mean_of
from rollout_traces.metrics.view import StepView, Values
from rollout_traces.model.packed_batch import PackedBatch


@dataclass(frozen=True)
class BrokenPrefix:
    """A call whose prompt departs from the call before it.

    Attributes:
        row: the row of the call.
        call: its number in its trajectory, from 2.
        shared: tokens that both have in common at the start.
        past: tokens of the call before it.
        prompt: tokens of this call's prompt.
    """

    row: int
    call: int
    shared: int
    past: int
    prompt: int


def trajectories(batch: PackedBatch, group: np.ndarray) -> Iterator[list[int]]:
    """The rows of each trajectory with tokens, in the order of its calls.

    A trajectory is what the caller says it is: rows of one group with equal `extras["trajectory"]`, in
    the order of `extras["call"]`, else in the order handed over. Nothing is guessed: sample ids may repeat
    over the samples of a prompt.

    Args:
        batch: B rollouts.
        group: int64 [B].
    """
    calls: dict[tuple[int, str], list[tuple[Any, int]]] = {}
    lengths = batch.lengths
    for row, extras in enumerate(batch.row_lists.get("extras") or ()):
        if isinstance(extras, Mapping) and extras.get("trajectory") is not None and lengths[row]:
            key = (int(group[row]), repr(extras["trajectory"]))
            calls.setdefault(key, []).append((extras.get("call"), row))
    for rows in calls.values():
        numbered = all(isinstance(call, (int, float)) for call, _ in rows)
        yield [row for _, row in (sorted(rows) if numbered else rows)]


def broken_prefixes(batch: PackedBatch, rows: list[int]) -> Iterator[BrokenPrefix]:
    """The calls of one trajectory whose prompt does not begin with all tokens of the call before.

    Args:
        rows: the trajectory's rows, in order.
    """
    stops = batch.prompt_stops
    for number, (before, row) in enumerate(pairwise(rows), start=2):
        past = batch.input_ids[batch.row(before)]
        prompt = batch.input_ids[int(batch.offsets[row]) : int(stops[row])]
        shared = shared_length([past, prompt])
        if shared < len(past):
            yield BrokenPrefix(row, number, shared, len(past), len(prompt))


def shared_length(sequences: Sequence[np.ndarray], start: int = 0) -> int:
    """The position up to which all sequences are equal, looked at from `start` on."""
    shortest = min(len(sequence) for sequence in sequences)
    lead = sequences[0][start:shortest]
    stop = len(lead)
    for sequence in sequences[1:]:
        different = np.flatnonzero(sequence[start : start + stop] != lead[:stop])
        if len(different):
            stop = int(different[0])
    return start + stop


@family(
    reads="tokens",
    needs=("extras",),
    keys=(
        Key("trajectory/prefix_broken_share", "trajectories of two calls or more with a broken prefix"),
        Key("trajectory/first_broken_call_mean", "number of the first call whose prefix is broken, from 2"),
    ),
)
def prefixes(view: StepView) -> Values:
    """trajectories with a broken prefix / trajectories of two calls or more, and the mean of their first such call."""
    several = [rows for rows in trajectories(view.tokens, view.ledger.get("group")) if len(rows) > 1]
    first = [next(broken_prefixes(view.tokens, rows), None) for rows in several]
    calls = np.asarray([np.nan if broken is None else broken.call for broken in first])
    return mean_of("trajectory/prefix_broken_share", np.isfinite(calls)) | mean_of(
        "trajectory/first_broken_call_mean", calls
    )
