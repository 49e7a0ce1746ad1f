"""Python's own values of some rows are those that Arrow gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_traces.store.columns.cache import Cache
from rollout_traces.store.columns.segments import ROW_GROUP, SegmentFile
from rollout_traces.store.columns.table import Rows, State
from rollout_traces.store.columns.values import MOST_WORDS, ValuesOf
from tests.store.columns.test_segments import written

N = 2 * MOST_WORDS

MANY = {
    "floats": [None if b % 7 == 3 else b / 3 for b in range(N)],
    "ints": [b - 2**62 for b in range(N)],
    "few": [b % 3 for b in range(N)],
    "few, some unknown": [None if b % 5 == 1 else float(b % 3) for b in range(N)],
    "texts": [None if b % 11 == 2 else f"text {b} \U0001f600" for b in range(N)],
    "uid": [f"uid {b}" for b in range(N)],
    "names": [None if b % 4 == 0 else ("a", f"b{b}") if b % 2 else () for b in range(N)],
    "mixed": [b if b % 2 else f"m{b}" for b in range(N)],
    "late_part": [None if b % 3 == 0 else b % 2 for b in range(N)],
    "doc": [None if b % 6 == 0 else b + 1 for b in range(N)],
    "split": ["rollout"] * N,
}
FEW = {
    "floats": [1, 2, None, 2],
    "few": [None, 5.5, 7.0, 5.5],
    "names": [("c",), None, (), ("d", "e")],
    "texts": ["one", None, "", "one"],
    "split": ["eval"] * 4,
}


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> tuple[SegmentFile, ...]:
    folder = tmp_path_factory.mktemp("segments")
    return written(folder, 1, **MANY), written(folder, 2, **FEW), written(folder, 3, other=[1] * 5)


def rows_of(segments: tuple[SegmentFile, ...]) -> Rows:
    return Rows(State((1,), segments, {n: (f"id {n}", f"run {n}") for n in (1, 2, 3)}), Cache())


@given(positions=st.lists(st.integers(0, N + 8), max_size=80), alone=st.booleans())
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_of_any_rows_are_those_of_the_table(
    segments: tuple[SegmentFile, ...], positions: list[int], alone: bool
) -> None:
    chosen = segments[:1] if alone else segments
    rows = rows_of(chosen)
    at = np.array(positions, np.int64) % rows.n_rows
    names = [
        name
        for name in rows.kinds
        if name in {*MANY, "other", "row", "run", "run_id", "traced", "late", "uid"}
    ]
    expected = rows_of(chosen).take(at, names)
    found = rows.values(at, names)
    assert list(found) == names
    for name in names:
        assert repr(found[name]) == repr(expected[name].to_pylist()), name


def test_rows_of_which_some_were_replaced(segments: tuple[SegmentFile, ...], tmp_path: Path) -> None:
    first = written(tmp_path, 1, **FEW)
    replaced = SegmentFile(1, first.path, 4, first.kinds, frozenset({1}), first.packed)
    rows = rows_of((replaced, segments[1]))
    assert rows.values(np.array([3, 0]), ["names", "few"]) == {
        "names": [["d", "e"], ["c"]],
        "few": [5.5, None],
    }


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 3, 4], pa.int64()).slice(1),
        pa.array([None, 2.5, None], pa.float64()),
        pa.array(["a", None, "bc", ""]).slice(1),
        pa.array([["a"], None, [], ["b", None, "c"]], pa.list_(pa.string())).slice(1),
        pa.array(["a", None, "b", "a"]).dictionary_encode().slice(1),
        pa.array([f"{b}" for b in range(MOST_WORDS + 1)] + [None, "5"]).dictionary_encode().slice(1),
        pa.array([None, None], pa.string()).dictionary_encode(),
        pa.array([[None, "x"], ["y"]], pa.list_(pa.string())),
    ],
    ids=["ints", "floats", "texts", "lists", "few words", "many words", "no words", "unknown names"],
)
def test_pieces_of_columns(column: pa.Array) -> None:
    read = ValuesOf(pa.chunked_array([column])).read
    assert read is not None
    at = np.array([*range(len(column)), len(column) - 1, 0])
    assert read(at) == column.take(pa.array(at)).to_pylist()
    assert read(np.array([], np.int64)) == []


def test_columns_of_other_types_and_in_pieces_are_left_to_arrow() -> None:
    assert ValuesOf(pa.chunked_array([pa.array([True])])).read is None
    assert ValuesOf(pa.chunked_array([[1], [2]])).read is None


def test_nothing_is_read_whole_for_a_page_of_a_large_table(
    segments: tuple[SegmentFile, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollout_traces.store.columns import table

    monkeypatch.setattr(table, "SMALL", 0)
    rows = rows_of(segments)
    assert rows.values(np.array([ROW_GROUP - 9, 5]), ["ints"]) == {"ints": [ROW_GROUP - 9 - 2**62, 5 - 2**62]}
    assert not rows._cache.known(segments[0], ["ints"])
