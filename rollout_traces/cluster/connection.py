"""A connection between two nodes of a training job, on `multiprocessing.connection`; and live files, as they cross it.

Rank 0 listens on one address with a key of its run; both reach the other nodes through the job's own store. Each
side proves by HMAC that it has the key before anything is read. Messages are JSON and bytes: nothing is unpickled.
Of a live file what it has more since the last look is sent, and rank 0 keeps a copy.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import secrets
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from rollout_traces.model import private_files
from rollout_traces.model.live_lines import MAX_BYTES, SUFFIX, LivePlace
from rollout_traces.model.units import GB, MB, MINUTE

SILENCE = 1.0 * MINUTE
"""Seconds without a byte after which the other side is given up."""
MAX_META = MB
MAX_BODY = 2 * GB
"""Bytes of one message that are accepted."""
KEY_BYTES = 32
BACKLOG = 64
FAILURES = (OSError, EOFError, ValueError, AssertionError, multiprocessing.AuthenticationError)
"""Errors that `multiprocessing.connection` raises for a broken connection, a wrong key or a wrong message."""


class NodeConnectionError(Exception):
    """The other side closed, was silent, has another key, or sent something that cannot be parsed."""


@dataclass(frozen=True)
class NodeAddress:
    """The address at which rank 0 listens, and the key that opens it.

    Attributes:
        host: address of this machine that the job's nodes use.
        port: TCP port.
        key: secret of both sides.
    """

    host: str
    port: int
    key: bytes = field(repr=False)

    def as_json(self) -> bytes:
        """The text that is put into the job's store."""
        return orjson.dumps({"host": self.host, "port": self.port, "key": self.key.hex()})

    @classmethod
    def from_json(cls, data: bytes) -> NodeAddress:
        """The address that `as_json` wrote.

        Raises:
            NodeConnectionError: it is none.
        """
        try:
            values = orjson.loads(data)
            return cls(str(values["host"]), int(values["port"]), bytes.fromhex(values["key"]))
        except (ValueError, KeyError, TypeError) as error:
            raise NodeConnectionError(f"rank 0's address cannot be read: {error!r}") from error


class NodeConnection:
    """Two processes that take turns: one asks, the other answers.

    Args:
        connection: an open connection, not yet authenticated.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        _bound_waiting(connection)

    @classmethod
    def connect(cls, address: NodeAddress) -> NodeConnection:
        """Connects to rank 0; each side proves that it has the key.

        Raises:
            NodeConnectionError: nobody listens there, or with another key.
        """
        try:
            connection = Client((address.host, address.port))
        except OSError as error:
            raise NodeConnectionError(f"no connection to {address}: {error}") from error
        node = cls(connection)
        try:
            answer_challenge(connection, address.key)
            deliver_challenge(connection, address.key)
        except FAILURES as error:
            node.close()
            raise NodeConnectionError(f"{address} did not accept the job's key: {error!r}") from error
        return node

    def authenticate(self, key: bytes) -> None:
        """On rank 0: each side proves that it has the key.

        Raises:
            NodeConnectionError: the other side does not have it.
        """
        try:
            deliver_challenge(self._connection, key)
            answer_challenge(self._connection, key)
        except FAILURES as error:
            raise NodeConnectionError(f"a connection without this job's key: {error!r}") from error

    def ask(self, meta: dict[str, Any], body: Any = b"") -> dict[str, Any]:
        """Sends a message and waits for its answer.

        Raises:
            NodeConnectionError: as the class says.
        """
        self.send(meta, body)
        return self.receive()[0]

    def send(self, meta: dict[str, Any], body: Any = b"") -> None:
        """Sends a message.

        Args:
            meta: JSON-safe values.
            body: bytes that go with it.

        Raises:
            NodeConnectionError: as the class says.
        """
        try:
            self._connection.send_bytes(orjson.dumps(meta))
            self._connection.send_bytes(body)
        except FAILURES as error:
            raise NodeConnectionError(f"the connection to another node broke: {error!r}") from error

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Waits for a message.

        Returns:
            Its values and its bytes.

        Raises:
            NodeConnectionError: as the class says.
        """
        try:
            meta = orjson.loads(self._connection.recv_bytes(MAX_META))
            body = self._connection.recv_bytes(MAX_BODY)
        except BlockingIOError as error:
            raise NodeConnectionError(f"another node sent nothing for {SILENCE:g} s") from error
        except FAILURES as error:
            raise NodeConnectionError(f"the connection to another node broke: {error!r}") from error
        if not isinstance(meta, dict):
            raise NodeConnectionError(f"a message {type(meta).__name__}: expected an object")
        return meta, body

    def close(self) -> None:
        """Closes the connection: the other side's next call fails at once."""
        with contextlib.suppress(OSError):
            self._connection.close()


class NodeListener:
    """Rank 0's port for the job's other nodes.

    Args:
        host: address of this machine to listen on; see `address_in_job`.

    Raises:
        OSError: it cannot be listened on.
    """

    def __init__(self, host: str) -> None:
        self._listener = Listener((host, 0), backlog=BACKLOG)
        port: Any = self._listener.address[1]
        self.address = NodeAddress(host, int(port), secrets.token_bytes(KEY_BYTES))

    def accept(self) -> NodeConnection:
        """The next connection, not yet authenticated.

        Raises:
            OSError: none can be accepted.
        """
        return NodeConnection(self._listener.accept())

    def close(self) -> None:
        """Stops listening; a thread that waits in `accept` gets one last connection, which nobody uses."""
        with contextlib.suppress(OSError):
            Client((self.address.host, self.address.port)).close()
        self._listener.close()


def address_in_job(host: str, port: int) -> str:
    """The address of this machine that is reachable from nodes which can reach a host of the job.

    Args:
        host: where the job's store is, a name or an address.

    Returns:
        The address of one interface: loopback where the store is on loopback.

    Raises:
        OSError: the host cannot be resolved or reached.
    """
    family, kind, _, _, target = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # a datagram socket only looks up the route: nothing is sent
        return str(probe.getsockname()[0])


def _bound_waiting(connection: Connection) -> None:
    """Ends every wait of a connection after `SILENCE`, and sends small messages without delay."""
    limit = struct.pack("ll", int(SILENCE), int(SILENCE % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


EVERY = 1.0
"""Seconds between two looks at a node's live files."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,150}" + re.escape(SUFFIX))


class Piece(NamedTuple):
    """Bytes of a file, from `at` on; those from 0 on take the place of all that were sent before."""

    name: str
    at: int
    data: bytes


class LiveTail:
    """The lines that were added to a folder's live files since the last look.

    Args:
        folder: a node's own; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int]] = {}

    def pieces(self) -> Iterator[Piece]:
        """The new bytes of each file; call `sent` with how much the other side then has."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                inode, at = os.fstat(file.fileno()).st_ino, 0
                if self._seen.get(path.name, (0, 0))[0] == inode:
                    at = self._seen[path.name][1]
                self._seen[path.name] = (inode, at)
                file.seek(at)
                if data := file.read(MAX_BYTES):
                    yield Piece(path.name, at, data)

    def sent(self, piece: Piece, size: int) -> None:
        """Notes that the other side has `size` bytes of the file; where that is not all of them, all are sent again."""
        inode, _ = self._seen[piece.name]
        self._seen[piece.name] = (inode, size if size == piece.at + len(piece.data) else 0)


def copy_piece(piece: Piece, place: LivePlace) -> int:
    """Writes a piece to the copy of another node's live file.

    Args:
        place: where copies go, among this node's own files.

    Returns:
        The bytes that are there now; others than the sender expects where some before it are missing.

    Raises:
        ValueError: that is no live file's name, or too much.
        StoreError: the folder is another user's.
        OSError: the disk refused.
    """
    if not _NAME.fullmatch(piece.name) or piece.at < 0 or piece.at + len(piece.data) > 2 * MAX_BYTES:
        raise ValueError(f"live file {piece.name!r:.80}: no name or size of one")
    private_files.take_folder(place.folder, place.top)
    path = place.folder / piece.name
    if piece.at == 0:
        private_files.replace_file(path, piece.data)
        return len(piece.data)
    fd = private_files.open_file(path, os.O_WRONLY | os.O_APPEND)
    with os.fdopen(fd, "ab", buffering=0) as file:
        size = os.fstat(fd).st_size
        if size == piece.at:
            size += file.write(piece.data)
        return size
