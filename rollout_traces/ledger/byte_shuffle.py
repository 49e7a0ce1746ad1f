"""Arrays as byte planes: all first bytes before all second ones, which compresses better."""

from __future__ import annotations

import zlib

import numpy as np

MAX_UNPACKED = 2**30
"""Bytes that packed data may expand to; stored data may have been made up by anyone."""


def decompress(data: bytes) -> bytes:
    """Decompresses what `zlib.compress` made, within `MAX_UNPACKED` bytes.

    Raises:
        zlib.error: the data is damaged, cut short, or expands beyond the limit.
    """
    stream = zlib.decompressobj()
    raw = stream.decompress(data, MAX_UNPACKED)
    if not stream.eof:
        raise zlib.error(f"cut short, or more than {MAX_UNPACKED} bytes")
    return raw


def to_planes(values: np.ndarray) -> bytes:
    """The little-endian bytes of a one-dimensional array, plane by plane."""
    if not len(values):
        return b""
    little = values.astype(values.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(len(values), little.dtype.itemsize).T.tobytes()


def from_planes(data: bytes, dtype: str, n: int) -> np.ndarray:
    """The array of n values that `to_planes` took apart.

    Args:
        data: n * itemsize bytes.
        dtype: the array's numpy dtype.
        n: number of values.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    planes = np.frombuffer(data, np.uint8).reshape(kind.itemsize, n)
    return np.ascontiguousarray(planes.T).view(kind).reshape(n)
