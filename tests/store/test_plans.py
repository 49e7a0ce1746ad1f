"""Which of its indexes SQLite takes: nothing else shows it but a project that is large."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.store import Store, index, open_store
from tests.store.projects import PROJECT, RUN, make_ledger, write_step

Plans = Callable[[Callable[[Store], object]], list[str]]


@pytest.fixture
def plans(trackio_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Plans:
    """The plans of all statements on traces and ledger that a question, or a refresh, gives SQLite."""
    statements: list[str] = []
    open_plainly = index.Index._open

    def open_watched(self: index.Index) -> sqlite3.Connection:
        connection = open_plainly(self)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(index.Index, "_open", open_watched)
    write_step(make_ledger([[0.0, 1.0]], step=0, traced=(0, 1)), (0, 1))
    store = open_store(PROJECT)

    def of(ask: Callable[[Store], object]) -> list[str]:
        statements.clear()
        ask(store)
        found = []
        with sqlite3.connect(store.index_path) as connection:
            for statement in list(dict.fromkeys(statements)):
                if statement.startswith(("SELECT", "WITH", "DELETE")) and "json_each" not in statement:
                    plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
                    found += [f"{statement} | {step[3]}" for step in plan]
        return found

    return of


def reads_of(plans: list[str], table: str) -> list[str]:
    return [
        plan.split(" | ")[1]
        for plan in plans
        if f"FROM {table} " in plan and plan.split(" | ")[1].startswith(("SCAN", "SEARCH"))
    ]


@pytest.mark.parametrize("table", ["traces", "ledger"])
def test_an_older_row_of_the_same_rollout_is_looked_up_by_its_uid(plans: Plans, table: str) -> None:
    ledger = make_ledger([[0.0, 1.0]], step=1, traced=(0,), **{"component/a": np.asarray([1.0, 0.0])})

    def refresh(store: Store) -> None:
        write_step(ledger, (0,))
        store.refresh()

    by_uid = [read for read in reads_of(plans(refresh), table) if f"{table}_" in read and "_src" not in read]
    assert by_uid and all(f"{table}_uid" in read for read in by_uid if "run=?" in read)


@pytest.mark.parametrize("key", ["reward", "advantage", "n_sampled"])
def test_rows_of_a_run_are_sorted_by_an_index(plans: Plans, key: str) -> None:
    found = reads_of(plans(lambda store: store.query(run=RUN, order_by=f"-{key}")), "traces")
    assert f"SEARCH t USING COVERING INDEX traces_{key} (run=?)" in found


def test_steps_of_all_splits_are_found_by_an_index(plans: Plans) -> None:
    found = reads_of(plans(lambda store: store.query(run=RUN, steps=(0, 0), order_by="sample")), "traces")
    assert "SEARCH t USING INDEX traces_newest (step>? AND step<?)" in found


@pytest.mark.parametrize("ask", [{"where": "reward < 0.5", "order_by": "-reward"}, {"order_by": "sample"}])
def test_what_an_index_would_look_up_one_by_one_is_scanned(plans: Plans, ask: dict[str, str]) -> None:
    found = reads_of(plans(lambda store: store.query(run=RUN, **ask)), "traces")
    assert "SCAN t" in found
