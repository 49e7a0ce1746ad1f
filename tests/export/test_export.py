from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import rollout_traces as rt
from rollout_traces.errors import ConfigError
from rollout_traces.export import FORMATS, ExportQuery, export
from rollout_traces.store import QueryError, Store, open_store
from tests.store.conftest import shared_folder, store
from tests.store.projects import PROJECT, conversation, database, make_ledger, store_values, write_step

__all__ = ["shared_folder", "store"]


def read(path: Path) -> list[dict]:
    """The records of an exported file, whatever its format."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return pq.read_table(path).to_pylist()


@pytest.mark.parametrize("file_format", FORMATS)
class TestEveryFormat:
    def test_rows_in_order_with_metadata_and_messages(
        self, store: Store, tmp_path: Path, file_format: str
    ) -> None:
        path = tmp_path / f"out.{file_format}"
        export(store, path, ExportQuery(split="rollout"))
        rows = read(path)
        assert [row["uid"] for row in rows] == [f"b{step}-{row}" for step in range(3) for row in (0, 1, 4)]
        assert rows[1]["flags"] == ["truncated", "repetition"] and rows[0]["component/format"] == 1.0
        assert [m["role"] for m in rows[0]["messages"]] == ["user", "assistant"]
        assert rows[2]["messages"][1]["content"] == "答案是四十二。完成了"

    def test_tokens_on_request(self, store: Store, tmp_path: Path, file_format: str) -> None:
        path = tmp_path / f"out.{file_format}"
        export(store, path, ExportQuery(where="uid = 'b0-0'"), tokens=True)
        (row,) = read(path)
        track = store.transcript(row["id"]).tokens  # type: ignore[union-attr]
        assert row["input_ids"] == track.input_ids.tolist()
        assert row["loss_mask"] == track.loss_mask.tolist()
        assert row["logprobs"] == track.tracks["logprobs"].tolist()

    def test_every_rollout_of_the_ledger(self, store: Store, tmp_path: Path, file_format: str) -> None:
        path = tmp_path / f"out.{file_format}"
        export(store, path, ExportQuery(rows="all", steps=(1, 1)))
        rows = read(path)
        assert len(rows) == 8 and [row["id"] is not None for row in rows].count(True) == 3
        assert rows[3].get("reward") is None

    def test_a_limit_and_a_sort(self, store: Store, tmp_path: Path, file_format: str) -> None:
        path = tmp_path / f"out.{file_format}"
        manifest = export(store, path, ExportQuery(order_by="reward, -step", limit=3))
        assert [row["uid"] for row in read(path)] == ["b2-1", "b1-1", "b0-1"]
        assert (manifest.rows, manifest.matched) == (3, 10)

    def test_nothing_found_is_an_empty_file(self, store: Store, tmp_path: Path, file_format: str) -> None:
        path = tmp_path / f"out.{file_format}"
        assert export(store, path, ExportQuery(where="reward > 99")).rows == 0
        assert read(path) == []

    def test_values_that_differ_in_kind_do_not_stop_it(
        self, trackio_dir: Path, tmp_path: Path, file_format: str
    ) -> None:
        for value in (1, 1.5, "text", True, [1, "a"], {"deep": [1]}, None, float("inf")):
            store_values(
                conversation("chat", [{"role": "user", "content": ["odd", {"type": "text"}]}], value=value),
                step=0,
            )
        path = tmp_path / f"out.{file_format}"
        assert export(open_store(PROJECT), path).rows == 8
        assert len(read(path)) == 8

    def test_a_damaged_trace_is_exported_with_a_word(
        self, trackio_dir: Path, tmp_path: Path, file_format: str
    ) -> None:
        write_step(make_ledger([[0.0, 1.0]], step=0), (0, 1))
        with sqlite3.connect(database(trackio_dir)) as connection:
            connection.execute("UPDATE traces SET messages = '{' WHERE id LIKE '%trajectories:0'")
            connection.execute(
                'UPDATE traces SET spans = replace(CAST(spans AS TEXT), \'"token_track":"\', \'"token_track":"AAAA\')'
                " WHERE id LIKE '%trajectories:1'"
            )
        path = tmp_path / f"out.{file_format}"
        export(open_store(PROJECT), path, tokens=True)
        rows = read(path)
        assert all("damaged" in row["unreadable"] for row in rows) and len(rows) == 2
        assert rows[1]["messages"][1]["content"] == "answer 1"


class TestOneRuleForOddValues:
    """What the table says of a rollout, its export says too, traced or not."""

    ODD = (
        {"x": float("inf"), "seed": 2**60 + 3, "yes": True, "mixed": True},
        {"x": 1.0, "seed": 4, "yes": False, "mixed": "text"},
    )

    @pytest.fixture(params=["all", "random"])
    def odd(self, request, trackio_dir: Path) -> Store:
        """A step of two rollouts, both traced or none."""
        logger = rt.RolloutLogger(
            PROJECT,
            "run",
            worker="thread",
            selection="all",
            max_rollout_traces_per_step=8 if request.param == "all" else 0,
        )
        ones = np.ones((2, 3), int)
        batch = rt.RolloutBatch(
            input_ids=ones,
            attention_mask=ones,
            loss_mask=ones,
            rewards=[float("inf"), float("-inf")],
            extras=list(self.ODD),
        )
        logger.log_rollouts(batch, step=0)
        assert logger.finish()
        return open_store(PROJECT)

    def test_infinite_rewards_and_extras_are_numbers(self, odd: Store, tmp_path: Path) -> None:
        inf = float("inf")
        assert odd.rollouts(columns=["reward"])["reward"].to_pylist() == [inf, -inf]
        assert odd.ledger().row(0)["reward"] == inf and odd.ledger().row(0)["extra/x"] == inf
        export(odd, tmp_path / "out.parquet", ExportQuery(rows="all"))
        export(odd, tmp_path / "out.jsonl", ExportQuery(rows="all"))
        assert [row["reward"] for row in read(tmp_path / "out.parquet")] == [inf, -inf]
        assert [row["extra/x"] for row in read(tmp_path / "out.parquet")] == [inf, 1.0]
        assert [row["reward"] for row in read(tmp_path / "out.jsonl")] == ["Infinity", "-Infinity"]
        assert read(tmp_path / "out.jsonl")[0]["extra/x"] == "Infinity"

    def test_whole_numbers_are_exact_and_yes_is_one(self, odd: Store, tmp_path: Path) -> None:
        table = odd.rollouts(columns=["extra/seed", "extra/yes", "extra/mixed"]).to_pylist()
        assert [row["extra/seed"] for row in table] == [2**60 + 3, 4]
        assert odd.ledger().row(0)["extra/seed"] == 2**60 + 3
        for name in ("out.jsonl", "out.parquet"):
            export(odd, tmp_path / name, ExportQuery(rows="all"))
            rows = read(tmp_path / name)
            assert [row["extra/seed"] for row in rows] == [2**60 + 3, 4]
            assert [row["extra/yes"] for row in rows] == [row["extra/yes"] for row in table] == [1, 0]
            assert [str(row["extra/mixed"]) for row in rows] == [row["extra/mixed"] for row in table]
        assert [row["extra/mixed"] for row in table] == ["1", "text"]

    def test_superseded_and_traced_are_known_of_every_rollout(self, odd: Store, tmp_path: Path) -> None:
        for name in ("out.jsonl", "out.parquet"):
            export(odd, tmp_path / name, ExportQuery(rows="all"))
            assert [row["superseded"] for row in read(tmp_path / name)] == [False, False]
            assert all(isinstance(row["traced"], bool) for row in read(tmp_path / name))


class TestManifest:
    def test_it_says_what_the_file_is(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        query = ExportQuery(run="run-001", where="reward > 0", text="cannot")
        manifest = export(store, path, query)
        stored = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
        assert stored["sha256"] == manifest.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert stored["bytes"] == path.stat().st_size
        assert (stored["project"], stored["format"], stored["rows"]) == (PROJECT, "jsonl", 3)
        assert stored["query"]["text"] == "cannot" and stored["query"]["steps"] == [None, None]
        (run,) = stored["runs"]
        assert (run["name"], run["traces"], run["rollouts"], run["tokenizer"]) == ("run-001", 10, 26, None)
        assert set(stored["schemas"]) == {"trace", "transcript", "ledger"}

    def test_the_tokenizer_is_named_where_the_run_does(self, trackio_dir: Path, tmp_path: Path) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        write_step(make_ledger([[0.0]], step=0), (0,))
        SQLiteStorage.bulk_log(
            PROJECT, "run-001", [{"x": 1}], run_id="1" * 32, config={"tokenizer_path": "models/small"}
        )
        manifest = export(open_store(PROJECT), tmp_path / "out.jsonl")
        assert manifest.runs[0]["tokenizer"] == "models/small"


class TestUnfinished:
    def test_an_unknown_format_writes_nothing(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(
            ConfigError, match="its name ends in no known format, expected one of jsonl, parquet"
        ):
            export(store, tmp_path / "out.csv")
        assert list(tmp_path.iterdir()) == [store.index_path] or not (tmp_path / "out.csv").exists()

    def test_a_bad_query_writes_nothing(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(QueryError):
            export(store, tmp_path / "out.jsonl", ExportQuery(where="rewrd"))
        assert not list(tmp_path.glob("*out*"))

    def test_an_export_that_fails_keeps_the_file_that_was_there(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        path.write_text("before")

        def fail(done: int, total: int) -> None:
            raise RuntimeError("stopped")

        with pytest.raises(RuntimeError):
            export(store, path, progress=fail)
        assert path.read_text() == "before" and not list(tmp_path.glob(".*unfinished"))

    def test_progress_reaches_the_whole(self, store: Store, tmp_path: Path) -> None:
        seen: list[tuple[int, int]] = []
        export(store, tmp_path / "out.jsonl", progress=lambda done, total: seen.append((done, total)))
        assert seen == [(n, 10) for n in range(1, 11)]
