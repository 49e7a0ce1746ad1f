"""A record as bytes: a small JSON header and compact arrays, versioned and checksummed; and a batch as such a record.

Layout: a fixed prefix (magic, schema, lengths, checksums), the header as JSON, then the arrays, each at a
multiple of 64 bytes. The header's checksum is a CRC; the arrays', of megabytes that a training thread
waits for, is the sum of their 64-bit words.

Of a batch, ids take 4 bytes, masks a bit, integer tracks 1, 2, 4 or 8 bytes as their values need, float tracks 2 (4 where
a finite value exceeds float16's 65504), scalars stay float64, lists are JSON. `capture` writes the same layout straight
from tensors.
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
from rollout_traces.model import packed_batch
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.plain_values import plain
from rollout_traces.model.transcript import INT_TRACKS, int_track
from rollout_traces.model.units import MB

SCHEMA_VERSION = 1
MAGIC = b"RTsp"
_PREFIX = struct.Struct("<4sHHIIQQ")
"""magic, schema, rollouts, header length, header CRC, body length, body sum."""
ROWS = "lengths"
"""The array of a hand-over that has an entry a rollout."""
MOST_ROWS = int(np.iinfo(np.uint16).max)
"""Rollouts that a prefix can say; with more it says this."""
ALIGN = 64
"""Arrays begin at multiples of so many bytes."""
GROWTH = 1.25
"""Room that memory which is kept is made with, for a hand-over that is a little larger."""


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

    def clear(self, n_bytes: int = 0) -> None:
        """Starts a record.

        Args:
            n_bytes: bytes that its arrays will need, about; memory is taken now for all of them.
        """
        self._used = 0
        self._arrays = []
        if n_bytes + (1 << 16) > len(self._memory):
            self._memory = np.zeros(int(n_bytes * GROWTH) + MB, np.uint8)

    def reserve(self, name: str, dtype: Any, shape: int | Sequence[int]) -> np.ndarray:
        """An array of the record, its values not set.

        Args:
            dtype: numpy dtype.
        """
        kind = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(int(side) for side in shape)
        size = math.prod(shape) * kind.itemsize
        stop = self._used + -(-size // ALIGN) * ALIGN
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
    buffer.clear(sum(array.nbytes + ALIGN for array in record.arrays.values()))
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


ROLLOUTS = "rollouts"
"""Kind of a record that carries a batch."""
_INTS = (np.iinfo(np.int8), np.iinfo(np.int16), np.iinfo(np.int32))
_INFINITE, _MINUS_INFINITE = np.array([np.inf, -np.inf], np.float16).view(np.uint16).tolist()
_WITHOUT_SIGN = np.iinfo(np.int16).max
"""Bits of float16."""


def batch_from_record(record: Record) -> PackedBatch:
    """Reads a batch.

    Args:
        record: what `capture` made.

    Returns:
        The batch; float tracks as float32 with the precision they were stored with.

    Raises:
        RecordError: the record is of another kind or of a newer schema.
    """
    meta, arrays = record.meta, record.arrays
    if record.kind != ROLLOUTS:
        raise RecordError(f"record: kind {record.kind!r}. Expected {ROLLOUTS!r}.")
    if meta["schema"] > packed_batch.SCHEMA_VERSION:
        raise RecordError(
            f"record: batch schema {meta['schema']}, this version reads up to {packed_batch.SCHEMA_VERSION}. Upgrade rollout-traces."
        )
    lengths = arrays["lengths"].astype(np.int64)
    has_tokens = arrays["has_tokens"].astype(bool)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(has_tokens, lengths, 0))])
    n = int(offsets[-1])
    loss_mask = _bits(arrays["loss_mask"], n)
    given = _named(arrays, "track/")
    tracks = {
        name: int_track(array) if name in INT_TRACKS else array.astype(np.float32)
        for name, array in given.items()
    }
    mask_source = meta["response_mask_source"]
    if mask_source == "versions" and (tracks["versions"] >= 0).all() and not loss_mask.all():
        mask_source = "loss_mask"  # versions that mark no prompt, of a batch that was copied from a GPU
    if mask_source == "given":
        response_mask = _bits(arrays["response_mask"], n)
    elif mask_source == "versions":
        response_mask = tracks["versions"] >= 0
    else:
        response_mask = loss_mask.copy()
    return PackedBatch(
        offsets=offsets,
        input_ids=arrays["input_ids"].astype(np.int64),
        loss_mask=loss_mask,
        response_mask=response_mask,
        tracks=tracks,
        n_tokens=lengths,
        has_tokens=has_tokens,
        group_ids=arrays["group_ids"].astype(np.int64),
        row_lists=meta["row_lists"],
        row_floats=_named(arrays, "row_floats/"),
        reward_components=_named(arrays, "reward_components/"),
        sample_metrics=_named(arrays, "sample_metrics/"),
        batch_id=meta["batch_id"],
        step=meta["step"],
        split=meta["split"],
        response_mask_source=mask_source,
        train_version=meta["train_version"],
        pad_id=meta["pad_id"],
        handed_over_at=meta["handed_over_at"],
        notes=tuple(meta["notes"]),
        attempt=meta.get("attempt", ""),
        not_given={
            key: np.isin(np.arange(len(lengths)), rows) for key, rows in meta.get("not_given", {}).items()
        },
    )


def record_meta(row_lists: Mapping[str, Sequence[Any]], **fields: Any) -> dict[str, Any]:
    """The header of a batch's record."""
    return {"schema": packed_batch.SCHEMA_VERSION, "row_lists": row_lists, **fields}


def narrowest_int(values: np.ndarray) -> Any:
    """int8, int16, int32 or int64: the narrowest that holds all values."""
    if not len(values):
        return np.int8
    low, high = int(values.min()), int(values.max())
    return next((kind.dtype for kind in _INTS if kind.min <= low and high <= kind.max), np.int64)


def float16_overflows(narrow: np.ndarray, wide: np.ndarray) -> bool:
    """True when float16 turned a finite float32 value into an infinite one.

    Args:
        narrow: float16 [N].
        wide: float32 [N] that it was made from.
    """
    bits = narrow.view(np.uint16)
    if not len(bits) or (bits.max() < _MINUS_INFINITE and narrow.view(np.int16).max() < _INFINITE):
        return False
    infinite = (bits & _WITHOUT_SIGN) == _INFINITE
    return bool(infinite.any()) and bool(np.isfinite(wide[infinite]).any())


def _bits(packed: np.ndarray, n: int) -> np.ndarray:
    return np.unpackbits(packed, count=n).astype(bool)


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
