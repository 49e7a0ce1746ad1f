"""The run as a table: rows, columns, what their values are, and the command that exports them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.explore import (
    OF_TOKENS,
    columns,
    default_columns,
    export,
    export_chosen,
    spread,
    table,
)
from rollout_traces.inspector.workspace import Workspace
from tests.inspector.told import told
from tests.store.projects import PROJECT, RUN, make_ledger, write_step


class TestRows:
    def test_are_the_traced_ones_with_the_usual_columns(self, ask):
        found = ask(table)
        assert found["total"] == len(found["rows"]) == 9 and found["next"] is None
        usual = default_columns("traces", 9)
        rows = ask(table, columns=list(usual), rows="all")["rows"]
        empty = {name for at, name in enumerate(usual) if all(row["cells"][at] is None for row in rows)}
        assert empty & set(OF_TOKENS), "a column that this run has no value of would be of no use"
        assert found["columns"] == [name for name in usual if name not in empty & set(OF_TOKENS)]
        row = found["rows"][0]
        assert row["traced"] and row["id"] and (row["step"], row["group"], row["sample"]) == (2, 0, 0)
        assert row["cells"][:4] == [2, 0, 0, 1.0]

    def test_of_the_ledger_are_all_of_them(self, ask):
        found = ask(table, rows="all", sort="step,uid", columns=["uid", "reward", "discard_reason"])
        assert found["total"] == 24 and found["columns"] == ["uid", "reward", "discard_reason"]
        assert found["rows"][2]["cells"] == ["b0-2", 0.5, None] and not found["rows"][2]["traced"]

    def test_that_are_searched_for_show_what_was_found(self, ask):
        found = ask(table, text="sorry", columns=["uid"])
        assert found["total"] == 3 and found["columns"] == ["uid", "snippet"]
        assert "sorry" in found["rows"][0]["cells"][1]
        assert ask(table, where="text 'sorry'", columns=["uid", "snippet"])["columns"] == ["uid", "snippet"]
        columns = ask(table, text="sorry")["columns"]
        assert columns[columns.index("reward") + 1] == "snippet", "seen once: the last one, beyond the window"

    def test_a_column_that_no_row_knows_is_empty(self, ask):
        assert ask(table, columns=["uid", "nothing"])["rows"][0]["cells"][1] is None

    @pytest.mark.parametrize(
        ("rows", "n", "said"), [("traces", 1, True), ("traces", 0, False), ("all", 1, True)]
    )
    def test_the_usual_columns_hold_what_was_said_where_some_was_kept(self, rows, n, said):
        chosen = default_columns(rows, n)
        assert ("reply" in chosen) is said and ("discard_reason" in chosen) is (rows == "all")


def test_columns_are_those_of_traces_or_of_all(ask):
    names = {column["name"] for column in ask(columns)["columns"]}
    assert "reward" in names and "trace_uid" in names
    assert "trace_uid" not in {column["name"] for column in ask(columns, rows="traces")["columns"]}


class TestValues:
    def test_of_few_are_counted_in_order_unknown_ones_last(self, ask):
        found = ask(spread, column="reward", rows="all")
        assert (
            found["facets"] == [[0.0, 3], [0.25, 12], [0.5, 3], [1.0, 3], [None, 3]] and found["bins"] is None
        )
        assert found["kind"] == "number"

    def test_of_many_numbers_are_a_histogram(self, ask, monkeypatch):
        counted = ask(spread, column="n_sampled", rows="all", where="split = 'rollout'")
        assert counted["facets"] == [[n, 3] for n in range(5, 85, 10)]
        monkeypatch.setattr("rollout_traces.inspector.pages.explore.FEW_VALUES", 7)
        bins = ask(spread, column="n_sampled", rows="all", where="split = 'rollout'")
        assert (
            bins["facets"] == [] and sum(bins["bins"]["counts"]) == 24 and len(bins["bins"]["counts"]) == 24
        )
        assert ask(spread, column="n_sampled", where="reward = 1")["facets"] == [[5, 3]]

    def test_of_texts_are_counted(self, ask):
        found = ask(spread, column="prompt_key", rows="all")
        assert sorted(map(tuple, found["facets"])) == [("prompt-0", 12), ("prompt-1", 12)]


class TestAnExport:
    def test_of_few_rows_is_at_hand_and_its_command_too(self, ask):
        found = ask(export, where="reward = 1", sort="step")
        rows = [json.loads(line) for line in found["lines"].splitlines()]
        assert found["total"] == 3 and [row["step"] for row in rows] == [0, 1, 2]
        assert rows[0]["messages"][0]["content"] == "What is 6 times 7?"
        assert found["command"] == (
            f"rollout-traces export {RUN} rollouts.jsonl --project={PROJECT} --split=rollout '--where=reward = 1' --sort=step"
        )
        assert ask(export, rows="all")["command"].endswith(" --all")
        assert ask(export, where="reward > 5")["lines"] == ""
        counted = ask(export, where="reward = 1", sort="step", only_counted=True)
        assert counted == {**found, "lines": None}

    def test_of_many_is_a_command_alone(self, ask, monkeypatch):
        monkeypatch.setattr("rollout_traces.inspector.pages.explore.MOST_DOWNLOADED", 8)
        assert ask(export)["lines"] is None and ask(export)["total"] == 9
        monkeypatch.setattr("rollout_traces.inspector.pages.explore.MOST_DOWNLOADED", 9)
        assert len(ask(export)["lines"].splitlines()) == 9

    def test_of_chosen_ones_is_of_their_ids(self, ask):
        ids = [row["id"] for row in ask(table, where="reward = 1")["rows"]][:2]
        found = ask(export_chosen, ids=ids)
        assert found["total"] == 2 and "uid in (" in found["command"]
        with pytest.raises(StoreError, match="ids: none named"):
            ask(export_chosen, ids=[])


class TestAResumedRun:
    def test_has_rows_and_spreads_of_the_newest_attempt_unless_the_filter_names_others(self, ask_resumed):
        every = {"rows": "all", "columns": ["reward"]}
        found = ask_resumed(table, **every)
        assert (found["total"], found["n_rows"]) == (8, 8)
        assert ["Infinity"] in [row["cells"] for row in found["rows"]]
        assert ask_resumed(table, where="superseded", **every)["total"] == 8
        spread_of = ask_resumed(spread, column="reward", rows="all")
        assert spread_of["facets"] == [[0.0, 3], [0.5, 1], [1.0, 3], ["Infinity", 1]]
        assert ask_resumed(table, where="reward = 'Infinity'", **every)["total"] == 1

    def test_is_exported_whole_and_says_how_much_of_it_is_superseded(self, ask_resumed):
        found = ask_resumed(export, rows="all")
        assert (found["total"], found["superseded"]) == (16, 8) == (len(found["lines"].splitlines()), 8)


def test_a_histogram_has_its_infinite_values_beside_its_bins(trackio_dir):
    write_step(make_ledger([[*range(40), np.inf, -np.inf, np.nan]], step=0), ())
    workspace = Workspace()
    asked = {"project": PROJECT, "run": RUN, "split": "rollout", "column": "reward", "rows": "all"}
    found = told(spread, workspace, asked)
    workspace.close()
    assert found["facets"] == [["-Infinity", 1], ["Infinity", 1]] and found["bins"]["unknown"] == 1
