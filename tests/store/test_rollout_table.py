from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_traces.store import manifest, rollout_table
from rollout_traces.store.columns import column_of, kind_of, stacked, type_of
from rollout_traces.store.engine import Engine
from rollout_traces.store.labels import Labelled, new_entry
from rollout_traces.store.rollout_table import (
    DamagedSegment,
    RolloutTable,
    SegmentFile,
    State,
    check_segment,
    superseded_sql,
    write_segment,
)


def superseded_by(first: Mapping[tuple[int, str, str], int]) -> Mapping[tuple[int, str, str], int]:
    """What is superseded where attempts began at these steps."""
    with closing(sqlite3.connect(":memory:")) as connection:
        manifest.create(connection)
        rows = [(*key, step) for key, step in first.items()]
        connection.executemany("INSERT INTO attempts VALUES (?, ?, ?, ?)", rows)
        return manifest.superseded(connection)


class TestSuperseded:
    def test_a_resume_supersedes_the_steps_that_it_writes_anew(self) -> None:
        first = {(1, "rollout", "a"): 1, (1, "rollout", "b"): 5}
        assert superseded_by(first) == {(1, "rollout", "a"): 5}

    def test_an_evaluation_of_weights_that_were_thrown_away_goes_with_them(self) -> None:
        first = {(1, "rollout", "a"): 1, (1, "eval-rollout", "a"): 4, (1, "rollout", "b"): 5}
        assert superseded_by(first)[(1, "eval-rollout", "a")] == 5

    def test_the_earliest_step_that_a_later_attempt_wrote_counts(self) -> None:
        first = {(1, "rollout", "a"): 1, (1, "rollout", "b"): 5, (1, "rollout", "c"): 3}
        assert superseded_by(first) == {(1, "rollout", "a"): 3, (1, "rollout", "b"): 3}

    def test_runs_do_not_supersede_each_other(self) -> None:
        assert superseded_by({(1, "rollout", "a"): 1, (2, "rollout", "b"): 1}) == {}

    def test_rows_from_that_step_on_are_marked(self) -> None:
        rows = pa.table(
            {"run_no": [1] * 3, "split": ["rollout"] * 3, "attempt": ["a", "a", None], "step": [4, 5, 6]}
        )
        for since, marked in (({(1, "rollout", "a"): 5}, [False, True, False]), ({}, [False] * 3)):
            found = Engine().run(f"SELECT {superseded_sql(since)} AS m FROM rows", (), {"rows": rows})
            assert found["m"].to_pylist() == marked


RUNS = {1: ("a", "run"), 2: ("b", "other")}


def written(folder: Path, number: int = 1, run_no: int = 1, **columns: Sequence[Any]) -> SegmentFile:
    """A segment with these columns and those that every segment has; its place has its number."""
    n = len(next(iter(columns.values())))
    found = {name: column_of(values) for name, values in columns.items()}
    found |= {
        name: column_of([value] * n) for name, value in (("place", number), ("run_no", run_no), ("step", 0))
    }
    found |= {"row": column_of(range(number << 22, (number << 22) + n)), "split": column_of(["rollout"] * n)}
    path, checksum = write_segment(folder, pa.table(found))
    return SegmentFile(
        number, path, n, {name: kind_of(column.type) for name, column in found.items()}, checksum
    )


class Seen:
    """A table that is shown one state after another."""

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(folder)
        self.table = RolloutTable(self.engine)
        self.stamp = 0

    def rows(self, *segments: SegmentFile, query: str = "", **changed: Any) -> list[dict[str, Any]]:
        self.stamp += 1
        state = State((self.stamp,), segments, changed.pop("runs", RUNS), **changed)
        with self.table.at(lambda: (state, None)) as (_, cursor, _lent):
            return self.engine.run(query or 'SELECT * FROM rows ORDER BY "row"', on=cursor).to_pylist()

    def column(self, name: str, *segments: SegmentFile, **changed: Any) -> list[Any]:
        return [row[name] for row in self.rows(*segments, **changed)]


@pytest.fixture(params=["in memory", "on disk", "first on disk"])
def seen(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    if request.param == "on disk":
        monkeypatch.setattr(rollout_table, "MOST_LOADED", 0)
    if request.param == "first on disk":
        monkeypatch.setattr(rollout_table, "FEW", 1)
        monkeypatch.setattr(rollout_table, "FROM_FILES", 2)
    found = Seen(tmp_path)
    yield found
    found.engine.close()


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
        [(), ("a", "b"), None, ("a",)],
        [None] * 4,
    ],
    ids=["floats", "ints", "texts", "infinities", "nan", "mixed", "long texts", "tags", "nothing"],
)
def test_values_come_back_as_they_were_to_us_and_to_any_reader(
    seen: Seen, tmp_path: Path, values: list[Any]
) -> None:
    segment = written(tmp_path, value=values * 500)
    expected = repr(column_of(values * 500).to_pylist())
    assert repr(seen.column("value", segment)) == expected
    table = pq.read_table(segment.path)
    assert set(table.column_names) == set(segment.kinds) and repr(table["value"].to_pylist()) == expected


def test_segments_of_other_columns_and_kinds_are_one_table(seen: Seen, tmp_path: Path) -> None:
    numbers = [1.0, 1.5, float("inf"), float("-inf"), 1e-7, 2.0**60, None]
    parts = [
        written(tmp_path, 1, n=[1, 2, None], x=numbers[:3], tags=[("a", "b"), (), None]),
        written(tmp_path, 2, n=[0.5], x=["text"], tags=["text"]),
        written(tmp_path, 3, run_no=2, other=[1] * 4, x=numbers[3:]),
    ]
    assert seen.column("n", *parts) == [1.0, 2.0, None, 0.5, None, None, None, None]
    assert seen.column("run", *parts) == ["run"] * 4 + ["other"] * 4
    # as they are one column where they are joined on disk
    schemas = [pa.schema([(n, type_of(kind)) for n, kind in s.kinds.items()]) for s in parts]
    joined = stacked([pq.read_table(s.path, schema=schema) for s, schema in zip(parts, schemas, strict=True)])
    for name in ("x", "tags"):
        assert seen.column(name, *parts) == joined[name].to_pylist()


def test_it_follows_what_comes_goes_and_is_replaced(seen: Seen, tmp_path: Path) -> None:
    one, two, three = (written(tmp_path, number, n=[number] * 2) for number in (1, 2, 3))
    assert seen.column("n", one) == [1, 1]
    assert seen.column("n", one, two) == [1, 1, 2, 2]
    assert seen.column("n", one, replace(two, dead=frozenset({2})), three) == [1, 1, 3, 3]
    assert seen.column("n", replace(one, dead=frozenset({1})), three) == [3, 3]
    assert seen.column("n") == []
    assert seen.column("n", one, written(tmp_path, 4, n=["text"])) == ["1", "1", "text"]
    assert seen.column("run", one, runs={1: ("a", "renamed")}) == ["renamed"] * 2


def test_a_label_is_of_a_uid_and_of_the_id_where_there_is_none(seen: Seen, tmp_path: Path) -> None:
    entries = {key: (new_entry("label", key, f"of {key}", "ann"),) for key in ("u", "the id", "both")}
    segment = written(tmp_path, uid=["u", None, "both", "other"], id=[None, "the id", "the id", "both"])
    labelled = Labelled(1, entries)
    query = 'SELECT labels FROM rollouts ORDER BY "row"'
    assert seen.column("labels", segment, query=query, labelled=labelled) == [
        ["of u"],
        ["of the id"],
        ["of both"],
        None,
    ]


def test_it_is_loaded_anew_where_much_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_table, "MOST_GONE", 3)
    seen = Seen(tmp_path)
    for number in range(1, 9):
        assert seen.column("n", written(tmp_path, number, n=[number] * 2)) == [number] * 2
        assert seen.table._gone <= 5
        assert seen.engine.run("SELECT count(*) AS n FROM loaded").to_pylist() == [{"n": 2}]


def test_many_rows_are_loaded_once_many_questions_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_table, "FROM_FILES", 3)
    few, many = (
        written(tmp_path, 1, n=[1]),
        replace(written(tmp_path, 2, n=[2]), n_rows=rollout_table.ROW_GROUP + 1),
    )
    where = "SELECT count(*) AS n FROM duckdb_tables() WHERE table_name = 'loaded'"
    for segment, loaded in ((few, [1, 1]), (many, [0, 0, 1, 1])):
        seen, state = Seen(tmp_path), State((1,), (segment,), RUNS)
        for n in loaded:
            with seen.table.at(lambda state=state: (state, None)) as (_, cursor, _lent):
                assert seen.engine.run("SELECT n FROM rows", on=cursor).to_pylist() == [{"n": segment.number}]
                assert seen.engine.run(where, on=cursor).to_pylist() == [{"n": n}]


def test_a_question_sees_one_state_while_another_one_moves_on(seen: Seen, tmp_path: Path) -> None:
    one, two = written(tmp_path, 1, n=[1]), written(tmp_path, 2, n=[2])
    first = State((100,), (one,), RUNS)
    with seen.table.at(lambda: (first, None)) as (_, cursor, _lent):
        assert seen.column("n", two) == [2]
        assert seen.engine.run("SELECT n FROM rows", on=cursor).to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("damage", ["a byte", "cut", "no parquet", "fewer rows"])
def test_a_file_that_is_not_what_was_written_is_damage_and_the_table_stays(
    seen: Seen, tmp_path: Path, damage: str
) -> None:
    good, segment = written(tmp_path, 1, n=[1]), written(tmp_path, 2, n=[b / 7 for b in range(3000)])
    whole = bytearray(segment.path.read_bytes())
    if damage == "fewer rows":
        pq.write_table(pq.read_table(segment.path).slice(1), segment.path)
    else:
        changed = {"a byte": whole, "cut": whole[:-20], "no parquet": bytearray(b"PAR1" * 9)}[damage]
        changed[len(changed) // 2] ^= 1
        segment.path.write_bytes(changed)
    assert seen.column("n", good) == [1]
    with pytest.raises(DamagedSegment, match="rebuilt at the next refresh"):
        seen.rows(good, segment)
    assert seen.column("n", good) == [1]


def test_a_file_that_is_gone_is_said(seen: Seen, tmp_path: Path) -> None:
    segment = written(tmp_path, n=[1])
    segment.path.unlink()
    with pytest.raises(FileNotFoundError):
        check_segment(segment)
    with pytest.raises(FileNotFoundError):
        seen.rows(segment)
