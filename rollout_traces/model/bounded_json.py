"""JSON of others is held against the memory that its values would take, before it is decoded."""

from __future__ import annotations

MOST_DECODED = 1 << 30
"""Bytes that the values of one JSON text may take in memory."""
SMALL = 4 << 20
"""Bytes of JSON whose values are not counted: they cannot take a quarter of that."""


def check_values(raw: bytes) -> None:
    """Refuses JSON of many small values, such as `[{},{},...`, by counting its marks.

    Args:
        raw: the text.

    Raises:
        ValueError: its values would take more than `MOST_DECODED`.
    """
    if len(raw) <= SMALL:
        return
    # bytes that Python takes for an object, a list, and for a value of either
    most = len(raw) + 232 * raw.count(b"{") + 64 * raw.count(b"[") + 40 * raw.count(b",")
    if most > MOST_DECODED:
        raise ValueError(
            f"{len(raw):,} bytes that would take up to {most >> 20:,} MB; expected at most {MOST_DECODED >> 20:,}"
        )
