"""Columns of few values: the number of each row's value, packed into bits, between a parquet file's columns.

Reading one is a copy of some bytes, where parquet takes a footer of all columns and a page for each row group.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_VALUES = 127
"""Different values of a whole segment up to which a column is packed: their numbers fit into a byte of Arrow's."""
MOST_LETTERS = 10_000
"""Characters that such values have together."""
WIDTHS = (0, 1, 2, 4, 8)
"""Bits that a row's number may take: those that fill a byte without a rest."""
_CODEC = "lz4_raw"


@dataclass(frozen=True)
class PackedColumn:
    """A column of few values in a segment's file.

    Attributes:
        values: the values, in the order of their numbers.
        unknown: whether there are rows without a value: their number is the one after the last value's.
        bits: bits of a row's number, one of `WIDTHS`.
        at: the first byte in the file.
        size: bytes there, compressed.
        checksum: their CRC-32.
    """

    values: Sequence[Any]
    unknown: bool
    bits: int
    at: int
    size: int
    checksum: int


PackedColumns = Mapping[str, PackedColumn]


def pack(column: pa.ChunkedArray) -> tuple[PackedColumn, bytes] | None:
    """A column of few values, and its bytes; None for another one.

    Args:
        column: numbers or texts [N].
    """
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if len(values) > MOST_VALUES or not _are_plain(values):
        return None
    unknown = encoded.null_count > 0
    bits = _bits(len(values) + unknown)
    numbers = pc.fill_null(encoded.indices, len(values)).to_numpy().astype(np.uint8)
    block = pa.compress(_packed(numbers, bits), codec=_CODEC, asbytes=True) if bits else b""
    return PackedColumn(values, unknown, bits, 0, len(block), zlib.crc32(block)), block


def write_packed(file: BinaryIO, column: PackedColumn, block: bytes) -> PackedColumn:
    """Writes what `pack` gave to a file; returns the column with its place there."""
    at = file.tell()
    file.write(block)
    return replace(column, at=at)


def read_packed(
    file: BinaryIO,
    column: PackedColumn,
    n_rows: int,
    kind: pa.DataType,
    spans: Sequence[tuple[int, int]] | None = None,
) -> pa.DictionaryArray:
    """A column as a dictionary of its values.

    Args:
        file: the segment's file.
        column: what is said of it.
        n_rows: rows of the segment.
        kind: the type of its values.
        spans: first row and the one behind the last of the parts that are wanted, each beginning at a multiple of 8;
            all rows when None.

    Raises:
        ValueError: the file does not hold it.
    """
    file.seek(column.at)
    block = file.read(column.size)
    if len(block) != column.size or zlib.crc32(block) != column.checksum:
        raise ValueError(f"its bytes {column.at} to {column.at + column.size} are not what was written")
    values = _array(column.values, kind)
    spans = [(0, n_rows)] if spans is None else [(first, min(last, n_rows)) for first, last in spans]
    n = sum(last - first for first, last in spans)
    if not column.bits:
        numbers = np.zeros(n, np.uint8)
        known = np.zeros(n, bool) if column.unknown else None
    else:
        size = -(-n_rows * column.bits // 8)
        packed = np.frombuffer(pa.decompress(block, decompressed_size=size, codec=_CODEC), np.uint8)
        parts = [_rows(packed, column.bits, first, last) for first, last in spans]
        numbers = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
        known = numbers != len(values) if column.unknown else None
    if known is not None:
        numbers = np.where(known, numbers, 0)
    bitmap = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    indices = pa.Array.from_buffers(pa.int8(), n, [bitmap, pa.py_buffer(numbers)])
    return pa.DictionaryArray.from_arrays(indices, values)


def _rows(packed: np.ndarray, bits: int, first: int, last: int) -> np.ndarray:
    """The numbers of some rows, uint8."""
    return _unpacked(packed[first * bits // 8 : -(-last * bits // 8)], bits)[: last - first]


def _bits(n: int) -> int:
    """Bits that so many different numbers need."""
    return next(bits for bits in WIDTHS if n <= 1 << bits)


def _packed(numbers: np.ndarray, bits: int) -> bytes:
    """Numbers in their bits, the first of a byte lowest."""
    per_byte = 8 // bits
    padded = np.zeros(-(-len(numbers) // per_byte) * per_byte, np.uint8)
    padded[: len(numbers)] = numbers
    shifted = padded.reshape(-1, per_byte) << (np.arange(per_byte) * bits).astype(np.uint8)
    return np.bitwise_or.reduce(shifted, axis=1).astype(np.uint8).tobytes()


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers again, uint8; a few more than there were where the last byte is not full."""
    return _numbers_of_bytes(bits)[packed].view(np.uint8)


@cache
def _numbers_of_bytes(bits: int) -> np.ndarray:
    """The numbers in each of the 256 bytes: one integer of as many bytes as there are numbers."""
    per_byte = 8 // bits
    numbers = (np.arange(256)[:, None] >> (np.arange(per_byte) * bits)) & ((1 << bits) - 1)
    return numbers.astype(np.uint8).view(np.dtype(f"u{per_byte}"))[:, 0]


def _are_plain(values: Sequence[Any]) -> bool:
    """Whether values of one column are the same again once they were JSON."""
    if all(isinstance(value, str) for value in values):
        return sum(map(len, values)) <= MOST_LETTERS
    numbers = not any(isinstance(value, bool | str) for value in values)
    return numbers and all(math.isfinite(value) for value in values)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Known values as an array, by its buffers: `pyarrow.array` imports all of pandas first, where that is there."""
    if kind == pa.string():
        texts = [value.encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return pa.Array.from_buffers(
            kind, len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
        )
    numbers = np.array(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
