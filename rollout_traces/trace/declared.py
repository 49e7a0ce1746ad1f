"""What a packed transcript says of its own size, held against its data before anything is allocated for it.

Every check raises ValueError with what was seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST_TOKENS = 2**24
"""Tokens of one rollout."""
_MASKS = ("loss_mask", "response_mask", "special")


def check_transcript_head(head: Mapping[str, Any]) -> int:
    """The number of tokens that a head declares, once its counts hold.

    Args:
        head: `n`, `turns` with `range` and `sampled`, and `arrays` with `name`, `n` and `size`.
    """
    n = head["n"]
    if not _is_count(n, MOST_TOKENS):
        raise ValueError(f"{str(n)[:20]} tokens, expected 0 to {MOST_TOKENS}")
    for turn in head["turns"]:
        edges = turn["range"]
        if len(edges) != 4 or not all(_is_count(edge, n) for edge in edges):
            raise ValueError(f"a turn of tokens {str(edges)[:60]}, of {n}")
    for entry in head["arrays"]:
        if not _is_count(entry["size"], 2**31) or not isinstance(entry["name"], str):
            raise ValueError(f"array {str(entry['name'])[:40]!r} of {str(entry['size'])[:20]} bytes")
    return int(n)


def check_pieces(pieces: Sequence[Any], source: str) -> None:
    """Holds references into a text against its length: together they are at most twice as long.

    A turn's raw text refers to its message's thinking and content, its calls to its raw text; neither
    overlaps itself.

    Args:
        pieces: literal texts and `[start, length]` references.
        source: what they refer to.
    """
    referred = sum(piece[1] for piece in pieces if not isinstance(piece, str))
    if referred > 2 * len(source):
        raise ValueError(f"references to {referred} characters of {len(source)}")


def check_tokens(
    n: int,
    starts: np.ndarray,
    lengths: np.ndarray,
    arrays: Mapping[str, tuple[Mapping[str, Any], np.ndarray]],
    n_characters: int,
) -> None:
    """Holds the tokens' places, masks and tracks against the number of tokens and characters.

    Args:
        n: number of tokens.
        starts: int64 [n], each token's first character.
        lengths: int64 [n], its characters; each character belongs to one token.
        arrays: the stored arrays by name, each with its entry.
        n_characters: characters of all turns' raw text.
    """
    if len(lengths) != n or len(starts) != n:
        raise ValueError(f"{len(lengths)} lengths and {len(starts)} places of {n} tokens")
    if n and (
        lengths.min() < 0
        or starts.min() < 0
        or int(lengths.max()) > n_characters
        or int(starts.max()) > n_characters
        or int(lengths.sum()) > n_characters
        or int((starts + lengths).max()) > n_characters
    ):
        raise ValueError(f"tokens of {int(lengths.sum())} characters in a text of {n_characters}")
    for name in _MASKS:
        if len(arrays[name][1]) != (n + 7) // 8:
            raise ValueError(f"{name}: {len(arrays[name][1])} bytes for {n} tokens")
    for name, (entry, stored) in arrays.items():
        if stored.dtype.kind == "f" and "outside" not in entry and len(stored) != n:
            raise ValueError(f"{name}: {len(stored)} values for {n} tokens")


def check_runs(name: str, counts: np.ndarray, n: int) -> None:
    """Holds the run lengths of an integer track against the number of tokens.

    Args:
        name: the track.
        counts: [runs], the length of each.
        n: number of tokens.
    """
    if (counts < 0).any() or int(counts.sum(dtype=np.int64)) != n:
        raise ValueError(f"{name}: runs of {int(counts.sum(dtype=np.int64))} tokens, of {n}")


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
