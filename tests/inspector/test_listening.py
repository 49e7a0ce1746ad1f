"""Connections over which no request comes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from rollout_traces.errors import ConfigError
from rollout_traces.inspector import listening
from rollout_traces.inspector.listening import warm_up
from rollout_traces.inspector.pages import rollouts
from rollout_traces.inspector.workspace import Workspace
from tests.inspector.conftest import free_port
from tests.store.projects import make_ledger, write_step


async def app(scope, receive, send):
    """Says ok."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch) -> Iterator[int]:
    """A server of the inspector's protocol that waits half a second for a request."""
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.5)
    chosen = free_port()
    server = uvicorn.Server(
        uvicorn.Config(
            app, port=chosen, http=listening.TimedProtocol, ws="none", log_level="error", lifespan="off"
        )
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield chosen
    server.should_exit = True
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
    with listening.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^port {port} on 127\.0\.0\.1: .+\. Name another"):
            listening.listen("127.0.0.1", port)


def test_who_comes_before_the_server_answers_waits_for_it():
    """Seen once: the browser that `show` opened found nobody there yet."""
    with listening.listen("127.0.0.1", 0) as taken, socket.create_connection(taken.getsockname(), timeout=5):
        pass


def test_the_newest_step_of_the_only_project_is_read(trackio_dir, monkeypatch):
    write_step(make_ledger([[0.0, 1.0]], step=1), (0, 1), project="demo")
    write_step(make_ledger([[0.0, 1.0]], step=2), (0, 1), project="demo")
    seen = []
    really = rollouts.rollout
    monkeypatch.setattr(rollouts, "rollout", lambda *given: seen.append(really(*given)))
    workspace = Workspace()
    warm_up(workspace).join(60)
    assert [found["metadata"]["step"] for found in seen] == [2]
    assert workspace.version("demo") == 1
    workspace.close()


def test_of_several_projects_none_is_opened(trackio_dir):
    for project in ("one", "two"):
        write_step(make_ledger([[0.0, 1.0]], step=1), (0, 1), project=project)
    assert warm_up(Workspace()) is None
    named = Workspace(projects=("two",))
    warm_up(named).join(60)
    assert named.version("two") == 1
    named.close()


def test_a_project_that_cannot_be_read_is_left_for_who_asks(trackio_dir):
    workspace = Workspace(projects=("missing",))
    warm_up(workspace).join(60)
    assert workspace.version("missing") == 0
