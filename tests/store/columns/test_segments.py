"""Columns of few values are stored as numbers of them, and come back as they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_traces.store.columns import table as table_module
from rollout_traces.store.columns.cache import Cache
from rollout_traces.store.columns.engine import Engine
from rollout_traces.store.columns.kinds import column_of
from rollout_traces.store.columns.segments import (
    ROW_GROUP,
    DamagedSegment,
    SegmentFile,
    read_columns,
    write_segment,
)
from rollout_traces.store.columns.table import Rows, State

N = ROW_GROUP + 300


def written(folder: Path, number: int = 1, **columns: Sequence[Any]) -> SegmentFile:
    """A segment with these columns and those that every segment has."""
    n = len(next(iter(columns.values())))
    found = {name: column_of(values) for name, values in columns.items()}
    found |= {name: column_of([number] * n) for name in ("place", "run_no", "step")}
    found["row"] = column_of(range(number << 22, (number << 22) + n))
    path, packed = write_segment(folder, pa.table({name: column for name, (_, column) in found.items()}))
    return SegmentFile(number, path, n, {name: kind for name, (kind, _) in found.items()}, packed=packed)


def rows_of(*segments: SegmentFile) -> Rows:
    return Rows(State((1,), segments, {1: ("a", "run")}), Cache())


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 1.0, None, 0.5],
        [1, None, -(2**63), 2**63 - 1],
        ["math", "", None, "code\u2028\U0001f600"],
        [float("inf"), 1.5, None, float("-inf")],
        [1.0, float("nan"), None, 2.0],
        [None, 7, "seven", 1.0],
        ["long" * 5000, "text" * 5000, None, ""],
        [True, False, None, True],
        [(), ("a", "b"), None, ("a",)],
    ],
    ids=["floats", "ints", "texts", "infinities", "nan", "mixed", "long texts", "bools", "tags"],
)
def test_values_come_back_as_they_were(tmp_path: Path, values: list[Any]) -> None:
    column = (values * N)[:N]
    segment = written(tmp_path, value=column)
    rows = rows_of(segment)
    expected = column_of(column)[1]
    assert same(rows.arrow(["value"])["value"], expected)
    assert same(rows.coded(["value"])["value"], expected)
    at = [N - 1, 2, ROW_GROUP, 2]
    assert same(
        rows_of(segment).take(pa.array(at).to_numpy(), ["value"])["value"], expected.take(pa.array(at))
    )


def same(column: pa.ChunkedArray, expected: pa.Array) -> bool:
    plain = column.cast(expected.type).combine_chunks()
    return repr(plain.to_pylist()) == repr(expected.to_pylist())


def test_a_column_of_few_values_takes_a_byte_a_row_and_answers_the_same(tmp_path: Path) -> None:
    rewards = [float(b % 2) for b in range(N)]
    advantages = [b / 7 for b in range(N)]
    rows = rows_of(written(tmp_path, reward=rewards, advantage=advantages))
    coded = rows.coded(["reward", "advantage"])
    assert coded["reward"].nbytes < 1.1 * N
    assert coded["advantage"].nbytes >= 8 * N
    statement = "SELECT sum(reward) AS s, typeof(any_value(reward)) AS kind, count(*) AS n FROM rollouts WHERE reward > ?"
    answers = [
        Engine().run(statement, [0.5], {"rollouts": table})
        for table in (coded, rows.arrow(["reward", "advantage"]))
    ]
    assert answers[0].to_pylist() == answers[1].to_pylist() == [{"s": N // 2, "kind": "DOUBLE", "n": N // 2}]


def test_segments_of_few_and_of_many_values_are_one_column(tmp_path: Path) -> None:
    few = written(tmp_path, 1, n=[1, 2, None] * 100, source=["math", "code", None] * 100)
    many = written(tmp_path, 2, n=[b / 2 for b in range(300)], source=[f"source {b}" for b in range(300)])
    without = written(tmp_path, 3, other=[1] * 5)
    rows = rows_of(few, many, without)
    for table in (rows.arrow(["n", "source", "run_no"]), rows.coded(["n", "source", "run_no"])):
        assert table["n"].to_pylist() == [1.0, 2.0, None] * 100 + [b / 2 for b in range(300)] + [None] * 5
        texts = ["math", "code", None] * 100 + [f"source {b}" for b in range(300)] + [None] * 5
        assert table["source"].to_pylist() == texts
        assert table["run_no"].to_pylist() == [1] * 300 + [2] * 300 + [3] * 5


def test_columns_beyond_the_bound_are_let_go_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "MOST_KEPT", N * 8 * 3)
    names = [f"c{n}" for n in range(9)]
    columns = {name: [float(b * (at + 1)) for b in range(N)] for at, name in enumerate(names)}
    state = State((1,), [written(tmp_path, **columns)], {1: ("a", "run")})
    rows = Rows(state, Cache(table_module.MOST_KEPT))
    before = pa.total_allocated_bytes()
    for name in names * 2:
        assert rows.coded([name, "advantage"])[name].to_pylist() == columns[name]
    assert pa.total_allocated_bytes() - before <= 2 * table_module.MOST_KEPT
    assert rows.coded(names)["c8"].to_pylist() == columns["c8"]


def test_columns_without_any_value_take_no_memory_of_their_own(tmp_path: Path) -> None:
    rows = rows_of(written(tmp_path, reward=[1.0] * N))
    missing = ["advantage", "n_sampled", "prompt", "flags"]
    before = pa.total_allocated_bytes()
    found = rows.coded(missing)
    assert pa.total_allocated_bytes() - before < N
    assert [found[name].null_count for name in missing] == [N] * 4
    found.validate(full=True)


def test_replaced_rows_of_a_segment_are_left_out(tmp_path: Path) -> None:
    segment = written(tmp_path, 1, n=[4, 5])
    replaced = SegmentFile(1, segment.path, 2, segment.kinds, frozenset({1}), segment.packed)
    assert rows_of(replaced, written(tmp_path, 2, n=[6])).arrow(["n"])["n"].to_pylist() == [6]


def test_a_number_that_no_value_has_is_damage(tmp_path: Path) -> None:
    segment = written(tmp_path, n=[4, 5, 6])
    shorter = replace(segment.packed["n"], values=[4])
    fewer = SegmentFile(1, segment.path, 3, segment.kinds, packed={**segment.packed, "n": shorter})
    with pytest.raises(DamagedSegment, match="damaged"):
        read_columns(fewer, ["n"])


def test_a_segment_is_a_parquet_file_of_its_other_columns(tmp_path: Path) -> None:
    segment = written(tmp_path, reward=[float(b % 2) for b in range(N)], advantage=[b / 7 for b in range(N)])
    assert "reward" in segment.packed
    table = pq.read_table(segment.path)
    assert set(table.column_names) == set(segment.kinds) - set(segment.packed)
    assert table["advantage"].to_pylist() == [b / 7 for b in range(N)]


def test_a_packed_column_with_another_byte_is_damage(tmp_path: Path) -> None:
    segment = written(tmp_path, reward=[float(b % 2) for b in range(N)])
    content = bytearray(segment.path.read_bytes())
    content[segment.packed["reward"].at] ^= 1
    segment.path.write_bytes(content)
    with pytest.raises(DamagedSegment, match="not what was written"):
        read_columns(segment, ["reward"])


def test_columns_come_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    names = ["advantage", "missing", "reward", "row"]
    for rewards in ([float(b % 2) for b in range(N)], [b / 3 for b in range(N)]):
        segment = written(tmp_path, reward=rewards, advantage=[b / 7 for b in range(N)])
        assert list(read_columns(segment, names)) == names
