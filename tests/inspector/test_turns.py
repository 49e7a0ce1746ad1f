"""What a page adds later gives way to an answer that a reader waits for."""

from __future__ import annotations

import threading

import pytest

from rollout_traces.inspector.pages.explain import explain, in_force
from rollout_traces.inspector.turns import GivingWay, Turns
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store.table import PartOfTable, Table


class Recorded:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def sql(self, query, params=()):
        self.asked.append(query)
        return query


class TestTurns:
    def test_a_statement_waits_until_the_first_answer_is_there(self):
        turns, recorded = Turns(), Recorded()
        relations = GivingWay(recorded, turns, patience=60)
        with turns.first():
            later = threading.Thread(target=relations.sql, args=("select 1",))
            later.start()
            later.join(0.05)
            assert later.is_alive() and not recorded.asked
        later.join(60)
        assert recorded.asked == ["select 1"]

    def test_patience_ends(self):
        turns, recorded = Turns(), Recorded()
        relations = GivingWay(recorded, turns, patience=0.02)
        with turns.first():
            for at in range(100):
                relations.sql(f"select {at}")
        assert len(recorded.asked) == 100 and relations.patience < 0

    def test_an_answer_that_fails_holds_nobody(self):
        turns = Turns()
        with pytest.raises(ZeroDivisionError), turns.first():
            1 // 0
        assert turns.n_first == 0


def test_the_diagnoses_of_a_run_give_way_to_an_explanation(home, monkeypatch):
    workspace = Workspace(folder=home)
    request = Request({"project": "demo", "run": workspace.store("demo").runs()[0].name, "step": 3})
    firsts: dict[str, list[int]] = {"explain": [], "diagnoses": []}
    original = Table.sql

    def recorded(table, query, parameters=()):
        firsts["explain" if isinstance(table, PartOfTable) else "diagnoses"].append(workspace.turns.n_first)
        return original(table, query, parameters)

    monkeypatch.setattr(Table, "sql", recorded)
    explain(workspace, request)
    assert firsts["explain"] and all(firsts["explain"])
    firsts["diagnoses"].clear()
    waited = []
    monkeypatch.setattr(Turns, "wait", lambda turns, seconds: waited.append(seconds))
    in_force(workspace, request)
    assert len(waited) == len(firsts["diagnoses"]) > 0 and not any(firsts["diagnoses"])
    workspace.close()
