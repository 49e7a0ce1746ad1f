"""Trackio's functions, called for reading."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from pathlib import Path

import pytest

from rollout_traces.inspector import trackio_reads
from rollout_traces.inspector.routes import READS, WRITES
from rollout_traces.inspector.trackio_reads import ReadRefused, arguments_of, as_json, call, select

TEN = f"(VALUES {', '.join(f'({i})' for i in range(10))})"
ENDLESS = "SELECT count(*) FROM " + ", ".join([TEN] * 15)


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Trackio's storage over a folder with one project of an older schema, closed cleanly."""
    from trackio import sqlite_storage

    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path)
    with sqlite3.connect(tmp_path / "old.db") as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
        )
        database.execute("INSERT INTO metrics VALUES (1, '2026-01-01T00:00:00', 'r', 1, '{\"a\": 1.0}')")
    database.close()
    return sqlite_storage.SQLiteStorage


def digest(folder: Path) -> dict[str, str]:
    """Every file of a folder by its content."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


class TestReading:
    def test_a_project_of_an_older_schema_is_read_and_left_as_it_is(self, storage, tmp_path):
        from trackio import server

        before = digest(tmp_path)
        registry = server._api_registry()
        assert "old" in call(registry["get_all_projects"], {}, None)
        runs = call(registry["get_runs_for_project"], {"project": "old"}, None)
        assert [run["name"] for run in runs] == ["r"]
        for name in ("get_project_summary", "get_alerts", "get_tab_availability", "get_run_configs"):
            call(registry[name], {"project": "old"}, None)
        assert digest(tmp_path) == before

    def test_what_trackio_does_otherwise_writes_as_before(self, storage, tmp_path):
        with trackio_reads.reading(5):
            pass
        storage.init_db("fresh")
        assert (tmp_path / "fresh.db").is_file()

    def test_nothing_can_be_written_while_it_reads(self, storage, tmp_path):
        with trackio_reads.reading(5), pytest.raises(sqlite3.OperationalError, match="readonly"):
            storage.init_db("old")

    def test_only_projects_that_are_shown(self, storage, tmp_path):
        from trackio import server

        (tmp_path / "other.db").write_bytes((tmp_path / "old.db").read_bytes())
        registry = server._api_registry()
        assert call(registry["get_all_projects"], {}, None, lambda: ["old"]) == ["old"]
        for body in (
            {"project": "other"},
            ["other"],
            {"args": ["other"]},
            {"kwargs": {}},
            {"project": "o/ther"},
        ):
            with pytest.raises(ReadRefused, match="not shown here"):
                call(registry["get_runs_for_project"], body, None, lambda: ["old"])

    def test_traces_come_in_bounded_lists(self, storage):
        from trackio import server

        asked = []

        def get_traces(project: str, limit: int | None = None) -> list:
            asked.append(limit)
            return []

        for limit in (None, 10**9, "x", -5, 50, float("inf")):
            call(get_traces, {"project": "old", "limit": limit}, None)
        assert asked == [1000, 1000, 1000, 0, 50, 1000]
        assert server.get_traces.__name__ == "get_traces"

    def test_what_takes_too_long_is_stopped(self, storage, monkeypatch, tmp_path):
        monkeypatch.setattr(trackio_reads, "READ_SECONDS", 0.2)

        def endless(project: str) -> None:
            with storage._get_connection(tmp_path / "old.db") as connection:
                connection.execute(ENDLESS).fetchall()

        with pytest.raises(ReadRefused, match="stopped after 0\\.2 seconds"):
            call(endless, {"project": "old"}, None)

    def test_no_listed_function_writes(self):
        from trackio import server

        assert not set(READS) & set(server.WRITE_APIS)
        assert set(WRITES) - {"check_artifact_blobs"} <= set(server.WRITE_APIS)
        assert not {"get_registries", "get_registry_details", "get_registry_buckets"} & set(READS)


class TestSelect:
    """Trackio's functions are asked for an endless join, or for 2 GB: once all pages stood still for 13.5 s."""

    @pytest.fixture
    def database(self, storage, tmp_path):
        return tmp_path / "old.db"

    def test_answers_as_trackio_does(self, database, storage):
        query = "SELECT run_name, step, metrics FROM metrics"
        theirs = storage.query_project("old", query)
        assert {"project": "old", **select(database, query)} == theirs

    def test_what_takes_too_long_is_stopped(self, database):
        began = time.process_time()
        with pytest.raises(ReadRefused, match="stopped after 0\\.3 seconds"):
            select(database, ENDLESS, seconds=0.3)
        assert time.process_time() - began < 5

    @pytest.mark.parametrize(
        "query",
        [
            "SELECT hex(zeroblob(400000000))",
            "SELECT length(randomblob(900000000))",
            "SELECT replace(hex(zeroblob(1000000)), '0', hex(zeroblob(1000)))",
            "SELECT 1 FROM " + ", ".join([TEN] * 5),
            f"SELECT hex(zeroblob(10000000)) FROM {TEN}",
            "SELECT 'a' LIKE '" + "%a" * 500 + "'",
        ],
    )
    def test_what_would_take_much_memory_is_refused(self, database, query):
        with pytest.raises(ReadRefused):
            select(database, query)

    @pytest.mark.parametrize(
        "query",
        [
            "DELETE FROM metrics",
            "INSERT INTO metrics VALUES (2, '', '', 1, '')",
            "WITH x AS (SELECT 1) DELETE FROM metrics",
            "SELECT 1; DROP TABLE metrics",
            "ATTACH DATABASE '/etc/passwd' AS x",
            "SELECT load_extension('x')",
            "PRAGMA journal_mode = DELETE",
            "SELECT writefile('/tmp/x', 'y')",
            "VACUUM INTO '/tmp/x'",
            "",
        ],
    )
    def test_what_is_no_select_is_refused(self, database, query):
        before = database.read_bytes()
        with pytest.raises(ReadRefused):
            select(database, query)
        assert database.read_bytes() == before

    def test_a_query_that_is_no_text_is_refused(self, database):
        with pytest.raises(ReadRefused, match="expected a text"):
            select(database, ["SELECT 1"])  # type: ignore[arg-type]


class TestForms:
    def test_every_form_that_clients_send(self):
        assert arguments_of({"project": "p"}) == ([], {"project": "p"})
        assert arguments_of({"args": [1], "kwargs": {"a": 2}}) == ([1], {"a": 2})
        assert arguments_of({"args": "x", "kwargs": 3}) == ([], {})
        assert arguments_of({"data": [1]}) == ([1], {})
        assert arguments_of([1]) == ([1], {})
        assert arguments_of("x") == ([], {})

    def test_answers_are_json_whatever_they_hold(self):
        assert as_json({"a": float("nan"), 1: (2, Path("x"))}) == b'{"a":null,"1":[2,"x"]}'
        assert as_json("\ud800") == b'"\\ud800"'


def test_no_dataset_is_looked_for(storage, monkeypatch):
    """Trackio on a Space downloads its dataset before it reads."""
    monkeypatch.setattr(storage, "_dataset_import_attempted", False)
    called = []
    monkeypatch.setattr(storage, "load_from_dataset", staticmethod(lambda: called.append(1)))
    with trackio_reads.reading(5):
        storage.get_projects()
    assert not called
