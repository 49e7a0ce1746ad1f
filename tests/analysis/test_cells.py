"""Text columns that are counted together are counted as each alone."""

from __future__ import annotations

import random

from rollout_traces.analysis import Selection
from rollout_traces.analysis.cells import read_cells
from rollout_traces.analysis.relations import describe
from tests.analysis.builders import table

A, B = Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0))


def counted(rows, name: str) -> dict:
    found: dict = {}
    for row in rows:
        place = found.setdefault((1 - row["step"], row.get(name)), [0, 0, 0.0])
        place[0] += 1
        if row["reward"] is not None:
            place[1] += 1
            place[2] += row["reward"]
    return {key: tuple(each) for key, each in found.items()}


def told(rows, name: str) -> dict:
    relations = table(rows)
    cells = read_cells(relations, describe(relations), A, B)[name]
    each = zip(cells.side, cells.value, cells.n, cells.known, cells.total, strict=True)
    return {(int(s), v): (int(n), int(k), round(float(t), 9)) for s, v, n, k, t in each}


def drawn(n: int, columns: dict[str, list]) -> list[dict]:
    rng = random.Random(5)
    return [
        {"step": i % 2, "reward": rng.choice([None, 0.0, 0.5, 1.0])}
        | {name: rng.choice(values) for name, values in columns.items()}
        for i in range(n)
    ]


def test_few_columns_with_unknown_values():
    rows = drawn(400, {"source": ["math", "code"], "engine": ["a", "b", None]})
    assert told(rows, "source") == counted(rows, "source")
    assert told(rows, "engine") == counted(rows, "engine")


def test_columns_whose_combinations_are_too_many_for_one_reading():
    values = [f"v{i}" for i in range(12)]
    rows = drawn(600, {f"extra/{i}": values for i in range(7)})
    for i in range(7):
        assert told(rows, f"extra/{i}") == counted(rows, f"extra/{i}")


def test_a_column_that_nobody_knows_and_one_of_many_values_are_left_out():
    rows = [
        {"step": i % 2, "reward": 1.0, "source": "math", "answer": f"a{i}", "discard_reason": None}
        for i in range(80)
    ]
    relations = table(rows)
    assert set(read_cells(relations, describe(relations), A, B)) == {"source"}
