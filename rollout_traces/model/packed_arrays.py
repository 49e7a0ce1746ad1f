"""Named arrays and a JSON head in one block of bytes, compressed and checksummed; what a block says of its own size is held against limits.

Arrays are stored as byte planes, all first bytes before all second ones, which compresses better.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import orjson

from rollout_traces.errors import StoreError
from rollout_traces.model.text import MOST, words
from rollout_traces.model.units import GB, MB

SCHEMA_VERSION = 1
MAX_UNPACKED = GB
"""Bytes that packed data may expand to; stored data may have been made up by anyone."""
ALWAYS_UNPACKED = 64 * MB
"""Bytes that packed data may expand to whatever its own size."""
MOST_PER_BYTE = 256
"""Bytes beyond ALWAYS_UNPACKED that each packed byte may expand to; zlib itself goes up to 1,032."""
MADE_UP = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    StopIteration,
    struct.error,
    TypeError,
    ValueError,
    zlib.error,
)
"""Errors that reading bytes can raise which are not what they claim to be."""
_LENGTH = struct.Struct("<I")
"""The bytes of the head, before it."""
_ORDERS = "<>|"
"""The signs by which numpy writes the order of bytes; `np.dtype` reads what begins with another sign as something else."""
_DTYPES = frozenset(words("u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8"))


@contextmanager
def damage_said(what: str) -> Iterator[None]:
    """Turns what goes wrong in reading stored data into a StoreError that names the data.

    Args:
        what: what is read, as the message calls it.

    Raises:
        StoreError: it is damaged.
    """
    try:
        yield
    except StoreError:
        raise
    except MADE_UP as error:
        raise StoreError(f"{what}: damaged ({type(error).__name__}: {error}).") from error


def pack(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Packs a head of plain values and one-dimensional arrays of numbers."""
    entries = [{"name": name, "dtype": a.dtype.str, "n": len(a)} for name, a in arrays.items()]
    text = orjson.dumps({"schema": SCHEMA_VERSION, **head, "arrays": entries})
    planes = (_planes(array) for array in arrays.values())
    return zlib.compress(b"".join((_LENGTH.pack(len(text)), text, *planes)))


def unpack(data: bytes, what: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Unpacks what `pack` made.

    Args:
        what: what they hold, as a message calls it.

    Returns:
        The head, and the arrays by name.

    Raises:
        StoreError: the bytes are damaged, made up, or of another schema.
    """
    with damage_said(what):
        raw = _decompressed(data)
        (n_head,) = _LENGTH.unpack_from(raw)
        at = _LENGTH.size + n_head
        head = dict(orjson.loads(raw[_LENGTH.size : at]))
        if check_count(head["schema"], np.iinfo(np.int32).max) != SCHEMA_VERSION:
            raise StoreError(
                f"{what}: schema {head['schema']}. Expected {SCHEMA_VERSION}: another version of rollout-traces wrote it."
            )
        arrays: dict[str, np.ndarray] = {}
        for entry in head.pop("arrays"):
            name, dtype, n = entry["name"], entry["dtype"], entry["n"]
            if not isinstance(name, str) or dtype[0] not in _ORDERS or dtype[1:] not in _DTYPES:
                raise ValueError(f"array {str(name)[:MOST]!r} of {str(dtype)[:MOST]!r}")
            size = np.dtype(dtype).itemsize * check_count(n, len(raw))
            arrays[name] = _from_planes(raw[at : at + size], np.dtype(dtype), n)
            at += size
        return head, arrays


def pack_text(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """As `pack`, as ASCII text."""
    return base64.b64encode(pack(head, arrays)).decode("ascii")


def unpack_text(text: str, what: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Unpacks what `pack_text` made; arguments and errors as of `unpack`."""
    with damage_said(what):
        return unpack(base64.b64decode(text, validate=True), what)


def check_count(value: Any, most: int) -> int:
    """Gives a number back that is a count; raises ValueError on any other value, and on one above a limit."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"seen {str(value)[:MOST]}, expected 0 to {most}")
    return value


def _decompressed(data: bytes) -> bytes:
    """Decompresses within limits that the data's own size sets; zlib checks the sum behind it."""
    limit = min(MAX_UNPACKED, max(ALWAYS_UNPACKED, MOST_PER_BYTE * len(data)))
    stream = zlib.decompressobj()
    raw = stream.decompress(data, limit)
    if not stream.eof:
        raise ValueError(f"cut short, or {len(data)} bytes that expand to more than {limit}")
    return raw


def _planes(values: np.ndarray) -> bytes:
    if values.dtype.itemsize == 1:
        return values.tobytes()
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
    return little.view(np.uint8).reshape(len(values), little.dtype.itemsize).T.tobytes()


def _from_planes(data: bytes, dtype: np.dtype[Any], n: int) -> np.ndarray:
    planes = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, n)
    return np.ascontiguousarray(planes.T).view(dtype.newbyteorder("<")).reshape(n)
