from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.flags.inputs import Runs


def runs_by_hand(rows: list[list[bool]]) -> list[tuple[int, int, int]]:
    found = []
    for number, row in enumerate(rows):
        start = None
        for at, marked in enumerate([*row, False]):
            if marked and start is None:
                start = at
            elif not marked and start is not None:
                found.append((number, start, at))
                start = None
    return found


class TestRuns:
    @given(st.lists(st.lists(st.booleans(), max_size=12), max_size=8))
    def test_runs_are_maximal_and_stay_inside_their_row(self, rows):
        mask = np.asarray([marked for row in rows for marked in row], bool)
        offsets = np.cumsum([0, *map(len, rows)])
        runs = Runs.of(mask, offsets)
        found = [(int(row), *runs.local(index)) for index, row in enumerate(runs.rows)]
        assert found == runs_by_hand(rows)

    def test_first_and_last_of_a_row(self):
        runs = Runs.of(np.asarray([1, 0, 1, 1, 0, 1], bool), np.asarray([0, 3, 3, 6]))
        assert [part.tolist() for part in runs.first_of_rows()] == [[0, 2], [0, 2]]
        assert [part.tolist() for part in runs.last_of_rows()] == [[0, 2], [1, 3]]
        assert runs.lengths.tolist() == [1, 1, 1, 1]
