"""The server's connections: limits that uvicorn does not have by default, and a first question ahead."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.few_at_once import give_back_large_blocks
from rollout_traces.inspector.guard import FIRST_PORT, Guard
from rollout_traces.inspector.workspace import SplitView, Workspace

HEAD_SECONDS = 10.0
"""Seconds that the head of a request may take to arrive."""
MOST_CONNECTIONS = 256
MOST_HEAD_BYTES = 64 << 10
MOST_PORTS = 100


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


def listen(host: str, port: int | None = None) -> socket.socket:
    """Takes connections from now on; they wait until `serve` answers them.

    Args:
        host: address to bind.
        port: port to listen on; the first free one from `FIRST_PORT` on when None.

    Raises:
        ConfigError: nobody can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last = FIRST_PORT + MOST_PORTS - 1
    for tried in range(FIRST_PORT, last + 1) if port is None else (port,):
        try:
            return socket.create_server((host, tried), family=family, backlog=MOST_CONNECTIONS)
        except OSError as error:
            if port is None and error.errno == errno.EADDRINUSE:
                continue
            reason = str(error.strerror).partition(" (")[0]
            raise ConfigError(
                f"port {tried} on {host}: {reason}. Name another (--port, --host; PORT in a container)."
            ) from error
    raise ConfigError(f"no free port between {FIRST_PORT} and {last} on {host}; name one with --port.")


def serve(server: Guard, listening: socket.socket) -> None:
    """Serves until the process is asked to stop.

    Args:
        server: what is served.
        listening: where.
    """
    give_back_large_blocks()
    config = uvicorn.Config(
        server,
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


_LOG = logging.getLogger(__name__)


def warm_up(workspace: Workspace) -> threading.Thread | None:
    """Asks in a thread of its own; None where nothing is asked, since there are several projects or none here.

    Args:
        workspace: what the pages read.
    """
    if not workspace.is_local or len(projects := workspace.projects()) != 1:
        return None
    thread = threading.Thread(target=_ask, args=(workspace, projects[0]), daemon=True)
    thread.start()
    return thread


def _ask(workspace: Workspace, project: str) -> None:
    from rollout_traces.inspector.pages.rollouts import AskedSamples, metrics, rollout, samples
    from rollout_traces.inspector.pages.shell import catalog

    try:
        workspace.store(project)
        for run in catalog(workspace, project).runs[:1]:
            for split in run.splits[:1]:
                view = SplitView(workspace, project, run.name, split.name)
                for step in split.steps[-1:]:
                    groups = samples(view, step, AskedSamples()).groups or []
                    for card in [card for group in groups for card in group.samples][:1]:
                        rollout(view, card.id or "")
                    metrics(view)
    except Exception as error:  # noqa: BLE001 - the next question raises it again
        _LOG.debug("asked ahead of the first page: %s", error)
