"""Turns in tokens: byte segments put on token edges, then split where the mask says who wrote what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from rollout_traces.decode.markers import Markers, Row
from rollout_traces.decode.segment import Segment, skip_back, trim
from rollout_traces.model.transcript import Role


@dataclass(slots=True)
class Span:
    """A turn in tokens, its body also in bytes.

    Attributes:
        role: who wrote it.
        start: its first token.
        body_start: the token that holds the body's first byte.
        body_stop: one past the last token of the body.
        stop: one past its last token.
        first_byte: first byte of the body.
        last_byte: one past the last byte of the body.
        name: the tool's name written in its opener.
        call_id: the call's id written in its opener.
        warnings: what was odd.
    """

    role: Role
    start: int
    body_start: int
    body_stop: int
    stop: int
    first_byte: int
    last_byte: int
    name: str = ""
    call_id: str = ""
    warnings: list[str] = field(default_factory=list)


def on_token_edges(segments: Sequence[Segment], starts: np.ndarray) -> list[Span]:
    """Puts segments on token edges; a token that two turns share belongs to the one it begins in.

    Args:
        segments: one behind the other up to the row's end; what stands before the first is the first's.
        starts: int64 [n + 1] byte positions of the row's tokens.

    Returns:
        Spans that partition `[0, n)`; segments that own no token are left out.
    """
    n = len(starts) - 1
    bytes_3 = np.array([(s.start, s.body_start, s.body_stop) for s in segments], np.int64)
    tokens_3 = starts[:-1].searchsorted(bytes_3)
    inside = np.minimum(tokens_3[:, 1], n)
    tokens_3[:, 1] -= starts[inside] > bytes_3[:, 1]
    rows = tokens_3.tolist()
    spans: list[Span] = []
    for i, (one, (start, body_start, body_stop)) in enumerate(zip(segments, rows, strict=True)):
        stop = rows[i + 1][0] if i + 1 < len(rows) else n
        start = 0 if not spans else start
        if stop <= start:
            continue
        body_start = min(max(body_start, start), stop)
        body_stop = min(max(body_stop, body_start), stop)
        tokens, text = (start, body_start, body_stop, stop), (one.body_start, one.body_stop)
        warnings = [one.warning] if one.warning else []
        spans.append(Span(one.role, *tokens, *text, one.name, one.call_id, warnings))
    return spans


@dataclass(frozen=True, eq=False)
class Provenance:
    """The origin of a row's tokens: which were sampled, in which call, and by which policy version.

    Attributes:
        sampled: bool [n].
        before: int64 [n + 1]; sampled tokens before each position.
        turn_ids: int [n] with -1 where not sampled, or None.
        versions: int [n], or None.
        one_version: the version of all sampled tokens, where they have only one.
    """

    sampled: np.ndarray
    before: np.ndarray
    turn_ids: np.ndarray | None
    versions: np.ndarray | None
    one_version: int | None

    @classmethod
    def of(cls, sampled: np.ndarray, tracks: Mapping[str, np.ndarray]) -> Provenance:
        """From a row's response mask and its integer tracks."""
        before = np.zeros(len(sampled) + 1, np.int64)
        np.cumsum(sampled, out=before[1:])
        versions = tracks.get("versions")
        known = versions[sampled] if versions is not None else np.zeros(0, np.int64)
        one_version = int(known[0]) if len(known) and (known == known[0]).all() else None
        return cls(sampled, before, tracks.get("turn_ids"), versions, one_version)

    def count(self, start: int, stop: int) -> int:
        """Sampled tokens in `[start, stop)`."""
        return int(self.before[stop] - self.before[start])

    def version_runs(self, start: int, stop: int, n_sampled: int) -> tuple[tuple[int, int], ...]:
        """`(version, token count)` runs over the `n_sampled` sampled tokens of `[start, stop)`; empty when unknown."""
        if not n_sampled or self.versions is None:
            return ()
        if self.one_version is not None:
            return ((self.one_version, n_sampled),)
        versions = self.versions[start:stop][self.sampled[start:stop]]
        edges = (np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist()
        bounds = [0, *edges, n_sampled]
        return tuple((int(versions[a]), b - a) for a, b in pairwise(bounds))

    def edges(self, start: int, stop: int) -> list[int]:
        """Positions inside `(start, stop)` where sampling begins or ends, or another call begins."""
        sampled = self.sampled[start:stop]
        edges = set((np.flatnonzero(sampled[1:] != sampled[:-1]) + start + 1).tolist())
        if self.turn_ids is not None:
            at = np.flatnonzero(sampled & (self.turn_ids[start:stop] >= 0)) + start
            ids = self.turn_ids[at]
            edges.update(at[1:][ids[1:] != ids[:-1]].tolist())
        return sorted(edges)


def skip_generation_prompt(
    spans: Sequence[Span], provenance: Provenance, starts: np.ndarray, row: Row, markers: Markers
) -> None:
    """Moves bodies past what the generation prompt adds to the opener (`<think>`), where not sampled."""
    rest = markers.generation_rest
    if not rest:
        return
    for span in spans:
        stop = span.first_byte + len(rest)
        if span.role != "assistant" or not row.data.startswith(rest, span.first_byte, span.last_byte):
            continue
        body_start = int(np.searchsorted(starts, stop, "right")) - 1
        if provenance.count(span.body_start, body_start) == 0:
            span.first_byte, span.body_start = stop, min(body_start, span.stop)
            span.body_stop = max(span.body_stop, span.body_start)


def return_stop_tokens(spans: list[Span], provenance: Provenance, special: np.ndarray) -> list[Span]:
    """Gives the assistant back the opener token that it sampled to stop, as GLM's does `<|observation|>`.

    Args:
        spans: partition `[0, n)`.
        provenance: which tokens were sampled.
        special: bool [n]; added or special tokens.

    Returns:
        Spans that partition `[0, n)`; a turn that was nothing but the stop token is gone.
    """
    kept: list[Span] = []
    for span in spans:
        before = kept[-1] if kept else None
        if (
            before is not None
            and before.role == "assistant" != span.role
            and before.body_stop == before.stop
            and special[span.start]
            and provenance.sampled[span.start]
            and provenance.count(span.start, span.stop) == 1
            and provenance.count(before.start, before.stop)
        ):
            before.stop = span.start = span.start + 1
            span.body_start = max(span.body_start, span.start)
            span.body_stop = max(span.body_stop, span.start)
            if span.start == span.stop:
                continue
        kept.append(span)
    return kept


def split_by_provenance(
    spans: Sequence[Span], provenance: Provenance, starts: np.ndarray, row: Row, markers: Markers
) -> list[Span]:
    """Splits turns where the mask says that another wrote on.

    An assistant's turn is split where tokens inside its body were not sampled, or another call begins; another role's
    where the policy answered without an opener.

    Args:
        spans: partition `[0, n)`.
        provenance: which tokens were sampled.
        starts: int64 [n + 1] byte positions of the tokens.
        row: the row's bytes.
        markers: to recognise a tool result that stands inside an assistant's turn.

    Returns:
        Spans that partition `[0, n)`.
    """
    result: list[Span] = []
    for span in spans:
        n_sampled = provenance.count(span.body_start, span.body_stop)
        if span.role == "context" and n_sampled:
            result.extend(_by_mask(span, provenance, starts, row, markers, unsampled=("context", "context")))
        elif span.role != "assistant" and provenance.count(span.body_start, span.stop):
            result.extend(_split_answered(span, provenance, starts, row, markers))
        elif (
            span.role != "assistant"
            or not n_sampled
            or (n_sampled == span.body_stop - span.body_start and provenance.turn_ids is None)
        ):
            result.append(span)
        else:
            result.extend(_split_assistant(span, provenance, starts, row, markers))
    return result


def by_mask(provenance: Provenance, starts: np.ndarray, row: Row, markers: Markers) -> list[Span]:
    """Turns of a row without markers: sampled spans are the assistant's, the first other one the user's."""
    n = len(starts) - 1
    whole = Span("user", 0, 0, n, n, 0, len(row.data))
    return _by_mask(whole, provenance, starts, row, markers, unsampled=("user", "context"))


def _by_mask(
    span: Span,
    provenance: Provenance,
    starts: np.ndarray,
    row: Row,
    markers: Markers,
    unsampled: tuple[Role, Role],
) -> list[Span]:
    edges = [span.start, *provenance.edges(span.start, span.stop), span.stop]
    pieces: list[Span] = []
    for start, stop in pairwise(edges):
        if provenance.sampled[start]:
            role: Role = "assistant"
        else:
            role = unsampled[0] if start == span.start else unsampled[1]
        piece = _piece(role, start, stop, starts, row, markers)
        if pieces and role == "context" and _is_scaffold(piece, pieces[-1], row):
            pieces[-1].stop = stop
            continue
        pieces.append(piece)
    if pieces:
        pieces[0].warnings = span.warnings + pieces[0].warnings
    return pieces


def _is_scaffold(piece: Span, before: Span, row: Row) -> bool:
    """Tells whether an unsampled piece is only an end marker, or whitespace after one."""
    blank = not row.data[piece.first_byte : piece.last_byte].strip()
    return blank and (piece.body_stop < piece.stop or before.body_stop < before.stop)


def _piece(role: Role, start: int, stop: int, starts: np.ndarray, row: Row, markers: Markers) -> Span:
    first, last = int(starts[start]), int(starts[stop])
    one = Segment(role, first, first, last, last)
    trim(row, markers, one)
    body_stop = int(np.searchsorted(starts[start : stop + 1], one.body_stop)) + start
    return Span(role, start, start, body_stop, stop, first, one.body_stop)


def _split_answered(
    span: Span, provenance: Provenance, starts: np.ndarray, row: Row, markers: Markers
) -> list[Span]:
    """Splits another role's turn where the policy answers in it, as DeepSeek's templates let it do after tool results.

    What was sampled is an answer where it begins behind the turn's end marker. Anything else that is said to be sampled
    there may be a fault of the mask, and stays where it stands.
    """
    bounds = [span.body_start, *provenance.edges(span.body_start, span.stop), span.stop]
    first = next(
        (
            start
            for start, stop in pairwise(bounds)
            if start > span.body_start
            and provenance.sampled[start]
            and _is_answer(span, int(starts[start]), int(starts[stop]), row, markers)
        ),
        None,
    )
    if first is None:
        return [span]
    own = _piece(span.role, span.body_start, first, starts, row, markers)
    own.first_byte = min(span.first_byte, own.last_byte)
    question = replace(
        span, stop=first, body_stop=own.body_stop, first_byte=own.first_byte, last_byte=own.last_byte
    )
    rest = Span("context", first, first, span.stop, span.stop, int(starts[first]), int(starts[span.stop]))
    pieces = _by_mask(rest, provenance, starts, row, markers, unsampled=("context", "context"))
    for piece in pieces:
        if piece.role == "context":
            _unsampled(piece, starts, row, markers)
    return [question, *pieces]


def _is_answer(span: Span, first: int, last: int, row: Row, markers: Markers) -> bool:
    """Tells whether bytes that were sampled inside another role's turn stand behind its end marker."""
    stop = skip_back(row.data, first, span.first_byte)
    closed = any(pattern.ends_at(row, stop, span.first_byte) >= 0 for pattern in markers.closers[span.role])
    text = row.data[first:last].strip()
    return closed and bool(text) and not _ends_another(text, span.role, markers)


def _ends_another(text: bytes, role: Role, markers: Markers) -> bool:
    """Tells whether a text is nothing but an end marker that the role has and the assistant has not."""
    return text in markers.closer_cores[role] and text not in markers.closer_cores["assistant"]


def _split_assistant(
    span: Span, provenance: Provenance, starts: np.ndarray, row: Row, markers: Markers
) -> list[Span]:
    first = int(np.argmax(provenance.sampled[span.body_start : span.body_stop])) + span.body_start
    edges = provenance.edges(first, span.body_stop)
    if not edges:
        return [span]
    bounds = [span.start, *edges, span.stop]
    pieces: list[Span] = []
    for i, (start, stop) in enumerate(pairwise(bounds)):
        is_last = i + 2 == len(bounds)
        piece = replace(
            span,
            start=start,
            stop=stop,
            body_start=span.body_start if i == 0 else start,
            body_stop=span.body_stop if is_last else stop,
            first_byte=span.first_byte if i == 0 else int(starts[start]),
            last_byte=span.last_byte if is_last else int(starts[stop]),
            warnings=span.warnings if i == 0 else [],
        )
        if i > 0 and not provenance.sampled[start]:
            _unsampled(piece, starts, row, markers)
        pieces.append(piece)
    return pieces


def _unsampled(piece: Span, starts: np.ndarray, row: Row, markers: Markers) -> None:
    """Text that stands inside an assistant's turn and was not sampled: a tool's only with evidence."""
    piece.role = "context"
    text = row.data[piece.first_byte : piece.last_byte]
    at = piece.first_byte + len(text) - len(text.lstrip())
    for pattern in (p for patterns in markers.nested.values() for p in patterns if p.role == "tool"):
        found = pattern.match(row, at)
        if found is None or found.stop > piece.last_byte:
            continue
        piece.role = "tool"
        one = Segment("tool", piece.first_byte, found.stop, piece.last_byte, piece.last_byte)
        trim(row, markers, one)
        piece.first_byte, piece.last_byte = one.body_start, one.body_stop
        piece.body_start, piece.body_stop = np.searchsorted(starts, [one.body_start, one.body_stop]).tolist()
        return
    piece.warnings = [f"{piece.stop - piece.start} tokens inside an assistant turn were not sampled"]
