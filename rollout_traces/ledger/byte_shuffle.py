"""Arrays as byte planes: all first bytes before all second ones, which compresses better."""

from __future__ import annotations

import zlib

import numpy as np

MAX_UNPACKED = 2**30
"""Bytes that packed data may expand to; stored data may have been made up by anyone."""
ALWAYS_UNPACKED = 2**26
"""Bytes that packed data may expand to whatever its own size."""
MOST_PER_BYTE = 256
"""Bytes beyond ALWAYS_UNPACKED that each packed byte may expand to; zlib itself goes up to 1,032."""
_DTYPES = frozenset("u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8".split())  # noqa: SIM905


def decompress(data: bytes) -> bytes:
    """Decompresses what `zlib.compress` made, within limits that its own size sets.

    Raises:
        zlib.error: the data is damaged, cut short, or expands beyond the limit.
    """
    limit = min(MAX_UNPACKED, max(ALWAYS_UNPACKED, MOST_PER_BYTE * len(data)))
    stream = zlib.decompressobj()
    raw = stream.decompress(data, limit)
    if not stream.eof:
        raise zlib.error(f"cut short, or {len(data)} bytes that expand to more than {limit}")
    return raw


def to_planes(values: np.ndarray) -> bytes:
    """The little-endian bytes of a one-dimensional array, plane by plane."""
    if not len(values):
        return b""
    if values.dtype.itemsize == 1:
        return values.tobytes()
    little = values.astype(values.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(len(values), little.dtype.itemsize).T.tobytes()


def from_planes(data: bytes, dtype: str, n: int) -> np.ndarray:
    """The array of n values that `to_planes` took apart.

    Args:
        data: n * itemsize bytes.
        dtype: the array's numpy dtype.
        n: number of values.

    Raises:
        ValueError: the dtype is no number's, or the bytes are not those of n values.
    """
    if not isinstance(dtype, str) or dtype.lstrip("<>|=") not in _DTYPES:
        raise ValueError(f"dtype {str(dtype)[:20]!r}, expected one of numbers")
    kind = np.dtype(dtype).newbyteorder("<")
    if type(n) is not int or n < 0 or len(data) != n * kind.itemsize:
        raise ValueError(f"{len(data)} bytes for {str(n)[:20]} values of {dtype}")
    if not n:
        return np.zeros(0, kind)
    planes = np.frombuffer(data, np.uint8).reshape(kind.itemsize, n)
    return np.ascontiguousarray(planes.T).view(kind).reshape(n)
