"""A store of tinker-cookbook's capture that is still written: nothing is missed, nothing is cut, nothing is there twice."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_traces as rt
from rollout_traces.sources.importing import import_rollouts
from tests.sources.reading import SAMPLES, rows_of

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
