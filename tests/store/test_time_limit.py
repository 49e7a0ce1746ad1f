"""What one question does ends with its time, and says so."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.inspector.server import answered
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.store import Store
from rollout_traces.store.engine import Engine
from rollout_traces.store.time_limit import check_time, stopping, time_limit

ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range < 0"
ENDLESS_IN_SQLITE = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def test_an_endless_statement_is_interrupted_and_the_next_one_is_answered():
    engine = Engine()
    with pytest.raises(StoreError, match="and was stopped"), time_limit(0.2):
        engine.run(ENDLESS)
    assert engine.run("SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_the_time_is_that_of_all_statements_together():
    engine = Engine()
    with time_limit(0.3), pytest.raises(StoreError, match="and was stopped"):
        for _ in range(100_000):
            engine.run("SELECT count(*) FROM range(100000)")


def test_what_a_thread_waits_for_between_statements_is_not_counted():
    engine = Engine()
    with time_limit(30) as limit:
        engine.run("SELECT 1")
        before = limit.seconds_left
        time.sleep(0.5)
        assert before - limit.seconds_left < 0.5


def test_work_between_statements_is_counted():
    with time_limit(0.1), pytest.raises(StoreError, match="and was stopped"):
        while True:
            check_time()


def test_an_endless_search_is_interrupted():
    connection = sqlite3.connect(":memory:")
    with (
        pytest.raises(StoreError, match="and was stopped"),
        time_limit(0.2),
        stopping(connection),
    ):
        connection.execute(ENDLESS_IN_SQLITE).fetchall()
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


@pytest.mark.parametrize("where", ["reward > 0", "text contains 'oxed{4'", "text ~ 'can.ot'"])
def test_every_kind_of_filter_looks_at_the_clock(store: Store, where: str):
    assert store.count(where=where) > 0
    store.refresh()
    with pytest.raises(StoreError, match="--query-seconds"), time_limit(1e-9):
        store.count(where=f"({where}) and step >= 0")


def test_a_page_answers_with_the_sentence():
    def endless(workspace: Workspace) -> Mapping[str, Any]:
        return {"rows": Engine().run(ENDLESS).num_rows}

    answer = answered(endless, Workspace(query_seconds=0.2), {})
    assert "was stopped. Ask for less" in orjson.loads(answer)["error"]["message"]


def test_a_time_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="query_seconds"):
        Workspace(query_seconds=0)
