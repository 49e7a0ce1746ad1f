"""A record as bytes: a small JSON header and compact arrays, versioned and checksummed.

Layout: a fixed prefix (magic, schema, lengths, checksums), the header as JSON, then the arrays, each at a
multiple of 64 bytes. The header's checksum is a CRC; the arrays', of megabytes that a training thread
waits for, is the sum of their 64-bit words.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson

from rollout_traces.errors import StoreError
from rollout_traces.model.plain_values import plain
from rollout_traces.model.units import MB

SCHEMA_VERSION = 1
MAGIC = b"RTsp"
_PREFIX = struct.Struct("<4sHHIIQQ")
"""magic, schema, rollouts, header length, header CRC, body length, body sum."""
ROWS = "lengths"
"""The array of a hand-over that has an entry a rollout."""
MOST_ROWS = 0xFFFF
"""Rollouts that a prefix can say; with more it says this."""
_ALIGN = 64


class RecordError(StoreError):
    """A record is torn, damaged or of a newer schema."""


@dataclass(frozen=True, eq=False)
class Record:
    """One record of the spool.

    Attributes:
        kind: `rollouts`, `scalars`, `join`, `flush` or `finish`.
        meta: JSON-safe values.
        arrays: name -> numeric array of any shape.
    """

    kind: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


class RecordBuffer:
    """Memory in which records are laid out, kept between them so that its pages stay warm.

    One record at a time: `reserve` arrays, fill them, `finish`; the buffers it gives are valid until the
    next `clear`.
    """

    def __init__(self) -> None:
        self._memory = np.zeros(MB, np.uint8)
        self._used = 0
        self._arrays: list[dict[str, Any]] = []

    @property
    def n_bytes(self) -> int:
        """Bytes held."""
        return len(self._memory)

    def clear(self, n_bytes: int = 0) -> None:
        """Starts a record.

        Args:
            n_bytes: bytes that its arrays will need, about; memory is taken now for all of them.
        """
        self._used = 0
        self._arrays = []
        if n_bytes + (1 << 16) > len(self._memory):
            self._memory = np.zeros(int(n_bytes * 1.25) + MB, np.uint8)

    def reserve(self, name: str, dtype: Any, shape: int | Sequence[int]) -> np.ndarray:
        """An array of the record, its values not set.

        Args:
            dtype: numpy dtype.
        """
        kind = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(int(side) for side in shape)
        size = math.prod(shape) * kind.itemsize
        stop = self._used + -(-size // _ALIGN) * _ALIGN
        if stop > len(self._memory):
            raise ValueError(
                f"record: {stop} bytes needed, {len(self._memory)} taken. Clear with a larger size."
            )
        view = self._memory[self._used : self._used + size].view(kind).reshape(shape)
        self._memory[self._used + size : stop] = 0
        self._arrays.append({"name": name, "dtype": kind.str, "shape": shape, "at": self._used})
        self._used = stop
        return view

    def take_back(self) -> None:
        """Undoes the last `reserve`."""
        self._used = self._arrays.pop()["at"]

    def finish(self, kind: str, meta: Mapping[str, Any]) -> list[Any]:
        """The record's bytes as buffers to be written one after another."""
        header = to_json({"kind": kind, "meta": meta, "arrays": self._arrays})
        body = self._memory[: self._used]
        n_rows = next((entry["shape"][0] for entry in self._arrays if entry["name"] == ROWS), 0)
        prefix = _PREFIX.pack(
            MAGIC,
            SCHEMA_VERSION,
            min(n_rows, MOST_ROWS),
            len(header),
            zlib.crc32(header),
            len(body),
            _word_sum(body),
        )
        return [prefix, header, body.data]


def encode(record: Record) -> list[Any]:
    """A record's bytes as buffers to be written one after another."""
    buffer = RecordBuffer()
    buffer.clear(sum(array.nbytes + _ALIGN for array in record.arrays.values()))
    for name, array in record.arrays.items():
        buffer.reserve(name, array.dtype, array.shape)[...] = array
    return buffer.finish(record.kind, record.meta)


def decode(data: bytes | memoryview) -> Record:
    """Reads a record; its arrays share the memory of `data` and what follows the record is passed over.

    Raises:
        RecordError: the record is torn, damaged or of a newer schema.
    """
    if len(data) < _PREFIX.size:
        raise RecordError(f"record: torn, {len(data)} bytes where the prefix alone has {_PREFIX.size}.")
    magic, schema, _, n_header, header_crc, n_body, body_sum = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise RecordError(f"record: damaged, it begins with {magic!r} instead of {MAGIC!r}.")
    if schema > SCHEMA_VERSION:
        raise RecordError(
            f"record: schema {schema}, this version reads up to {SCHEMA_VERSION}. Upgrade rollout-traces."
        )
    if schema < 1:
        raise RecordError("record: damaged, there is no schema 0.")
    start = _PREFIX.size + n_header
    if len(data) < start + n_body:
        raise RecordError(f"record: torn, {len(data)} of {start + n_body} bytes are there.")
    header = bytes(data[_PREFIX.size : start])
    body = np.frombuffer(data, np.uint8, count=n_body, offset=start)
    if zlib.crc32(header) != header_crc or _word_sum(body) != body_sum:
        raise RecordError("record: damaged, its checksum does not fit.")
    head = orjson.loads(header)
    return Record(
        head["kind"], head["meta"], {entry["name"]: _array(entry, body) for entry in head["arrays"]}
    )


class Said(NamedTuple):
    """The content of a record's prefix.

    Attributes:
        n_rows: rollouts in it.
        is_newer: this version cannot read it.
    """

    n_rows: int
    is_newer: bool


PREFIX_BYTES = _PREFIX.size


def said_by(prefix: bytes) -> Said | None:
    """Reads the beginning of a record, which may be damaged further on; None where that is no prefix."""
    if len(prefix) < _PREFIX.size:
        return None
    magic, schema, n_rows, *_ = _PREFIX.unpack_from(prefix)
    return Said(n_rows, schema > SCHEMA_VERSION) if magic == MAGIC and schema else None


def n_bytes_of(data: bytes) -> int:
    """Bytes of the record that `data` begins with; the rest of a reused file does not belong to it.

    Args:
        data: what `decode` reads.
    """
    _, _, _, n_header, _, n_body, _ = _PREFIX.unpack_from(data)
    return int(_PREFIX.size + n_header + n_body)


def to_json(value: Any) -> bytes:
    """JSON of any value; what JSON cannot hold is converted by `plain_values.plain`."""
    try:
        return orjson.dumps(value, default=plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return orjson.dumps(plain(value))


def _array(entry: Mapping[str, Any], body: np.ndarray) -> np.ndarray:
    kind = np.dtype(entry["dtype"])
    size = math.prod(entry["shape"]) * kind.itemsize
    return body[entry["at"] : entry["at"] + size].view(kind).reshape(entry["shape"])


def _word_sum(body: np.ndarray) -> int:
    """Sum of the 64-bit words, modulo 2^64; the body's length is a multiple of 8.

    The words are copied where their memory is not aligned, as in a file read whole.
    """
    if body.ctypes.data % 8:
        body = body.copy()
    return int(np.add.reduce(body.view("<u8"), dtype=np.uint64)) if len(body) else 0
