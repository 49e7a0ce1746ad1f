from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.store import Store, http_source, open_store
from rollout_traces.store.http_source import HttpSource, ServerClient, remote_projects, with_values
from tests.lying_server import (
    Answer,
    LyingServer,
    body,
    dripping,
    dripping_head,
    endless,
    late,
    lying_server,
    redirect,
)
from tests.store.projects import PROJECT, RUN


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(shared_folder: Path) -> Iterator[str]:
    """The address of a real self-hosted Trackio server."""
    with serving(shared_folder) as address:
        yield address


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Runs a Trackio server on a folder; gives its address."""
    port = free_port()
    environment = {
        **os.environ,
        "TRACKIO_DIR": str(folder),
        "GRADIO_SERVER_PORT": str(port),
        "TRACKIO_TELEMETRY": "0",
        "BROWSER": "true",
    }
    command = [sys.executable, "-c", "from trackio.cli import main; main()", "show"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(300):
                try:
                    httpx.get(f"{address}/version", timeout=1)
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            yield address
        finally:
            process.kill()


@pytest.fixture
def remote(server: str, tmp_path: Path) -> Iterator[Store]:
    """The shared project, read over HTTP."""
    opened = open_store(PROJECT, server_url=server, index_path=tmp_path / "remote.sqlite3")
    yield opened
    opened.close()


class TestAgainstARealServer:
    def test_it_answers_as_the_local_store_does(self, remote: Store, store: Store) -> None:
        assert remote.runs() == store.runs()
        assert remote.steps(RUN, "rollout") == store.steps(RUN, "rollout")
        for rows in ("traces", "ledger"):
            ours, theirs = (
                [row.as_dict() for row in s.query(rows=rows, limit=100).rows]  # type: ignore[arg-type]
                for s in (store, remote)
            )
            assert ours == theirs
        assert remote.metrics(RUN).keys() == store.metrics(RUN).keys()
        assert remote.config(RUN) == store.config(RUN)

    def test_one_trace_comes_whole(self, remote: Store) -> None:
        trace_id = remote.find("b0-0")
        transcript = remote.transcript(trace_id)
        assert transcript is not None and transcript.turns[1].content.startswith("It is \\boxed{42}")

    @pytest.mark.parametrize(
        ("where", "n"),
        [("text contains 'oxed{42'", 3), ("text contains \"it's ' ? ; --\"", 0), ("text '?'", 6)],
    )
    def test_texts_are_scanned_on_the_server(self, remote: Store, where: str, n: int) -> None:
        assert remote.count(where=where) == n

    def test_snippets_are_read_from_the_server(self, remote: Store) -> None:
        assert "四十二" in remote.search("四十二").rows[0]["snippet"]

    def test_many_traces_come_page_by_page(
        self, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(HttpSource, "page", 3)
        paged = open_store(PROJECT, server_url=server, index_path=tmp_path / "paged.sqlite3")
        assert paged.count() == 10 and paged.count(where="text contains 'cannot'") == 6

    def test_projects_are_listed(self, server: str) -> None:
        assert remote_projects(server_url=server) == [PROJECT]

    def test_a_project_that_is_not_there_names_those_that_are(self, server: str) -> None:
        with pytest.raises(StoreError, match=f"no project 'nope' at {server}. Projects there: {PROJECT}"):
            open_store("nope", server_url=server)

    def test_hostile_values_reach_the_server_as_values(self, remote: Store) -> None:
        for value in ["' OR 1=1 --", "\x00", "?", "X'41'", "\\", "é", "\ud800"]:
            with pytest.raises(StoreError, match="no trace"):
                remote.record(value)


class TestAddresses:
    def test_nothing_there_is_said(self) -> None:
        with pytest.raises(StoreError, match="Is it running"):
            open_store(PROJECT, server_url=f"http://127.0.0.1:{free_port()}")

    @pytest.mark.parametrize("url", ["ftp://host", "file:///etc/passwd", "http://", ""])
    def test_what_is_no_server_address_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigError, match="expected http://host:port"):
            open_store(PROJECT, server_url=url)

    @pytest.mark.parametrize(
        "space", ["../x", "user", "user/", "/name", "user/na me", "user/name/more", "a@b/c", "ü/x"]
    )
    def test_what_is_no_space_is_refused(self, space: str) -> None:
        with pytest.raises(ConfigError, match="expected user/name"):
            open_store(PROJECT, space=space)

    def test_server_and_space_exclude_each_other(self) -> None:
        with pytest.raises(ConfigError, match="not both"):
            open_store(PROJECT, server_url="http://x", space="a/b")


class TestValuesInStatements:
    @given(
        st.lists(
            st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text())
        )
    )
    def test_sqlite_reads_back_what_was_written(self, values: list) -> None:
        import sqlite3

        values = [
            v.replace("\x00", "0").encode("utf-8", "replace").decode() if isinstance(v, str) else v
            for v in values
        ]
        sql = "SELECT 0" + ", ?" * len(values)
        written = with_values(sql, values)
        assert "'" not in written.replace("X'", "").replace("' AS TEXT", "")
        read = sqlite3.connect(":memory:").execute(written).fetchone()
        assert len(read) == 1 + len(values)
        for value, back in zip(values, read[1:], strict=True):
            # SQLite rounds the last digit of numbers near the ends of the range otherwise than Python does
            assert back == (pytest.approx(value, rel=1e-15) if isinstance(value, float) else value)

    def test_places_and_values_must_agree(self) -> None:
        with pytest.raises(ValueError, match="1 values for 2 places"):
            with_values("SELECT ?, ?", [1])


class TestALyingServer:
    """Whatever comes back is one sentence, in bounded time and memory."""

    @pytest.fixture
    def lying(self) -> Iterator[LyingServer]:
        with lying_server() as found:
            yield found

    @pytest.mark.parametrize(
        "said",
        [
            b"",
            b"null",
            b"[]",
            b'{"data": null}',
            b'{"data": {"a": 1}}',
            b'{"data": [1, 2]}',
            b'{"data": "p"}',
            b"[" * 100_000,
            b'{"data":' * 5_000 + b"1" + b"}" * 5_000,
            b'{"data": ["p", NaN]}',
            b"\xff\xfe",
        ],
    )
    def test_a_list_of_projects_that_is_none(self, lying: LyingServer, said: bytes) -> None:
        lying.answers["get_all_projects"] = body(said)
        with pytest.raises(StoreError):
            remote_projects(server_url=lying.address)
        with pytest.raises(StoreError):
            HttpSource("p", server_url=lying.address)

    def test_nobody_is_asked_whom_it_names(self, lying: LyingServer) -> None:
        lying.answers["elsewhere"] = body(b'{"data": ["p"]}')
        lying.answers["get_all_projects"] = redirect(f"{lying.address}/api/elsewhere")
        with pytest.raises(StoreError, match="HTTP 307"):
            remote_projects(server_url=lying.address)
        assert lying.asked == ["/api/get_all_projects"]

    @pytest.mark.parametrize(
        "data",
        [
            None,
            [],
            {"columns": ["a"]},
            {"rows": []},
            {"columns": "a", "rows": [{"a": 1}]},
            {"columns": ["a"], "rows": [{"b": 1}]},
            {"columns": ["a"], "rows": [[1]]},
            {"columns": ["a"], "rows": {"a": 1}},
            {"columns": ["a"], "rows": [{"a": {"nested": 1}}]},
            {"columns": [["a"]], "rows": [{"a": 1}]},
        ],
    )
    def test_rows_that_are_none(self, lying: LyingServer, data: object) -> None:
        lying.answers["get_all_projects"] = body(b'{"data": ["p"]}')
        lying.answers["query_project"] = body(json.dumps({"data": data}).encode())
        with pytest.raises(StoreError, match="query_project"):
            HttpSource("p", server_url=lying.address).select("SELECT 1")

    def test_an_inspectors_token_is_sent_to_it_alone_and_a_write_token_never(self) -> None:
        source = http_source._Api("http://h:1/trackio?access_token=a+b&write_token=secret", None)
        assert source.headers["Authorization"] == "Bearer a b"
        assert "secret" not in str(source.headers) + source.address
        assert "Authorization" not in http_source._Api("http://h:1?write_token=secret", None).headers


class TestNames:
    @pytest.mark.parametrize("project", ["x" * 201, "a\ud800b", 5, None])
    def test_what_no_file_can_be_called_is_one_sentence(self, project: object, tmp_path: Path) -> None:
        with pytest.raises((ConfigError, StoreError), match="project"):
            open_store(project, folder=tmp_path)  # type: ignore[arg-type]


@pytest.fixture
def lying() -> Iterator[LyingServer]:
    with lying_server() as found:
        yield found


def asked(lying: LyingServer, answer: Answer) -> tuple[int, bytes]:
    """What is read of an answer."""
    lying.answers["x"] = answer
    client = ServerClient(lying.address, "server", {"Authorization": "Bearer it"})
    try:
        return client.ask("GET", "/api/x", params={"a": 1})
    finally:
        client.close()


class TestAnswers:
    def test_come_with_their_status_packed_or_not(self, lying: LyingServer) -> None:
        assert asked(lying, body(b"said", status=404)) == (404, b"said")
        assert asked(lying, body(gzip.compress(b"said"), "gzip")) == (200, b"said")
        assert lying.asked == ["/api/x?a=1"] * 2

    def test_come_to_a_forked_process_too(self, lying: LyingServer) -> None:
        """It has no thread of the one that asked before."""
        assert asked(lying, body(b"said")) == (200, b"said")
        child = os.fork()
        if not child:
            os._exit(0 if asked(lying, body(b"said")) == (200, b"said") else 1)
        until = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
            time.sleep(0.05)
        if ended == (0, 0):
            os.kill(child, signal.SIGKILL)
        assert ended == (child, 0)


class TestWithoutEnd:
    def test_one_is_not_read_on(self, lying: LyingServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_source, "MOST_BYTES", 1 << 20)
        with pytest.raises(StoreError, match="x: more than 1 MiB; not read on"):
            asked(lying, endless)

    @pytest.mark.parametrize("answer", [dripping, dripping_head])
    def test_one_that_drips_is_given_up(
        self, lying: LyingServer, answer: Answer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Seen once: a head that dripped was waited for without end."""
        monkeypatch.setattr(http_source, "WHOLE_ANSWER", 0.5)
        with pytest.raises(StoreError, match=r"x: no whole answer within 0\.5 s"):
            asked(lying, answer)

    def test_one_that_is_given_up_ends_nobody_elses(
        self, lying: LyingServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Seen once: the connection that was made last was hung up, whoever had asked over it."""
        lying.answers.update(slow=dripping, whole=late(1.0, body(b"said")))
        client = ServerClient(lying.address, "server", {})
        monkeypatch.setattr(http_source, "WHOLE_ANSWER", 0.5)
        with ThreadPoolExecutor(2) as threads:
            slow = threads.submit(client.ask, "GET", "/api/slow")
            while not lying.asked:
                time.sleep(0.01)
            monkeypatch.setattr(http_source, "WHOLE_ANSWER", 60.0)
            whole = threads.submit(client.ask, "GET", "/api/whole")
            with pytest.raises(StoreError, match="slow: no whole answer within"):
                slow.result()
            assert whole.result() == (200, b"said")
        client.close()


class TestBombs:
    def test_a_packed_one_is_unpacked_up_to_the_bound(
        self, lying: LyingServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http_source, "MOST_BYTES", 1 << 20)
        bomb = body(gzip.compress(bytes(64 << 20)), "gzip")
        tracemalloc.start()
        try:
            with pytest.raises(StoreError, match="more than 1 MiB"):
                asked(lying, bomb)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("packed", ["zstd", "br", "gzip, gzip", "deflate"])
    def test_what_was_not_asked_for_is_not_unpacked(self, lying: LyingServer, packed: str) -> None:
        with pytest.raises(StoreError, match=f"packed as {packed}, expected gzip or none"):
            asked(lying, body(b"said", packed))

    def test_what_is_no_gzip_is_said(self, lying: LyingServer) -> None:
        with pytest.raises(StoreError, match="x: Error -3"):
            asked(lying, body(b"said", "gzip"))

    def test_json_of_many_small_values_is_refused_before_it_is_decoded(self, lying: LyingServer) -> None:
        many = b'{"data":[' + b"{}," * (6 << 20) + b"{}]}"
        with pytest.raises(StoreError, match="bytes that would take up to"):
            asked(lying, body(gzip.compress(many), "gzip"))


class TestOddAddresses:
    @pytest.mark.parametrize("address", ["http://[::", "nothing", "ftp://127.0.0.1"])
    def test_one_that_nothing_can_be_asked_at_is_said(self, address: str) -> None:
        with pytest.raises(StoreError, match="no server answers at"):
            ServerClient(address, "server", {}).ask("GET", "/x")
