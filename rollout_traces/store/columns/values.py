"""Values of some rows of a column as Python's own, read where they lie: for a page, a tenth of what Arrow's way takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

MOST_WORDS = 4096
"""Values of a dictionary up to which they are made Python's own all at once."""

Read = Callable[[np.ndarray], list[Any]]
"""The values at some positions, None where unknown."""


class ValuesOf:
    """The values of one column in memory.

    Args:
        column: the column.
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.column = column

    @cached_property
    def kind(self) -> pa.DataType:
        """The type of its values."""
        kind = self.column.type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    @cached_property
    def read(self) -> Read | None:
        """Reads values; None for a column in several pieces, or of another type than those below."""
        return _reader(self.column.chunk(0)) if self.column.num_chunks == 1 else None


def _reader(array: pa.Array) -> Read | None:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _words(array.indices, array.dictionary)
    if kind in (pa.int64(), pa.float64()):
        return _numbers(array)
    if kind == pa.string():
        return _texts(array)
    return _lists(array) if kind == pa.list_(pa.string()) else None


def _numbers(array: pa.Array) -> Read:
    values = _view(array.buffers()[1], array.type.to_pandas_dtype(), array.offset, len(array))
    return _with_unknown(lambda at: values[at].tolist(), array)


def _texts(array: pa.Array) -> Read:
    _, ends, content = array.buffers()
    edges = _view(ends, np.int32, array.offset, len(array) + 1)
    letters = memoryview(content or b"")

    def read(at: np.ndarray) -> list[Any]:
        spans = zip(edges[at].tolist(), edges[at + 1].tolist(), strict=True)
        return [str(letters[first:last], "utf-8") for first, last in spans]

    return _with_unknown(read, array)


def _lists(array: pa.Array) -> Read:
    edges = _view(array.buffers()[1], np.int32, array.offset, len(array) + 1)
    texts = _texts(array.values)

    def read(at: np.ndarray) -> list[Any]:
        spans = [*zip(edges[at].tolist(), edges[at + 1].tolist(), strict=True)]
        inside = iter(texts(np.array([row for first, last in spans for row in range(first, last)], np.int64)))
        return [[*islice(inside, last - first)] for first, last in spans]

    return _with_unknown(read, array)


def _words(indices: pa.Array, dictionary: pa.Array) -> Read | None:
    n = len(dictionary)
    if n <= MOST_WORDS:
        numbers, words = _numbers(indices), dict(enumerate(dictionary.to_pylist()))
        return lambda at: [*map(words.get, numbers(at))]
    word = _reader(dictionary)
    if word is None:
        return None
    places = _view(indices.buffers()[1], indices.type.to_pandas_dtype(), indices.offset, len(indices))
    # the place of an unknown value may be any
    return _with_unknown(lambda at: word(places[at] % n), indices)


def _view(buffer: pa.Buffer | None, kind: Any, offset: int, n: int) -> np.ndarray:
    """The numbers of a buffer; any at all where values are unknown."""
    return np.zeros(n, kind) if buffer is None else np.frombuffer(buffer, kind, count=offset + n)[offset:]


def _with_unknown(read: Read, array: pa.Array) -> Read:
    """Reads values with None for those that the array does not know."""
    if not array.null_count:
        return read
    bitmap, offset = np.frombuffer(array.buffers()[0], np.uint8), array.offset

    def reads(at: np.ndarray) -> list[Any]:
        found = read(at)
        bits = at + offset
        unknown = (bitmap[bits >> 3] >> (bits & 7).astype(np.uint8)) & 1 == 0
        for row in np.flatnonzero(unknown).tolist():
            found[row] = None
        return found

    return reads
