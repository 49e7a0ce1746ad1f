"""A server on loopback that answers whatever a test wants, also what no honest server would."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Answer = Callable[["http.server.BaseHTTPRequestHandler"], None]
"""Writes a whole answer, head included."""
DRIPS = 200
"""Bytes of an answer that drips, one every 50 ms: whoever waits for its end fails, instead of never ending."""


@dataclass
class LyingServer:
    """Its address, what it answers by the last part of a path, and the paths that it was asked for."""

    address: str
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


def body(content: bytes, packed: str | None = None, status: int = 200) -> Answer:
    """An answer of this content, said to be packed in some way."""

    def write(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        if packed is not None:
            handler.send_header("Content-Encoding", packed)
        handler.end_headers()
        handler.wfile.write(content)

    return write


def late(seconds: float, answer: Answer) -> Answer:
    """An answer that begins so many seconds after it was asked for."""

    def write(handler: http.server.BaseHTTPRequestHandler) -> None:
        time.sleep(seconds)
        answer(handler)

    return write


def redirect(address: str) -> Answer:
    """An answer that sends whoever asks to another address."""

    def write(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("Location", address)
        handler.end_headers()

    return write


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    """An answer that goes on for ever."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65_536)


def dripping(handler: http.server.BaseHTTPRequestHandler) -> None:
    """An answer of which a byte comes now and then."""
    handler.send_response(200)
    handler.end_headers()
    _drip(handler)


def dripping_head(handler: http.server.BaseHTTPRequestHandler) -> None:
    """An answer whose head is never at its end."""
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long: ")
    _drip(handler)


def _drip(handler: http.server.BaseHTTPRequestHandler) -> None:
    for _ in range(DRIPS):
        handler.wfile.write(b" ")
        time.sleep(0.05)


@contextlib.contextmanager
def lying_server() -> Iterator[LyingServer]:
    """Serves until the block ends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found.asked.append(self.path)
            with contextlib.suppress(OSError):
                found.answers[self.path.partition("?")[0].rpartition("/")[2]](self)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = LyingServer(f"http://127.0.0.1:{served.server_address[1]}")
    threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield found
    finally:
        served.shutdown()
        served.server_close()
