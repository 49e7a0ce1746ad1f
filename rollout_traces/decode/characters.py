"""Bytes -> text with the character range of every token, whatever the bytes are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

_REPLACEMENT = "\ufffd"
_WINDOW = 1024
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
    is_start = (values & 0xC0) != 0x80
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
    _decode_piece(data, is_end, (values & 0xC0) != 0x80)
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(is_end) + 1])


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
            reach = _WINDOW
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
