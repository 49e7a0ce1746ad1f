"""How the server listens: limits on connections that uvicorn does not have by default."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.memory import give_back_large_blocks
from rollout_traces.inspector.server import InspectorServer

HEAD_SECONDS = 10.0
"""How long the head of a request may take to arrive."""
MOST_CONNECTIONS = 256
MOST_HEAD_BYTES = 64 << 10


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request does not arrive."""

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A connection was opened: a request has to follow."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Part of a request, or all of it."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._expect()
        else:
            self._arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed."""
        self._arrived()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._overdue is None:
            self._overdue = self.loop.call_later(HEAD_SECONDS, self._close)

    def _arrived(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _close(self) -> None:
        self._overdue = None
        if not self.transport.is_closing():
            self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """Takes connections from now on; they wait until `serve` answers them.

    Args:
        host: address to bind.
        port: port to listen on.

    Raises:
        ConfigError: nobody can listen there; the port may have been taken a moment ago.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise ConfigError(
            f"port {port} on {host}: {reason}. Name another (--port; PORT in a container)."
        ) from error


def serve(server: InspectorServer, listening: socket.socket) -> None:
    """Serves until the process is asked to stop.

    Args:
        server: what is served.
        listening: where.
    """
    give_back_large_blocks()
    config = uvicorn.Config(
        server.app,
        http=TimedProtocol,
        ws="none",
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
