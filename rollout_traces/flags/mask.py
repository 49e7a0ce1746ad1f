"""Flags about masks: what is trained, against what was sampled and where the markers are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from rollout_traces.flags.detect import Population, RowFlags, Runs, TracedRow
from rollout_traces.flags.registry import also_on_rows, counted, make_flag, population_flag, row_flag
from rollout_traces.model.transcript import Flag, Transcript, Turn

_SCORED_PROMPT = 0.5
"""Share of the prompt's tokens with a logprob above which logprobs do not tell what was sampled."""
_NOT_SAMPLED_ROLES = ("system", "user", "tool")


@population_flag(
    severity="error",
    meaning="a token is in the loss that the policy did not sample, or that a system, user or tool turn holds",
    needs=("tokens", "response_mask"),
    splits=("rollout",),
)
def mask_leak(population: Population) -> RowFlags:
    """Loss mask 1 where the response mask is 0 or the version -1.

    A row whose versions are all -1 has unknown versions, not unsampled tokens: parts of a hand-over may
    lack them.
    """
    batch = population.batch
    leaked = batch.loss_mask & ~batch.response_mask
    versions = batch.tracks.get("versions")
    suspects = leaked if versions is None else leaked | (batch.loss_mask & (versions < 0))
    if not suspects.any():
        return
    if versions is not None:
        known = np.repeat(batch.sum_rows(versions >= 0) > 0, batch.lengths)
        if batch.response_mask_source == "versions":
            leaked &= known
        else:
            leaked |= batch.loss_mask & (versions < 0) & known
    what = (
        "not sampled (response mask 0)" if versions is None else "not sampled (response mask 0 or version -1)"
    )
    yield from _one_flag_a_row("mask_leak", Runs.of(leaked, batch.offsets), f"in the loss but {what}")


@also_on_rows("mask_leak", needs=("tokens",))
def mask_leak_in_turns(row: TracedRow) -> Iterator[Flag]:
    """Loss mask 1 inside a turn that its markers give to somebody else.

    A policy may write other roles' markers itself; tokens that are known to be sampled are no leak.
    They are known by their versions, by a response mask that differs from the loss mask, or by rollout
    logprobs that are not 0. Without any of these, a turn that follows a trained assistant turn without an end
    marker, all in the loss, is taken for the policy's own writing.
    """
    transcript, tokens = row.transcript, row.transcript.tokens
    if transcript.source == "mask":
        return
    leaked = tokens.loss_mask & ~known_sampled(row)
    for index, turn, written in foreign_turns(transcript, leaked):
        inside = leaked[turn.start : turn.stop]
        if written or not inside.any():
            continue
        runs = Runs.of(inside, np.asarray([0, len(inside)]))
        start, stop = turn.start + int(runs.starts[0]), turn.start + int(runs.stops[0])
        yield make_flag(
            "mask_leak",
            f"{inside.sum()} of {len(turn)} tokens of {_a(turn)} turn are in the loss.",
            turn=index,
            start=start,
            stop=stop,
        )


@population_flag(
    meaning="sampled tokens are left out of the loss in a row that is otherwise trained",
    needs=("tokens", "response_mask"),
    splits=("rollout",),
    explained_by=("mask_leak", "mask_shifted", "eos_untrained", "pad_attended"),
)
def untrained_sampled(
    population: Population, *, min_tokens: Annotated[int, "tokens of a row from which it fires"] = 1
) -> RowFlags:
    """Response mask 1 and loss mask 0, in rows with some loss mask 1."""
    batch = population.batch
    left_out = batch.response_mask & ~batch.loss_mask
    if not left_out.any():
        return
    counts = batch.sum_rows(left_out)
    fires = (counts >= min_tokens) & (population.batch.loss_counts > 0)
    left_out &= np.repeat(fires, batch.lengths)
    yield from _one_flag_a_row(
        "untrained_sampled", Runs.of(left_out, batch.offsets), "sampled but not in the loss"
    )


@population_flag(
    severity="info",
    meaning="no token of the row is in the loss (masking overlong rows is a practice)",
    splits=("rollout",),
    needs=("tokens",),
)
def row_masked(population: Population) -> RowFlags:
    """Loss mask 0 throughout a row that has tokens."""
    lengths = population.batch.lengths
    masked = (lengths > 0) & (population.batch.loss_counts == 0)
    for row in masked.nonzero()[0].tolist():
        text = f"None of the row's {lengths[row]} tokens is in the loss."
        yield row, make_flag("row_masked", text, start=0, stop=lengths[row])


@population_flag(
    severity="info",
    meaning="the last token was not sampled: the rollout ended on a tool or user turn",
    needs=("tokens",),
    explained_by=("mask_shifted",),
)
def ends_unsampled(population: Population) -> RowFlags:
    """Response mask 0 at the last token of a row that has sampled tokens."""
    batch, segments = population.batch, population.sampled.segments
    rows = segments.filled.nonzero()[0]
    last = population.sampled.positions[(segments.starts + segments.counts - 1)[rows]]
    unsampled = batch.offsets[rows + 1] - 1 - last
    for at in unsampled.nonzero()[0].tolist():
        row, n = int(rows[at]), int(unsampled[at])
        stop = int(batch.lengths[row]) - n
        text = f"The last {counted(n, 'token')} {'was' if n == 1 else 'were'} not sampled."
        yield row, make_flag("ends_unsampled", text, start=stop, stop=stop + n)


@row_flag(
    meaning="an assistant turn's end marker is left out of the loss while its body is trained, or the reverse",
    splits=("rollout",),
    needs=("tokens",),
    explained_by=("mask_leak",),
)
def eos_untrained(row: TracedRow) -> Iterator[Flag]:
    """Loss mask of the end marker against that of the body; not for rows cut by length.

    A trainer writes an end marker itself where it cuts a turn: markers that were not sampled count only when
    they are most of the row's.
    """
    if row.stop_reason == "length":
        return
    edges = [edge for edge in _assistant_edges(row) if edge.marker_stop is not None and not edge.shift]
    left_out = [edge for edge in edges if edge.left_out]
    if row.sampling_known:
        sampled = row.transcript.tokens.response_mask
        injected = [edge for edge in left_out if not sampled[edge.turn.body_stop]]
        if 2 * len(injected) <= sum(edge.n_body > 0 for edge in edges):
            left_out = [edge for edge in left_out if edge not in injected]
    alone = [edge for edge in edges if edge.alone]
    for odd, what in (
        (left_out, "not in the loss while the body is"),
        (alone, "in the loss while the body is not"),
    ):
        if odd:
            yield make_flag(
                "eos_untrained",
                f"The end marker of {len(odd)} of {len(edges)} assistant turns is {what}.",
                turn=odd[0].index,
                start=odd[0].turn.body_stop,
                stop=odd[0].marker_stop,
            )


@row_flag(
    severity="error",
    meaning="the loss mask begins and ends one token off the markers in most assistant turns",
    splits=("rollout",),
    needs=("tokens",),
    explained_by=("mask_leak",),
)
def mask_shifted(
    row: TracedRow, *, share: Annotated[float, "of the trained assistant turns that must be off"] = 0.5
) -> Iterator[Flag]:
    """Both edges of a turn's loss tokens are off by one in the same direction.

    One edge alone is no evidence: end markers are often left out, and a generation prompt may reach into
    the body.
    """
    trained = [edge for edge in _assistant_edges(row) if edge.loss is not None]
    for shift, where in ((-1, "before"), (1, "after")):
        shifted = [edge for edge in trained if edge.shift == shift]
        if not shifted or len(shifted) <= share * len(trained):
            continue
        first = shifted[0]
        start, stop = first.loss or (None, None)
        text = f"The loss mask sits one token {where} the markers in {len(shifted)} of {len(trained)} assistant turns."
        yield make_flag("mask_shifted", text, turn=first.index, start=start, stop=stop)


@dataclass(frozen=True)
class _Edges:
    """The places of an assistant turn's markers, and its loss tokens.

    Attributes:
        index: number of the turn.
        marker_stop: one past the end marker's tokens; None when it has no special one.
        loss: first and one past the last loss token, looked for from one token before the body to one
            after the turn; None when there is none.
        n_body: loss tokens of the body.
        n_marker: loss tokens of the end marker.
        shift: -1 or 1 when both edges are off by that much, else 0.
    """

    index: int
    turn: Turn
    marker_stop: int | None
    loss: tuple[int, int] | None
    n_body: int
    n_marker: int
    shift: int

    @property
    def left_out(self) -> bool:
        """The body is trained, its last token and more than half of it, and the end marker is not."""
        assert self.loss is not None or not self.n_body
        length = self.turn.body_stop - self.turn.body_start
        return (
            2 * self.n_body > length
            and not self.n_marker
            and self.loss is not None
            and (self.loss[1] == self.turn.body_stop)
        )

    @property
    def alone(self) -> bool:
        """The end marker is trained and no token of the body is."""
        return self.turn.body_start < self.turn.body_stop and not self.n_body and self.n_marker > 0


def _assistant_edges(row: TracedRow) -> list[_Edges]:
    transcript, tokens = row.transcript, row.transcript.tokens
    if transcript.source == "mask":
        return []
    turns = [(i, turn) for i, turn in enumerate(transcript.turns) if turn.role == "assistant"]
    special = np.flatnonzero(tokens.special)
    loss = np.flatnonzero(tokens.loss_mask)
    starts, stops, ends = (
        np.asarray([(t.body_start, t.body_stop, t.stop) for _, t in turns], int).reshape(-1, 3).T
    )
    marker = np.append(special, len(tokens))[np.searchsorted(special, stops)]
    has_marker = marker < ends
    marker_stops = np.where(has_marker, marker + 1, stops)
    first, last = np.searchsorted(loss, np.maximum(starts - 1, 0)), np.searchsorted(loss, ends + 1) - 1
    body = np.searchsorted(loss, stops) - np.searchsorted(loss, starts)
    in_marker = np.searchsorted(loss, marker_stops) - np.searchsorted(loss, stops)
    found = []
    for number, (index, turn) in enumerate(turns):
        marker_stop = int(marker_stops[number]) if has_marker[number] else None
        at = (
            (int(loss[first[number]]), int(loss[last[number]]) + 1) if first[number] <= last[number] else None
        )
        shift = _shift(turn, marker_stop, at)
        found.append(_Edges(index, turn, marker_stop, at, int(body[number]), int(in_marker[number]), shift))
    return found


def _shift(turn: Turn, marker_stop: int | None, loss: tuple[int, int] | None) -> int:
    if loss is None:
        return 0
    stop = turn.body_stop if marker_stop is None else marker_stop
    if loss[0] == turn.body_start - 1 and loss[1] in (stop - 1, turn.body_stop - 1):
        return -1
    if loss[0] == turn.body_start + 1 and marker_stop is not None and loss[1] == stop + 1:
        return 1
    return 0


def _one_flag_a_row(name: str, runs: Runs, what: str) -> RowFlags:
    """One flag a row, with the row's token and run counts and its first run's range."""
    rows, first = runs.first_of_rows()
    n_tokens = np.bincount(runs.rows, weights=runs.lengths, minlength=1)
    n_runs = np.bincount(runs.rows, minlength=1)
    for row, run in zip(rows.tolist(), first.tolist(), strict=True):
        start, stop = runs.local(run)
        count = int(n_tokens[row])
        text = f"{counted(count, 'token')} {'is' if count == 1 else 'are'} {what}, "
        text += (
            f"in {n_runs[row]} places, the first at token {start}."
            if n_runs[row] > 1
            else f"at token {start}."
        )
        yield row, make_flag(name, text, start=start, stop=stop)


def foreign_turns(transcript: Transcript, marked: np.ndarray) -> Iterator[tuple[int, Turn, bool]]:
    """The turns of a system, user or tool.

    Args:
        marked: bool [n]; the rollout's tokens that are in the loss.

    Yields:
        The turn's index, the turn, and whether the policy may have written it: it follows an assistant turn that no end
        marker closed, and all of it is marked.
    """
    runs_on = False
    for index, turn in enumerate(transcript.turns):
        inside = marked[turn.start : turn.stop]
        written = runs_on and bool(inside.all())
        open_end = turn.body_stop == turn.stop and bool(inside[-1:].all())
        runs_on = (turn.role == "assistant" or written) and open_end
        if turn.role in _NOT_SAMPLED_ROLES:
            yield index, turn, written


def known_sampled(row: TracedRow) -> np.ndarray:
    """Bool [n], true where a token is known to be sampled; false throughout where nothing tells it.

    Versions tell it, a response mask that differs from the loss mask, or rollout logprobs that are not 0. A trainer
    that computes logprobs of every token gives them to the prompt too: then they tell nothing.
    """
    tokens = row.transcript.tokens
    versions = tokens.tracks.get("versions")
    if versions is not None and (versions >= 0).any():
        return versions >= 0
    if row.sampling_known and not np.array_equal(tokens.response_mask, tokens.loss_mask):
        return tokens.response_mask
    logprobs = tokens.tracks.get("logprobs")
    if logprobs is None:
        return np.zeros(len(tokens), bool)
    scored = np.isfinite(logprobs) & (logprobs != 0)
    first = next((turn.start for turn in row.transcript.turns if turn.role == "assistant"), 0)
    return np.zeros(len(tokens), bool) if first and scored[:first].mean() > _SCORED_PROMPT else scored


def _a(turn: Turn) -> str:
    return "an assistant" if turn.role == "assistant" else f"a {turn.role}"
