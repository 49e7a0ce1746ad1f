"""Columns of few values are packed into bits, and come back as they were."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.store.columns.packed import MOST_VALUES, PackedColumn, pack, read_packed, write_packed

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@given(st.data())
def test_what_is_packed_comes_back(data: st.DataObject) -> None:
    kind, value = data.draw(
        st.sampled_from(
            [
                (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
                (pa.float64(), st.floats()),
                (pa.string(), TEXTS),
            ]
        )
    )
    values = data.draw(st.lists(st.none() | value, min_size=1, max_size=160, unique=True))
    column = pa.chunked_array([data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=400))], kind)
    found = pack(column)
    distinct = pc.count_distinct(column, mode="only_valid").as_py()
    if found is None:
        assert distinct > MOST_VALUES or not all(map(is_plain, column.to_pylist()))
        return
    file = io.BytesIO()
    file.write(b"before")
    stored = PackedColumn(**orjson.loads(orjson.dumps(write_packed(file, *found))))
    file.write(b"after")
    read = read_packed(file, stored, len(column), column.type)
    read.validate(full=True)
    assert read.null_count == column.null_count
    assert repr(read.to_pylist()) == repr(column.to_pylist())
    assert stored.size <= len(column) + 16
    wanted = data.draw(st.lists(st.integers(0, (len(column) - 1) // 8), unique=True).map(sorted))
    spans = [(8 * at, 8 * at + 8) for at in wanted]
    part = read_packed(file, stored, len(column), column.type, spans)
    part.validate(full=True)
    expected = [value for first, last in spans for value in column.to_pylist()[first:last]]
    assert repr(part.to_pylist()) == repr(expected)


def is_plain(value: Any) -> bool:
    return not isinstance(value, float) or (value == value and abs(value) != float("inf"))


@pytest.mark.parametrize(("n_values", "bits"), [(1, 0), (2, 1), (4, 2), (5, 4), (16, 4), (17, 8), (127, 8)])
def test_a_row_takes_the_bits_that_its_number_needs(n_values: int, bits: int) -> None:
    found = pack(pa.chunked_array([list(range(n_values)) * 2]))
    assert found is not None
    assert found[0].bits == bits


def test_bytes_that_were_not_written_are_refused() -> None:
    column = pa.chunked_array([[1.0, 0.0, None] * 50])
    found = pack(column)
    assert found is not None
    file = io.BytesIO()
    stored = write_packed(file, *found)
    file.seek(stored.size - 1)
    file.write(b"\xff")
    with pytest.raises(ValueError, match="not what was written"):
        read_packed(file, stored, 150, pa.float64())
    with pytest.raises(ValueError, match="not what was written"):
        read_packed(io.BytesIO(b""), stored, 150, pa.float64())


def test_a_number_past_the_values_is_refused() -> None:
    found = pack(pa.chunked_array([[4, 5, 6]]))
    assert found is not None
    file = io.BytesIO()
    stored = replace(write_packed(file, *found), values=[4])
    with pytest.raises(pa.ArrowException):
        read_packed(file, stored, 3, pa.int64())
