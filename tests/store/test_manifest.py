"""Joined segments hold the rows that they were made of."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.store import manifest
from rollout_traces.store.columns import column_of, quoted
from rollout_traces.store.engine import Engine
from rollout_traces.store.manifest import compact
from rollout_traces.store.rollout_table import RolloutTable, write_segment

COLUMNS = {
    "few": lambda at: float(at % 2),
    "many": lambda at: at / 7,
    "few then many": lambda at: at % 2 if at < 200 else at,
    "text": lambda at: None if at % 3 else "math",
}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.permutations([*COLUMNS])), min_size=2, max_size=4))
def test_segments_of_other_columns_in_another_order_become_one(
    tmp_path_factory: Any, parts: list[tuple[int, list[str]]]
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    connection = sqlite3.connect(":memory:", isolation_level=None)
    manifest.create(connection)
    connection.execute("INSERT INTO runs (run_id, name) VALUES ('a', 'run')")
    first = 0
    for place, (n, names) in enumerate(parts, 1):
        add(connection, folder, [place] * n, range(first, first + n), names[: 1 + place % len(names)])
        first += n
    before = rows(connection, folder)
    for path in compact(connection, folder, fewest=2):
        path.unlink()
    assert len(manifest.segments(connection, folder)) == 1
    assert rows(connection, folder) == before
    assert len(before) == first


def add(
    connection: sqlite3.Connection, folder: Path, places: list[int], numbers: range, names: list[str]
) -> None:
    n = len(numbers)
    found = {name: column_of([COLUMNS[name](at) for at in numbers]) for name in names}
    found |= {name: column_of([value] * n) for name, value in (("run_no", 1), ("step", 0))}
    found |= {"place": column_of(places), "split": column_of(["rollout"] * n), "row": column_of([*numbers])}
    table = pa.table(found)
    manifest.add_segment(connection, write_segment(folder, table), table)


def rows(connection: sqlite3.Connection, folder: Path) -> list[dict[str, Any]]:
    state = manifest.state(connection, folder)
    wanted = [name for name in ("row", "place", "split", *COLUMNS) if name in state.kinds]
    engine = Engine(folder)
    with RolloutTable(engine).at(lambda: (state, None)) as (_, cursor, _lent):
        listed = ", ".join(map(quoted, wanted))
        return engine.run(f'SELECT {listed} FROM rows ORDER BY "row"', on=cursor).to_pylist()


def test_a_segment_of_which_most_rows_are_dead_is_written_anew(tmp_path: Path) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    manifest.create(connection)
    connection.execute("INSERT INTO runs (run_id, name) VALUES ('a', 'run')")
    add(connection, tmp_path, [1] * 3 + [2] * 4, range(7), ["few"])
    connection.execute("UPDATE parts SET dead = 1 WHERE place = 1")
    assert compact(connection, tmp_path) == []
    add(connection, tmp_path, [3] * 2, range(7, 9), ["few"])
    connection.execute("UPDATE parts SET dead = 1 WHERE place = 2")
    before = rows(connection, tmp_path)
    assert len(compact(connection, tmp_path)) == 1
    assert rows(connection, tmp_path) == before and [row["place"] for row in before] == [3, 3]
    assert [segment.n_rows for segment in manifest.segments(connection, tmp_path)] == [2]
