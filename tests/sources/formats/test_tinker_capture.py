"""A store of tinker-cookbook's capture that is still written: nothing is missed, nothing is cut, nothing is there twice. And calls as lines."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_traces as rt
from rollout_traces.sources.importing import import_rollouts
from rollout_traces.sources.problems import Problems
from tests.sources.reading import SAMPLES, rows_of, runs_of

STORE = SAMPLES / "tinker-capture/store/capture.sqlite"
pytestmark = pytest.mark.usefixtures("trackio_dir")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, list[tuple]]]:
    """An empty store as its daemon holds it open, and the calls of the sample."""
    with contextlib.closing(sqlite3.connect(STORE)) as sample:
        calls = sample.execute("SELECT * FROM wire_rows ORDER BY cursor").fetchall()
        [(made,)] = sample.execute("SELECT sql FROM sqlite_master WHERE name = 'wire_rows'").fetchall()
    with contextlib.closing(sqlite3.connect(tmp_path / "capture.sqlite")) as store:
        store.execute("PRAGMA journal_mode=WAL")
        store.execute(made)
        store.commit()
        yield store, calls


def add(store: sqlite3.Connection, calls: list[tuple]) -> None:
    store.executemany(f"INSERT INTO wire_rows VALUES ({', '.join('?' * len(calls[0]))})", calls)
    store.commit()


def test_a_store_that_grows_gives_each_trajectory_once_and_whole(tmp_path, opened):
    store, calls = opened
    add(store, calls[:6])  # a trajectory of the second iteration has the first of its calls
    first = import_rollouts(tmp_path, "p", worker="thread")
    assert first.problems.counts == {"trajectories_not_ended": 1}
    add(store, calls[6:])
    second = import_rollouts(tmp_path, "p", worker="thread")
    store.close()
    last = import_rollouts(tmp_path, "p", worker="thread")
    assert (
        last.problems.counts == {}
        and import_rollouts(tmp_path, "p", worker="thread").runs[0].files_known == 1
    )
    whole = rows_of(STORE)
    assert first.rows + second.rows + last.rows == len(whole) == 6
    table = rt.open_store(project="p")
    stored = Counter(row["n_sampled"] for row in table.query(limit=9, rows="all").rows)
    assert stored == Counter(sum(row.loss_mask) for row in whole)


def test_reading_leaves_nothing_beside_a_closed_store(tmp_path, opened):
    store, calls = opened
    add(store, calls)
    store.close()
    assert len(rows_of(tmp_path)) == 6
    assert [path.name for path in tmp_path.glob("capture*")] == ["capture.sqlite"]


def test_a_run_that_was_started_again_has_its_steps_in_order(tmp_path, opened):
    store, calls = opened
    add(store, calls)
    again = [tuple({2: 1, 9: call[9] + 1}.get(n, value) for n, value in enumerate(call)) for call in calls]
    add(store, [(call[0] + 100, *call[1:]) for call in again])
    store.close()
    done = import_rollouts(tmp_path, "p", worker="thread")
    assert (done.rows, done.problems.counts) == (12, {})
    assert rt.open_store(project="p").count(where="superseded = 0", rows="all") == 6


def test_a_store_in_which_no_call_came_for_ten_minutes_has_ended(tmp_path, opened):
    store, calls = opened
    add(store, calls)
    [found] = [file for run in runs_of(tmp_path) for file in run.files]
    assert not found.format.is_final(found) and len(rows_of(tmp_path)) < 6
    log = tmp_path / "capture.sqlite-wal"
    at = time.time() - 601
    os.utime(log, (at, at))
    assert found.format.is_final(found) and len(rows_of(tmp_path)) == 6


SCOPE = {"run_id": "r1", "split": "train", "iteration": 3, "group_idx": 1, "traj_idx": 2}


def call(prompt: object, *sampled: object, scope: dict | None = None, **more: object) -> dict:
    """A call as a line; what was sampled has a logprob of -1 a token."""
    samples = [
        {"tokens": tokens, "logprobs": [-1.0] * len(tokens), "stop_reason": "stop"}
        if isinstance(tokens, list)
        else tokens
        for tokens in sampled
    ]
    return {"kind": "sample", "scope": SCOPE if scope is None else scope, "prompt_tokens": prompt} | {
        "samples": samples,
        **more,
    }


@pytest.fixture
def read(tmp_path):
    """Reads calls as lines."""

    def of(*calls: dict, problems: Problems | None = None):
        path = tmp_path / "run" / "capture" / "calls.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in calls))
        return rows_of(path, problems)

    return of


class TestLines:
    def test_calls_that_go_on_with_one_another_are_one_row(self, read):
        [row] = read(call([1, 2], [3, 4], model_path="v1"), call([1, 2, 3, 4, 5], [6], model_path="v2"))
        assert row.input_ids == [1, 2, 3, 4, 5, 6] and list(row.loss_mask) == [0, 0, 1, 1, 0, 1]
        assert (row.step, row.split, row.run, row.attempt, row.group) == (3, "rollout", "r1", 1, 1)
        assert (row.sample_id, row.episode, row.parent, row.line) == ("3-1-2", "3-1-2", None, 2)
        assert row.stop_reason == "stop" and row.extras == {"policy_version": "v2"}

    def test_a_call_that_does_not_is_a_branch_of_it(self, read):
        first, second = read(call([1, 2], [3]), call([1, 9], [4]))
        assert (first.sample_id, second.sample_id, second.parent) == ("3-1-2", "3-1-2/1", "3-1-2")
        assert (second.input_ids, second.extras) == ([1, 9, 4], {})

    def test_calls_of_no_trajectory_are_rows_by_themselves(self, read):
        scope = {"run_id": "r1", "purpose": "test", "run_attempt": 1}
        first, second = read(call([1], [2], scope=scope), call([1, 2], [3], scope=scope))
        assert [row.input_ids for row in (first, second)] == [[1, 2], [1, 2, 3]]
        assert (first.episode, first.parent, second.parent, first.sample_id) == (None,) * 4
        assert (first.step, first.split, first.attempt) == (0, "eval-rollout", 2)

    def test_the_split_says_whether_it_is_an_evaluation(self, read):
        for split, expected in (("test", "eval-rollout"), ("eval", "eval-rollout"), ("train", "rollout")):
            assert read(call([1], [2], scope=SCOPE | {"split": split}))[0].split == expected

    def test_each_sampled_sequence_of_a_call_has_a_name_of_its_own(self, read):
        scope = {"run_id": "r1"}
        rows = read(call([1], [2], [3], scope=scope, sampling_session_id="s", seq_id=4))
        assert [row.identity for row in rows] == ["s/4/0", "s/4/1"]
        assert read(call([1], [2], scope=scope, seq_id=4))[0].identity is None

    def test_what_has_no_tokens_is_left_out_and_told_of(self, read):
        problems = Problems()
        [row] = read(call(None, [2]), call([1], [2]), call([1, 2], {"tokens": None}), problems=problems)
        assert row.input_ids == [1, 2] and problems.counts == {"calls_without_tokens": 2}

    def test_what_are_no_calls_is_passed_over(self, read):
        problems = Problems()
        rows = read(
            call([1], [2], "damaged"),
            {"kind": "train", "scope": SCOPE, "samples": []},
            call([1], [2], scope={"run_id": [1]}),
            problems=problems,
        )
        assert len(rows) == 1 and problems.counts["rows_refused"] == 1

    def test_the_run_is_named_by_the_first_call_and_lies_above_its_folder(self, read, tmp_path):
        read(call([1], [2]))
        [run] = runs_of(tmp_path / "run")
        assert run.name == "r1" and run.files[0].claim.root.name == "run"
        read(call([1], [2], scope={"run_id": 7}))
        assert runs_of(tmp_path / "run")[0].name == "run"
