"""Records of an export: which rows, their tables' types, and the manifest beside a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.export import rows as of_rows
from rollout_traces.export.rows import (
    ExportQuery,
    _as_in_the_table,
    _kinds_of,
    as_stored,
    describe,
    found,
    matched,
    records,
    write_manifest,
    write_parquet,
)
from rollout_traces.model.whole_files import empty_folder
from rollout_traces.store import Store
from tests.store.conftest import shared_folder, store
from tests.store.projects import PROJECT, RUN, RUN_ID

__all__ = ["shared_folder", "store"]


class TestRows:
    def test_are_read_page_by_page_up_to_a_limit(self, store: Store, monkeypatch):
        monkeypatch.setattr(of_rows, "PAGE", 2)

        def uids(**more) -> list[str]:
            return [row["uid"] for row in found(store, ExportQuery(run=RUN, split="rollout", **more))]

        whole = uids()
        assert whole == [f"b{step}-{row}" for step in range(3) for row in (0, 1, 4)]
        assert [uids(limit=n) for n in (0, 1, 3, 99, -1)] == [[], whole[:1], whole[:3], whole, []]
        assert uids(order_by="-step, sample")[0] == "b2-0"

    def test_are_counted_whatever_the_limit(self, store: Store):
        assert matched(store, ExportQuery(limit=1)) == 10
        assert matched(store, ExportQuery(run=RUN, split="rollout", steps=(1, 1), rows="all")) == 8
        assert matched(store, ExportQuery(where="reward > 0.9")) == 4

    def test_of_kept_rollouts_have_their_conversation_and_on_request_their_tokens(self, store: Store):
        plain, with_tokens = (next(records(store, ExportQuery(run=RUN), tokens=t)) for t in (False, True))
        assert (plain["run_id"], plain["uid"], plain["step"]) == (RUN_ID, "b0-0", 0)
        assert [message["role"] for message in plain["messages"]] == ["user", "assistant"]
        assert plain["superseded"] is False and "input_ids" not in plain and "unreadable" not in plain
        n = len(with_tokens["input_ids"])
        assert len(with_tokens["logprobs"]) == n > 0 and set(with_tokens["logprobs"]) == {-0.5}

    def test_of_the_ledger_alone_have_their_columns(self, store: Store):
        query = ExportQuery(run=RUN, split="rollout", steps=(1, 1), rows="all")
        kept, _, third, *_ = records(store, query, tokens=True)
        assert "messages" in kept and "messages" not in third and "input_ids" not in third
        assert (third["uid"], third["reward"], third["id"]) == ("b1-2", 0.5, None)

    def test_whose_conversation_cannot_be_given_as_asked_have_it_as_it_is_stored(self, store: Store):
        def fails(record):
            raise StoreError("not so")

        query = ExportQuery(run=RUN, limit=1)
        [record] = records(store, query, tokens=False, conversation=fails)
        [plain] = records(store, query, tokens=False, conversation=as_stored)
        assert record["unreadable"] == "not so" and record["messages"] == plain["messages"]


class TestValues:
    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("reward", "Infinity", float("inf")),
            ("reward", "high", "high"),
            ("success", True, 1),
            ("own", True, True),
            ("success", 2, 2),
        ],
    )
    def test_of_a_trace_are_as_the_table_has_them(self, name, value, expected):
        seen = _as_in_the_table(name, value)
        assert seen == expected and type(seen) is type(expected)

    @pytest.mark.parametrize(
        ("value", "kinds"),
        [
            (None, set()),
            (True, {"bool"}),
            (3, {"int"}),
            (2**63 - 1, {"int"}),
            (2**63, {"text"}),
            (-(2**63), {"int"}),
            (-(2**63) - 1, {"text"}),
            (0.5, {"float"}),
            ("a", {"text"}),
            ({"a": 1}, {"text"}),
            ([], {"list"}),
            ([1, "a", None], {"list", "item int", "item text"}),
            ([[1]], {"list", "item list", "item item int"}),
        ],
    )
    def test_have_kinds(self, value, kinds):
        assert _kinds_of(value) == kinds


class TestTables:
    def written(self, path: Path, *values: dict) -> pa.Table:
        assert write_parquet(path, values) == len(values)
        return pq.read_table(path)

    def test_columns_have_the_narrowest_type_that_holds_all(self, tmp_path):
        table = self.written(
            tmp_path / "a.parquet",
            {"i": 1, "f": 1, "b": True, "t": "x", "m": 1, "l": [1], "o": {"k": 1}, "n": None, "e": []},
            {"i": None, "f": 0.5, "b": None, "t": "y", "m": "z", "l": [0.5, None], "x": 2**63},
        )
        kinds = {field.name: str(field.type) for field in table.schema}
        assert {name: kind.replace("element: ", "item: ") for name, kind in kinds.items()} == {
            "i": "int64",
            "f": "double",
            "b": "bool",
            "t": "string",
            "m": "string",
            "l": "list<item: double>",
            "o": "string",
            "n": "string",
            "e": "list<item: string>",
            "x": "string",
        }
        first, second = table.to_pylist()
        assert (first["f"], first["m"], first["o"], first["l"]) == (1.0, "1", '{"k":1}', [1.0])
        assert (second["l"], second["x"], second["o"]) == ([0.5, None], str(2**63), None)

    def test_lists_of_several_kinds_are_text(self, tmp_path):
        table = self.written(tmp_path / "a.parquet", {"a": [1], "b": [1, "x"]}, {"a": "x", "b": []})
        assert table["a"].to_pylist() == ["[1]", "x"] and table["b"].to_pylist() == [["1", "x"], []]

    def test_infinite_numbers_stay_numbers(self, tmp_path):
        table = self.written(tmp_path / "a.parquet", {"a": float("inf")}, {"a": 1.0})
        assert table["a"].to_pylist() == [float("inf"), 1.0]

    def test_messages_have_the_fields_that_viewers_know(self, tmp_path):
        call = {"id": "c"}
        message = {"role": "assistant", "content": [1], "tool_calls": [call], "other": 1}
        table = self.written(tmp_path / "a.parquet", {"messages": [message, "damaged"]}, {})
        [[found], none] = table["messages"].to_pylist()
        assert found == {
            "role": "assistant",
            "content": "[1]",
            "name": None,
            "tool_call_id": None,
            "tool_calls": '[{"id":"c"}]',
            "is_error": None,
        }
        assert none is None

    def test_more_rows_than_a_page_are_all_there(self, tmp_path, monkeypatch):
        monkeypatch.setattr(of_rows, "PAGE", 3)
        table = self.written(tmp_path / "a.parquet", *({"n": n} for n in range(7)))
        assert table["n"].to_pylist() == list(range(7))


class TestManifest:
    def test_says_what_of_and_how(self, store: Store, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_bytes(b"x" * (3 << 20))
        query = ExportQuery(run=RUN, limit=2)
        manifest = describe(store, query, path, file_format="jsonl", rows=2, matched=9)
        assert (manifest.file, manifest.format, manifest.rows, manifest.matched) == ("a.jsonl", "jsonl", 2, 9)
        assert manifest.bytes == 3 << 20
        assert manifest.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        [run] = manifest.runs
        assert (run["name"], run["traces"], run["tokenizer"]) == (RUN, 10, None)
        assert manifest.project == PROJECT and manifest.query["limit"] == 2
        assert len(describe(store, ExportQuery(), path, file_format="", rows=0, matched=0).runs) == len(
            store.runs()
        )
        write_manifest(manifest, path)
        assert orjson.loads((tmp_path / "a.jsonl.manifest.json").read_bytes())["sha256"] == manifest.sha256


def test_a_folder_to_write_to_is_new_or_empty(tmp_path):
    assert empty_folder(str(tmp_path / "new")) == tmp_path / "new"
    assert empty_folder(tmp_path) == tmp_path
    (tmp_path / "file").write_text("x")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="there and not empty"):
            empty_folder(taken)
