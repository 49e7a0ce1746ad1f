"""Token ids -> bytes -> text, with the range of every token in both, whatever the bytes are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rollout_traces.decode.vocabulary import decode_text, read_vocabulary

_WINDOW = 16


@dataclass(frozen=True, eq=False)
class Detokenized:
    """The bytes of N tokens.

    Attributes:
        data: all tokens' bytes, joined.
        starts: int64 [N + 1]; token i's bytes are `data[starts[i]:starts[i + 1]]`.
    """

    data: bytes
    starts: np.ndarray


class Detokenizer:
    """A verified table from token id to bytes.

    Attributes:
        kind: how the table was read (see `Vocabulary.kind`).
        added: text of each added or special token by id.
        n_ids: number of ids the table covers.
        special: bool [n_ids + 1]; an added or special token. The last entry stands for every id outside.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Reads the table of a tokenizer and verifies it against the tokenizer's own `decode`.

        Args:
            tokenizer: see `read_vocabulary`.
        """
        vocabulary = read_vocabulary(tokenizer)
        self.kind = vocabulary.kind
        self.n_ids = len(vocabulary.pieces)
        self.added = {i: text for i, text in vocabulary.added.items() if 0 <= i < self.n_ids}
        self._tokenizer = tokenizer if self.kind == "tokenizer" else None
        self._pieces = [_unknown(i) if piece is None else piece for i, piece in enumerate(vocabulary.pieces)]
        self._unknown = np.array([piece is None for piece in vocabulary.pieces] + [True])
        self._pieces.append(b"")
        self._lengths = np.array([len(piece) for piece in self._pieces], np.int32)
        self._flat = np.frombuffer(b"".join(self._pieces), np.uint8)
        self._begins = _starts(self._lengths)[:-1].astype(np.int32)
        self.special = np.zeros(self.n_ids + 1, bool)
        self.special[list(self.added)] = True

    def slots(self, ids_N: np.ndarray) -> np.ndarray:
        """int64 [N]: the table entry of each id; `n_ids` for ids outside the table."""
        outside = (ids_N < 0) | (ids_N >= self.n_ids)
        return np.where(outside, self.n_ids, ids_N) if outside.any() else ids_N

    def unknown(self, ids_N: np.ndarray) -> np.ndarray:
        """bool [N]: the tokenizer has no such id."""
        mask: np.ndarray = self._unknown[self.slots(ids_N)]
        return mask

    def detokenize(self, ids_N: np.ndarray) -> Detokenized:
        """The bytes of N tokens.

        Args:
            ids_N: int64 [N], any values; an id without a token becomes `<unknown ID>`.

        Returns:
            The joined bytes and each token's byte range.
        """
        if self._tokenizer is not None:
            return self._detokenize_by_prefix(ids_N)
        slots = self.slots(ids_N)
        if slots is ids_N:
            return self._gather(ids_N)
        return _joined(
            [
                _unknown(i) if slot == self.n_ids else self._pieces[slot]
                for i, slot in zip(ids_N.tolist(), slots.tolist(), strict=True)
            ]
        )

    def _gather(self, ids_N: np.ndarray) -> Detokenized:
        """Copies each token's bytes out of the flat table by one index per byte."""
        lengths = self._lengths[ids_N]
        starts = _starts(lengths)
        at = np.repeat(self._begins[ids_N] - starts[:-1], lengths)
        at += np.arange(len(at))
        return Detokenized(self._flat[at].tobytes(), starts)

    def _detokenize_by_prefix(self, ids_N: np.ndarray) -> Detokenized:
        """Asks the tokenizer for growing windows: slow, and right where no table is."""
        pieces: list[bytes] = []
        window: list[int] = []
        before = ""
        for i, unknown in zip(ids_N.tolist(), self.unknown(ids_N).tolist(), strict=True):
            if unknown:
                pieces.append(_unknown(i))
                continue
            window.append(i)
            after = decode_text(self._tokenizer, window)
            complete = not after.endswith("\ufffd") or len(window) > 2 * _WINDOW
            pieces.append(after[len(before) :].encode("utf-8", "replace") if complete else b"")
            before = after if complete else before
            if complete and len(window) > _WINDOW:
                window = window[_WINDOW // 2 :]
                before = decode_text(self._tokenizer, window)
        return _joined(pieces)


def _joined(pieces: list[bytes]) -> Detokenized:
    return Detokenized(b"".join(pieces), _starts(np.array([len(piece) for piece in pieces], np.int64)))


def _starts(lengths_N: np.ndarray) -> np.ndarray:
    starts = np.zeros(len(lengths_N) + 1, np.int64)
    np.cumsum(lengths_N, out=starts[1:])
    return starts


def _unknown(i: int) -> bytes:
    return f"<unknown {i}>".encode()


_REPLACEMENT = "\ufffd"
_DECODED_AT_ONCE = 1024
"""Bytes decoded at once after the first that cannot be: an error costs a copy of what was to be decoded."""


def char_ends(data: bytes, starts: np.ndarray, edges: Sequence[int]) -> tuple[list[str], np.ndarray]:
    """Decodes the pieces of a row and counts the characters complete at each token's end.

    A character split over tokens counts for the last of them; one that is cut by a piece's edge, and any
    undecodable bytes, count as U+FFFD exactly as `bytes.decode(errors="replace")` writes them.

    Args:
        data: the row's bytes.
        starts: int64 [n + 1] byte ranges of its tokens, from 0 to `len(data)`.
        edges: byte positions where pieces begin and end, ascending, from 0 to `len(data)`.

    Returns:
        The text of each piece, and int64 [n + 1] characters complete before each token edge.
    """
    if data.isascii():
        text = data.decode("ascii")
        return [text[a:b] for a, b in pairwise(edges)], starts
    values = np.frombuffer(data, np.uint8)
    is_start = _begins_character(values)
    inner = [edge for edge in edges if edge < len(data)]
    if is_start[inner].all():
        try:
            pieces = [data[a:b].decode() for a, b in pairwise(edges)]
        except UnicodeDecodeError:
            pass
        else:
            return pieces, _completed(is_start)[starts]
    is_end = np.zeros(len(data), bool)
    pieces = [_decode_piece(data[a:b], is_end[a:b], is_start[a:b]) for a, b in pairwise(edges)]
    return pieces, np.concatenate([[0], np.cumsum(is_end, dtype=np.int64)])[starts]


def char_positions(data: bytes) -> np.ndarray:
    """int64 [characters + 1]: byte position of each character of `data.decode(errors="replace")`, and the end.

    Args:
        data: any bytes.
    """
    values = np.frombuffer(data, np.uint8)
    is_end = np.zeros(len(data), bool)
    _decode_piece(data, is_end, _begins_character(values))
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(is_end) + 1])


def _begins_character(values: np.ndarray) -> np.ndarray:
    """bool [bytes]: in UTF-8 every byte of a character but the first has the same two highest bits."""
    return (values & 0xC0) != 0x80


def _completed(is_start: np.ndarray) -> np.ndarray:
    """int64 [bytes + 1]: characters that end at or before each byte position, in valid UTF-8."""
    is_end = np.empty(len(is_start) + 1, np.int64)
    is_end[0] = 0
    is_end[1:-1] = is_start[1:]
    is_end[-1] = 1
    np.cumsum(is_end, out=is_end)
    return is_end


def _decode_piece(data: bytes, is_end: np.ndarray, is_start: np.ndarray) -> str:
    """Decodes one piece as `errors="replace"` does and marks the last byte of every character."""
    if not data:
        return ""
    is_end[:-1] = is_start[1:]
    is_end[-1] = True
    texts: list[str] = []
    at, reach = 0, len(data)
    while at < len(data):
        window = data[at : at + reach]
        try:
            texts.append(window.decode())
            at += len(window)
        except UnicodeDecodeError as error:
            reach = _DECODED_AT_ONCE
            first, stop = at + error.start, at + error.end
            texts.append(window[: error.start].decode())
            if error.end == len(window) and stop < len(data) and error.start:
                at = first
                continue
            texts.append(_REPLACEMENT)
            is_end[first:stop] = False
            is_end[stop - 1] = True
            if first > 0:
                is_end[first - 1] = True
            at = stop
    return "".join(texts)
