"""Runs and traces that are meant by a name, in the tables of an index."""

from __future__ import annotations

import sqlite3

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store.manifest import _TABLES
from rollout_traces.store.steps import find_run_id, find_trace, list_runs


@pytest.fixture
def index():
    connection = sqlite3.connect(":memory:")
    connection.executescript(_TABLES)
    yield connection
    connection.close()


def add_runs(index: sqlite3.Connection, *runs: tuple[str, str]) -> None:
    for run_id, name in runs:
        index.execute("INSERT INTO runs (run_id, name, started) VALUES (?, ?, '2026-01-01')", (run_id, name))


def add_traces(index: sqlite3.Connection, *traces: tuple[str, str | None, int]) -> None:
    for trace_id, uid, place in traces:
        index.execute(
            "INSERT INTO docs (id, uid, place, kind) VALUES (?, ?, ?, 'trace')", (trace_id, uid, place)
        )


class TestARun:
    def test_is_meant_by_its_id_before_a_name_and_by_a_name_before_a_beginning(self, index):
        add_runs(index, ("aa", "first"), ("ab", "aa"), ("ac", "firstly"))
        assert find_run_id(index, "aa") == "aa"
        assert find_run_id(index, "first") == "aa"
        assert find_run_id(index, "firstl") == find_run_id(index, "ac") == "ac"

    @pytest.mark.parametrize("wanted", ["a", "same"])
    def test_of_several_is_refused_with_their_ids(self, index, wanted):
        add_runs(index, ("a1", "same"), ("a2", "same"))
        with pytest.raises(StoreError, match=rf"2 runs are meant by '{wanted}'.*: a1 \(same, started 2026"):
            find_run_id(index, wanted)

    def test_that_there_is_not_is_refused_with_those_that_there_are(self, index):
        with pytest.raises(StoreError, match=r"no run 'x'\. Runs: none\."):
            find_run_id(index, "x")
        add_runs(index, ("a1", "one"), ("a2", "two"))
        for wanted in ("x", "", "ONE"):
            with pytest.raises(StoreError, match=rf"no run '{wanted}'\. Runs: one, two\."):
                find_run_id(index, wanted)

    def test_is_listed_with_what_its_living_parts_hold_training_first(self, index):
        add_runs(index, ("a1", "one"), ("a2", "two"))
        for place, split in enumerate(("eval-rollout", "rollout", "rollout"), 1):
            index.execute("INSERT INTO places VALUES (?, 1, ?, ?)", (place, split, place))
        columns = [name for _, name, *_ in index.execute("PRAGMA table_info(parts)")]
        assert {"place", "n_traces", "n_ledger", "dead"} <= set(columns)
        for place, traces, rows, dead in ((1, 1, 4, 0), (2, 2, 8, 0), (3, 3, 16, 1)):
            values = {"place": place, "n_traces": traces, "n_ledger": rows, "dead": dead}
            index.execute(
                f"INSERT INTO parts ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
                [values.get(name, 0) for name in columns],
            )
        for attempt in ((1, "rollout", "b", 4), (1, "rollout", "a", 0), (1, "eval-rollout", "c", 2)):
            index.execute("INSERT INTO attempts VALUES (?, ?, ?, ?)", attempt)
        one, two = list_runs(index)
        assert (one.id, one.name, one.last_step, one.splits) == (
            "a1",
            "one",
            0,
            ("rollout", "eval-rollout"),
        )
        assert (one.n_traces, one.n_rollouts, one.attempts) == (3, 12, (("a", 0), ("b", 4)))
        assert (two.n_traces, two.n_rollouts, two.splits, two.attempts) == (0, 0, (), ())


class TestATrace:
    def test_is_meant_by_its_id_its_uid_or_the_beginning_of_either(self, index):
        add_traces(index, ("id-1", "u-1", 1), ("id-2", "u-22", 1), ("id-3", None, 1))
        for wanted in ("id-2", "u-22", "u-2"):
            assert find_trace(index, wanted) == "id-2"
        assert find_trace(index, "id-3") == "id-3" and find_trace(index, "u-1") == "id-1"

    def test_stored_again_is_the_newest_of_its_place(self, index):
        add_traces(index, ("id-1", "u-1", 1), ("id-2", "u-1", 1))
        assert find_trace(index, "u-1") == find_trace(index, "u") == "id-2"
        assert find_trace(index, "id-1") == "id-1"

    def test_of_one_uid_at_two_places_is_refused(self, index):
        add_traces(index, ("id-1", "u-1", 1), ("id-2", "u-1", 2))
        with pytest.raises(StoreError, match=r"more than one rollout begins with 'u-1': u-1, u-1\."):
            find_trace(index, "u-1")

    def test_without_a_uid_is_known_by_its_id(self, index):
        add_traces(index, ("id-1", None, 1), ("id-2", None, 1))
        with pytest.raises(StoreError, match=r"begins with 'id-': id-[12], id-[12]\. Give more"):
            find_trace(index, "id-")

    def test_of_many_some_are_named(self, index):
        add_traces(index, *((f"id-{n}", f"u-{n}", 1) for n in range(9)))
        with pytest.raises(StoreError, match=r"begins with 'u': u-1, u-2, u-3, u-4\. Give more"):
            find_trace(index, "u")

    def test_that_there_is_not_or_that_is_a_steps_is_refused(self, index):
        index.execute("INSERT INTO docs (id, uid, place, kind) VALUES ('id-1', NULL, 1, 'digest')")
        add_traces(index, ("id-2", None, 1))
        for wanted in ("id-1", "x", ""):
            with pytest.raises(StoreError, match=f"no trace '{wanted}'"):
                find_trace(index, wanted)
