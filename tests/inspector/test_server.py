"""What is served beside the page, and what is not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import uvicorn
from trackio.frontend_server import ASSETS_DIR

from rollout_traces.errors import ConfigError
from rollout_traces.inspector import server
from rollout_traces.inspector.assets import SCRIPTS, bundle, katex
from rollout_traces.inspector.registry import PAGES
from tests.inspector.conftest import BEARER, free_port


def fetch(served, path: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """Status and body of a request."""
    request = urllib.request.Request(
        served.address + path,
        data=data,
        headers=BEARER | {k.replace("_", "-"): v for k, v in headers.items()},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class TestAssets:
    def test_the_one_script_and_the_one_style_sheet_are_served_by_name(self, served):
        base = f"/inspector/{bundle().digest}"
        status, script = fetch(served, f"{base}/scripts.js")
        assert status == 200
        assert all(f"// {name}".encode() in script for name in bundle().modules if name.startswith("lib/"))
        status, sheet = fetch(served, f"{base}/style.css")
        assert status == 200
        assert b".rt-turn" in sheet

    @pytest.mark.parametrize(
        "name", ["../guard.py", "..%2f..%2fguard.py", "/etc/passwd", "lib/../../guard.py", "%2e%2e/server.py"]
    )
    def test_no_path_reaches_the_file_system(self, served, name):
        assert fetch(served, f"/inspector/{bundle().digest}/{name}")[0] == 404

    def test_trackios_images_are_served_at_the_root_too(self, served):
        images = [path.name for path in ASSETS_DIR.glob("*_transparent.png")]
        assert images
        assert all(fetch(served, f"/static/trackio/{name}")[0] == 200 for name in images)
        assert fetch(served, "/static/trackio/../guard.py")[0] == 404

    def test_gradio_brings_katex(self, served):
        where = katex()
        assert where is not None
        assert fetch(served, f"/{where[0]}")[0] == 200

    def test_its_address_may_have_names_that_gradio_takes_for_its_own(self, served):
        """Seen once: an internal error, and its traceback where the inspector runs, of `?page=run`."""
        assert fetch(served, "/?page=run&project=demo")[0] == 200

    def test_every_page_has_its_component(self):
        named = bundle().files[SCRIPTS].decode().rpartition("export const entries")[2]
        for page in PAGES:
            assert f'"{page.name}": module' in named


class TestTrackioBeside:
    def test_its_dashboard_and_its_reading_functions_answer(self, served):
        assert b"<html" in fetch(served, "/trackio/")[1].lower()
        status, body = fetch(
            served, "/trackio/api/get_all_projects", data=b"{}", Content_Type="application/json"
        )
        assert status == 200
        assert "demo" in json.dumps(json.loads(body))

    def test_foreign_hosts_and_origins_do_not_reach_them(self, served):
        query = json.dumps({"project": "demo"}).encode()
        path = "/trackio/api/get_runs_for_project"
        assert fetch(served, path, query, Content_Type="application/json")[0] == 200
        assert fetch(served, path, query, Content_Type="application/json", Host="evil.example")[0] == 403
        assert (
            fetch(served, path, query, Content_Type="application/json", Origin="https://evil.example")[0]
            == 403
        )

    def test_its_sql_is_not_served_unless_asked_for(self, served):
        query = json.dumps({"project": "demo", "query": "select 1"}).encode()
        assert fetch(served, "/trackio/api/query_project", query, Content_Type="application/json")[0] == 404


class TestServerFunctions:
    def test_only_the_pages_functions_can_be_called(self, served):
        config = json.loads(fetch(served, "/config")[1])
        component = next(c for c in config["components"] if c["props"].get("elem_id") == "rt-rollouts")

        def call(name: str, data: object) -> tuple[int, object]:
            body = {"data": data, "component_id": component["id"], "fn_name": name, "session_hash": "s"}
            status, answer = fetch(
                served,
                "/gradio_api/component_server",
                json.dumps(body).encode(),
                Content_Type="application/json",
            )
            return status, json.loads(answer) if status == 200 else answer

        status, answer = call("samples", {"project": "demo", "run": "run-a", "split": "rollout", "step": 4})
        assert status == 200
        assert answer["ok"]["n_traced"] == 16
        status, answer = call("samples", {"project": "../../etc/passwd", "run": "x", "step": 1})
        assert answer["error"]["kind"] == "StoreError"
        status, answer = call("samples", {"project": "demo", "run": "run-a", "step": 4, "where": "reward <"})
        assert answer["error"]["kind"] == "QueryError"
        assert answer["error"]["start"] >= 6
        assert call("__init__", {})[0] == 404
        assert call("get_config", {})[0] == 404


async def app(scope, receive, send):
    """Says ok."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch) -> Iterator[int]:
    """A server of the inspector's protocol that waits half a second for a request."""
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    chosen = free_port()
    running = uvicorn.Server(
        uvicorn.Config(
            app, port=chosen, http=server.TimedProtocol, ws="none", log_level="error", lifespan="off"
        )
    )
    thread = threading.Thread(target=lambda: asyncio.run(running.serve()), daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    yield chosen
    running.should_exit = True
    thread.join(10)


def closed(connection: socket.socket) -> bool:
    """Waits until the server closes; False when it does not."""
    connection.settimeout(10)
    with contextlib.suppress(TimeoutError):
        while connection.recv(65_536):
            pass
        return True
    return False


def answered(connection: socket.socket) -> bool:
    """Waits for a whole answer."""
    connection.settimeout(10)
    seen = b""
    while not seen.endswith(b"ok"):
        seen += connection.recv(65_536)
    return seen.startswith(b"HTTP/1.1 200")


class TestConnections:
    @pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: "])
    def test_a_request_that_does_not_arrive_is_given_up(self, port, sent):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(sent)
            assert closed(connection)

    def test_nor_one_that_comes_letter_by_letter(self, port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            with contextlib.suppress(OSError):
                for letter in b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 100:
                    connection.sendall(bytes([letter]))
                    time.sleep(0.02)
            with contextlib.suppress(OSError):
                assert b"ok" not in connection.recv(1000)

    def test_a_second_one_on_a_kept_connection_neither(self, port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answered(connection)
            connection.sendall(b"GET / HT")
            assert closed(connection)

    def test_what_arrives_is_answered(self, port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for _ in range(3):
                connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert answered(connection)


def test_a_port_that_was_taken_meanwhile_is_one_sentence():
    """Seen once: another process took it between the look at it and listening, and a traceback was printed."""
    with server.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^port {port} on 127\.0\.0\.1: .+\. Name another"):
            server.listen("127.0.0.1", port)


def test_who_comes_before_the_server_answers_waits_for_it():
    """Seen once: the browser that `show` opened found nobody there yet."""
    with server.listen("127.0.0.1", 0) as taken, socket.create_connection(taken.getsockname(), timeout=5):
        pass
