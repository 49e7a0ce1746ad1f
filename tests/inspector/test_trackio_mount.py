"""Trackio's dashboard as it is mounted: the real server, asked over HTTP."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from email.message import Message
from pathlib import Path
from urllib.parse import quote

import pytest

from rollout_traces.inspector import trackio_mount
from rollout_traces.inspector.registry import TRACKIO_READS, TRACKIO_WRITES
from rollout_traces.inspector.trackio_mount import ReadRefused, arguments_of, as_json, call, select
from tests.inspector.conftest import BEARER, ROOT, Served, environment, log_project

POLICY = "content-security-policy"
WRITE_TOKEN = "the write token of the tests"


def post(address: str, body: object, **headers: str) -> tuple[int, object]:
    """Status and JSON of a call."""
    sent = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(address, data=json.dumps(body).encode(), headers=sent)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        text = error.read()
        return error.code, json.loads(text) if text[:1] == b"{" else text.decode()


def fetched(server: Served, path: str) -> tuple[int, bytes, Message]:
    """Status, content and head of a file of the dashboard."""
    request = urllib.request.Request(f"{server.address}/trackio/{path}", headers=BEARER)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read(), response.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


@pytest.fixture
def artifact(home: Path) -> Iterator[Callable[[str, bytes], Path]]:
    """Puts the file of an artifact where Trackio keeps those of a project."""

    def put(project: str, content: bytes) -> Path:
        digest = hashlib.sha256(content).hexdigest()
        path = home / "artifacts" / project / "blobs" / "sha256" / digest[:2] / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    yield put
    shutil.rmtree(home / "artifacts")


@pytest.fixture(scope="module")
def open_to_sql(home) -> Iterator[Served]:
    """With Trackio's SQL."""
    server = Served(home, "--trackio-sql")
    yield server
    server.stop()


class TestSql:
    ENDLESS = "SELECT count(*) FROM traces a, traces b, traces c, traces d, traces e, traces f"

    def test_is_answered_where_it_was_asked_for(self, open_to_sql):
        body = {"project": "demo", "query": "SELECT count(*) AS n FROM traces"}
        status, answer = post(f"{open_to_sql.address}/trackio/api/query_project", body, **BEARER)
        assert status == 200
        assert answer["data"]["rows"][0]["n"] > 0

    def test_does_not_hold_up_the_pages(self, open_to_sql):
        """While an endless statement runs, the pages answer as if it did not."""
        answers = []

        def endless() -> None:
            body = {"project": "demo", "query": self.ENDLESS}
            answers.append(post(f"{open_to_sql.address}/trackio/api/query_project", body, **BEARER))

        running = threading.Thread(target=endless)
        running.start()
        asked = 0
        while running.is_alive():
            request = urllib.request.Request(f"{open_to_sql.address}/config", headers=BEARER)
            with urllib.request.urlopen(request, timeout=20) as response:
                asked += response.status == 200
            time.sleep(0.05)
        assert asked > 5
        status, answer = answers[0]
        assert status == 400
        assert "stopped after 5 seconds" in answer["error"]


class TestWhatIsNotServed:
    """POST /trackio/api/force_sync: once wrote without a token."""

    """get_registries asks other machines on a stranger's behalf: once 23 s of requests."""

    @pytest.mark.parametrize(
        "name",
        ["force_sync", "delete_run", "rename_run", "log", "bulk_log", "upload", "get_registries",
         "get_registry_details", "get_registry_buckets", "upload_db_to_space", "query_project", "nothing"],
    )  # fmt: skip
    def test_functions_that_write_or_ask_others(self, served, name):
        status, _ = post(f"{served.address}/trackio/api/{name}", {"project": "demo"}, **BEARER)
        assert status == 404

    def test_its_page_never_offers_to_delete(self, served):
        status, answer = post(f"{served.address}/trackio/api/get_run_mutation_status", {}, **BEARER)
        assert (status, answer["data"]["allowed"]) == (200, False)

    def test_files_outside_its_media(self, served, home):
        for path in (
            "/etc/passwd",
            str(home / "demo.db"),
            "../demo.db",
            str(home / "media" / ".." / "demo.db"),
        ):
            request = urllib.request.Request(
                f"{served.address}/trackio/file?path={quote(path)}", headers=BEARER
            )
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(request, timeout=20)

    def test_projects_that_were_not_named(self, home):
        server = Served(home, "--project", "demo", "--trackio-sql")
        try:
            base = f"{server.address}/trackio/api"
            assert post(f"{base}/get_all_projects", {}, **BEARER)[1]["data"] == ["demo"]
            body = {"project": "hostile", "query": "SELECT 1"}
            for name in ("get_runs_for_project", "get_traces", "query_project"):
                status, answer = post(f"{base}/{name}", body, **BEARER)
                assert (status, "not shown here" in answer["error"]) == (400, True)
        finally:
            server.stop()

    @pytest.mark.parametrize(("named", "status"), [("demo", 404), ("pictures", 200)])
    def test_media_and_artifacts_of_projects_that_were_not_named(self, home, artifact, named, status):
        picture = next(path for path in (home / "media" / "pictures").rglob("*") if path.is_file())
        kept = artifact("pictures", b"weights")
        server = Served(home, "--project", named)
        try:
            found = [
                fetched(server, path)[0]
                for path in (f"file?path={quote(str(picture))}", f"artifact_blob/pictures/{kept.name}")
            ]
        finally:
            server.stop()
        assert found == [status, status]


class TestArtifacts:
    def test_one_comes_whole_by_its_digest_alone_as_bytes_that_nothing_runs(self, served, artifact):
        kept = artifact("demo", b"<script>alert(1)</script>")
        status, body, headers = fetched(served, f"artifact_blob/demo/{kept.name}")
        assert (status, body) == (200, b"<script>alert(1)</script>")
        assert headers["content-type"] == "application/octet-stream" and "sandbox" in headers[POLICY]
        for other in (kept.name[:-1], kept.name[:-1] + "/", "../blobs/" + kept.name, "0" * 64, "%2e%2e"):
            assert fetched(served, f"artifact_blob/demo/{other}")[0] == 404, other
        assert fetched(served, f"artifact_blob/..%2fdemo/{kept.name}")[0] == 404

    def test_a_link_in_its_place_that_leads_out_of_the_folder_is_not_followed(
        self, served, artifact, tmp_path
    ):
        """Seen once: a folder from someone else could name any file of whoever showed it."""
        (tmp_path / "secret").write_bytes(b"secret")
        kept = artifact("demo", b"weights")
        kept.unlink()
        kept.symlink_to(tmp_path / "secret")
        assert fetched(served, f"artifact_blob/demo/{kept.name}")[0] == 404


class TestAFolderThatTrackioCannotOpen:
    """One damaged .db file, or a read-only folder: once show did not start; looking changed other projects."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        log_project(tmp_path, "--steps", "1")
        (tmp_path / "broken.db").write_bytes(b"no database" * 1000)
        return tmp_path

    def pages_answer(self, server: Served) -> bool:
        request = urllib.request.Request(f"{server.address}/", headers=BEARER)
        with urllib.request.urlopen(request, timeout=20) as response:
            return b"gradio" in response.read()

    @pytest.mark.parametrize("options", [(), ("--project", "demo"), ("--project", "broken")])
    def test_a_damaged_project_does_not_keep_it_from_starting(self, folder, options):
        server = Served(folder, *options)
        try:
            assert self.pages_answer(server)
            if options != ("--project", "broken"):
                base = f"{server.address}/trackio/api"
                assert post(f"{base}/get_runs_for_project", {"project": "demo"}, **BEARER)[0] == 200
            else:
                assert "cannot be read" in server.output.read_text()
        finally:
            server.stop()

    def test_looking_changes_no_project(self, folder):
        with closing(sqlite3.connect(folder / "demo.db")) as opened:  # Trackio rewrites it where it may write
            assert opened.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
        before = {path.name: path.read_bytes() for path in folder.glob("*.db")}
        server = Served(folder)
        try:
            base = f"{server.address}/trackio/api"
            for project in ("demo", "broken"):
                post(f"{base}/get_runs_for_project", {"project": project}, **BEARER)
                post(f"{base}/get_traces", {"project": project}, **BEARER)
        finally:
            server.stop()
        assert {path.name: path.read_bytes() for path in folder.glob("*.db")} == before

    def test_a_trackio_that_cannot_be_served_is_said(self, folder, monkeypatch):
        from rollout_traces.inspector import server as built
        from rollout_traces.inspector.workspace import Workspace

        def missing(*given):
            raise RuntimeError("this Trackio has no get_traces")

        monkeypatch.setattr("rollout_traces.inspector.server.trackio_app", missing)
        made = built.build_server(Workspace(folder=folder))
        assert made.no_dashboard == "RuntimeError: this Trackio has no get_traces"
        assert not any("trackio/api" in rule.path for rule in made.rules)


class TestWithoutIt:
    def test_it_can_be_left_out(self, home):
        server = Served(home, "--no-trackio")
        try:
            request = urllib.request.Request(f"{server.address}/trackio/", headers=BEARER)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(request, timeout=20)
            assert "Trackio" not in server.output.read_text()
        finally:
            server.stop()


SEVERAL_OF_EACH_KIND = """
import json, sys
import numpy as np
from rollout_traces import RolloutLogger

logger = RolloutLogger("sent", "r", server_url=sys.argv[1], selection="all", max_rollout_traces_per_step=8)
for step in (1, 2, 3):
    batch = {
        "input_ids": np.arange(24).reshape(4, 6) + step,
        "attention_mask": np.ones((4, 6), bool),
        "loss_mask": np.arange(6) > np.full((4, 1), 2),
        "rewards": np.asarray([0.0, 1.0, 0.0, 1.0]),
        "group_ids": np.asarray([0, 0, 1, 1]),
        "messages": [[{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]] * 4,
    }
    handle = logger.log_rollouts(batch, step=step, await_join=("advantages",))
    logger.log_rollouts(batch, step=step, split="eval-rollout")
    logger.log_scalars({"loss": 0.5 / step}, step)
    handle.join(advantages=np.asarray([-0.5, 0.5, -0.5, 0.5]))
    logger.log_scalars({"lr": 0.1}, step)
    logger.close_step(step)
finished = logger.finish(180)
names = ("rollouts_handed_over", "rollouts_stored", "traces_stored", "step_summaries_stored", "joins_handed_over",
         "join_stored", "joins_missed", "scalars_handed_over", "scalars_stored", "closes_handed_over", "close_stored", "spooled")
print(json.dumps({"finished": finished} | {name: logger.counters[name] for name in names}))
"""


class TestReceivingLogs:
    @pytest.fixture
    def server(self, tmp_path, monkeypatch):
        """A server that takes logs; its projects are in `server/` of the test's folder."""
        monkeypatch.setenv("TRACKIO_WRITE_TOKEN", WRITE_TOKEN)
        (tmp_path / "server").mkdir()
        server = Served(tmp_path / "server", "--receive-logs")
        yield server
        server.stop()

    def logged(self, server, folder, script):
        """Runs a script as a trainer elsewhere would; it gets the address to log to."""
        folder.mkdir()
        address = f"{server.address}/trackio/?write_token={quote(WRITE_TOKEN)}"
        env = {**environment(folder), "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, "-c", script, address], env=env, capture_output=True, text=True, timeout=120
        )

    def test_a_run_logs_with_the_write_token_and_the_inspector_shows_it(self, server, tmp_path):
        script = (
            "import trackio, sys\n"
            "trackio.init(project='sent', name='r', server_url=sys.argv[1])\n"
            "trackio.log({'loss': 0.5}, step=1)\n"
            "trackio.finish()\n"
        )
        done = self.logged(server, tmp_path / "runs", script)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "server" / "sent.db").is_file(), done.stdout + done.stderr
        base = f"{server.address}/trackio/api"
        shown = post(f"{base}/get_runs_for_project", {"project": "sent"}, **BEARER)[1]["data"]
        assert [run["name"] for run in shown] == ["r"]
        body = {"logs": [], "hf_token": None}
        assert post(f"{base}/bulk_log", body, **BEARER)[0] == 401
        assert post(f"{base}/bulk_log", body, **{"X-Trackio-Write-Token": "wrong"})[0] == 401
        assert post(f"{base}/bulk_log", body, **{"X-Trackio-Write-Token": WRITE_TOKEN})[0] == 200

    def test_a_rollout_logger_sees_what_it_sent_stored(self, server, tmp_path):
        """Seen once: stored traces that were awaited were not counted."""
        done = self.logged(server, tmp_path / "runs", SEVERAL_OF_EACH_KIND)
        said = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
        assert said.pop("finished", None) is True, done.stdout + done.stderr
        assert said == {
            "rollouts_handed_over": 24,
            "rollouts_stored": 24,
            "traces_stored": 24,
            "step_summaries_stored": 6,
            "joins_handed_over": 3,
            "join_stored": 3,
            "joins_missed": 0,
            "scalars_handed_over": 6,
            "scalars_stored": 6,
            "closes_handed_over": 3,
            "close_stored": 3,
            "spooled": 0,
        }
        with closing(sqlite3.connect(tmp_path / "server" / "sent.db")) as stored:
            keys = stored.execute(
                "select key, step, count(*) from traces group by key, step order by key, step"
            )
            assert keys.fetchall() == [
                (f"{split}/{kind}", step, n)
                for split in ("eval-rollout", "rollout")
                for kind, n in (("steps", 1), ("trajectories", 4))
                for step in (1, 2, 3)
            ]
            for name in ("loss", "lr"):
                like = f'%"{name}"%'
                found = stored.execute(
                    "select step from metrics where cast(metrics as text) like ? order by step", (like,)
                )
                assert [step for (step,) in found] == [1, 2, 3], name
            told = (
                "select json_extract(metadata, '$.advantage') from traces where key = 'rollout/trajectories'"
            )
            assert sorted(value for (value,) in stored.execute(told)) == [-0.5] * 6 + [0.5] * 6
        base = f"{server.address}/trackio/api/query_project"
        body = {"project": "sent", "query": "SELECT 1"}
        assert post(base, body, **{"X-Trackio-Write-Token": WRITE_TOKEN})[0] == 200
        assert post(base, body, **BEARER)[0] == 401


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
        with trackio_mount.reading(5):
            pass
        storage.init_db("fresh")
        assert (tmp_path / "fresh.db").is_file()

    def test_nothing_can_be_written_while_it_reads(self, storage, tmp_path):
        with trackio_mount.reading(5), pytest.raises(sqlite3.OperationalError, match="readonly"):
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
        monkeypatch.setattr(trackio_mount, "READ_SECONDS", 0.2)

        def endless(project: str) -> None:
            with storage._get_connection(tmp_path / "old.db") as connection:
                connection.execute(ENDLESS).fetchall()

        with pytest.raises(ReadRefused, match="stopped after 0\\.2 seconds"):
            call(endless, {"project": "old"}, None)

    def test_no_listed_function_writes(self):
        from trackio import server

        assert not set(TRACKIO_READS) & set(server.WRITE_APIS)
        assert set(TRACKIO_WRITES) - {"check_artifact_blobs"} <= set(server.WRITE_APIS)
        assert not {"get_registries", "get_registry_details", "get_registry_buckets"} & set(TRACKIO_READS)


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

    def test_a_statement_attaches_nothing_and_starts_no_thread_whoever_lets_it_through(self):
        with closing(sqlite3.connect(":memory:")) as connection:
            trackio_mount._limit(connection)
            with pytest.raises(sqlite3.Error, match="max 0"):
                connection.execute("ATTACH DATABASE ':memory:' AS x")
            limits = [connection.getlimit(sqlite3.SQLITE_LIMIT_WORKER_THREADS)]
            limits.append(connection.getlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH))
            limits.append(connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH))
            assert limits == [0, 200, trackio_mount.SQL_VALUE_BYTES]

    def test_an_answer_may_have_so_many_rows_and_no_more(self, database, monkeypatch):
        monkeypatch.setattr(trackio_mount, "SQL_ROWS", 3)
        three = "SELECT 1 AS n UNION ALL SELECT 2 UNION ALL SELECT 3"
        assert select(database, three)["row_count"] == 3
        with pytest.raises(ReadRefused, match="more than 3 rows"):
            select(database, f"{three} UNION ALL SELECT 4")

    def test_an_answer_may_have_so_many_bytes_and_no_more(self, database, monkeypatch):
        monkeypatch.setattr(trackio_mount, "SQL_ANSWER_BYTES", 3 << 20)
        million = f"SELECT hex(zeroblob({1 << 19})) AS n"
        assert select(database, f"{million} UNION ALL {million}")["row_count"] == 2
        with pytest.raises(ReadRefused, match="more than 3 MiB"):
            select(database, " UNION ALL ".join([million] * 4))

    def test_a_query_that_is_no_text_is_refused(self, database):
        with pytest.raises(ReadRefused, match="expected a text"):
            select(database, ["SELECT 1"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limit", "asked_for"),
    [
        (5, 5),
        ("7", 7),
        (0, 0),
        (-3, 0),
        (10**9, trackio_mount.MOST_TRACES),
        (None, trackio_mount.MOST_TRACES),
        ("all", trackio_mount.MOST_TRACES),
        (float("inf"), trackio_mount.MOST_TRACES),
    ],
)
def test_as_many_traces_are_asked_for_as_there_may_be(limit, asked_for):
    assert trackio_mount._traces_asked_for(limit) == asked_for


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
        assert as_json([0.5, [float("-inf")], {"b": True}]) == b'[0.5,[null],{"b":true}]'
        assert as_json("\ud800") == b'"\\ud800"'


def test_no_dataset_is_looked_for(storage, monkeypatch):
    """Trackio on a Space downloads its dataset before it reads."""
    monkeypatch.setattr(storage, "_dataset_import_attempted", False)
    called = []
    monkeypatch.setattr(storage, "load_from_dataset", staticmethod(lambda: called.append(1)))
    with trackio_mount.reading(5):
        storage.get_projects()
    assert not called
