"""Rank 0's side of the connections to other nodes: writes the records that they send into spools in its run folder.

From there on nothing is different: the worker reads the spools of all ranks, makes one selection with one cap,
and waits for no rank whose connection is lost.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from rollout_traces.cluster.connection import (
    NodeConnection,
    NodeConnectionError,
    NodeListener,
    Piece,
    copy_piece,
)
from rollout_traces.cluster.rendezvous import NodeMeeting
from rollout_traces.errors import StoreError, Warnings
from rollout_traces.model.live_lines import LivePlace
from rollout_traces.spool.folder import SpoolFull, SpoolReader, SpoolWriter
from rollout_traces.spool.run_folder import RANK_SPOOL, RunFolder, safe_name

LOOK_EVERY = 1.0
"""Seconds between two looks for another node that wants to connect."""
MAX_UNKNOWN = 32
"""Connections that may be about to prove that they have the key; further ones are refused."""


class NodeReceiver:
    """Takes records from other nodes, on a thread a connection. It opens a port once a node asks for one.

    Args:
        folder: the run's folder.
        meeting: where other nodes ask and find the address.
        max_bytes: bytes that may wait in one rank's spool.
        warnings: where what happens is counted.
        live: where the nodes' live files go.
    """

    def __init__(
        self, folder: RunFolder, meeting: NodeMeeting, max_bytes: int, warnings: Warnings, live: LivePlace
    ) -> None:
        self._folder = folder
        self._live = live
        self._meeting = meeting
        self._max_bytes = max_bytes
        self._warnings = warnings
        self._lock = threading.Lock()
        self._listener: NodeListener | None = None
        self._writers: dict[str, SpoolWriter] = {}
        self._connection_of: dict[str, int] = {}
        self._newest: dict[str, tuple[str, str]] = {}
        self._threads: set[threading.Thread] = set()
        self._n_unknown = 0
        self._n_connected = 0
        self._nodes: set[int] = set()
        self._n_asked = 0
        self._may_come = True
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="rollout-traces-nodes", daemon=True)

    @property
    def has_nodes(self) -> bool:
        """True once another node asked for the address."""
        return self._n_asked > 0

    def start(self) -> None:
        """Starts to look for nodes."""
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Waits for the nodes that have not closed, and takes no more.

        Args:
            timeout: seconds to wait at most; what they hold then stays with them.
        """
        deadline = time.monotonic() + timeout
        while self._is_busy() and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._is_busy():
            self._warnings.count("nodes_left", "another node has not finished; its records stay there")
        self._ended.set()
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            for spool in list(self._writers):
                self._give_up(spool)

    def _is_busy(self) -> bool:
        """True while a node is connected, or asked for the port and has not connected yet."""
        if self._may_come:
            self._ask_again()
        return bool(self._threads) or (self._may_come and len(self._nodes) < self._n_asked)

    def _ask_again(self) -> None:
        """Reads how many nodes asked for the port; without the job's store no further node can connect."""
        try:
            self._n_asked = self._meeting.n_asked()
        except Exception as error:  # noqa: BLE001  a store raises anything; counted and warned
            self._may_come = False
            self._warnings.count("nodes_unreachable", error)

    def _look(self) -> None:
        while self._may_come and not self._n_asked:
            if self._ended.wait(LOOK_EVERY):
                return
            self._ask_again()
        if self._n_asked:
            self._listen()

    def _listen(self) -> None:
        try:
            self._listener = NodeListener(self._meeting.host())
            self._meeting.publish(self._listener.address)
        except Exception as error:  # noqa: BLE001  a store raises anything; counted and warned
            self._may_come = False
            self._warnings.count("nodes_unreachable", f"rank 0 cannot listen for other nodes: {error}")
            return
        while not self._ended.is_set():
            try:
                connection = self._listener.accept()
            except Exception as error:  # noqa: BLE001  the port must stay open; counted and warned
                if not self._ended.wait(LOOK_EVERY):
                    self._warnings.count("connections_lost", error)
                continue
            if self._ended.is_set() or self._n_unknown >= MAX_UNKNOWN:
                connection.close()
            else:
                with self._lock:
                    self._n_unknown += 1
                threading.Thread(
                    target=self._admit, args=(connection,), name="rollout-traces-node", daemon=True
                ).start()

    def _admit(self, connection: NodeConnection) -> None:
        """Serves a connection once it has proved that it has the key."""
        assert self._listener is not None
        with contextlib.closing(connection):
            try:
                connection.authenticate(self._listener.address.key)
            except NodeConnectionError as error:
                self._warnings.count("nodes_refused", error)
                return
            finally:
                with self._lock:
                    self._n_unknown -= 1
            with self._lock:
                self._n_connected += 1
                number = self._n_connected
                self._threads.add(threading.current_thread())
            try:
                self._serve(connection, number)
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

    def _serve(self, connection: NodeConnection, number: int) -> None:
        try:
            kind = None
            while kind != "close" and not self._ended.is_set():
                meta, body = connection.receive()
                connection.send(self._answer(meta, body, number))
                kind = meta.get("kind")
        except Exception as error:  # noqa: BLE001  one node must not take the others along; counted and warned
            if not self._ended.is_set():
                self._warnings.count("connections_lost", str(error))
        finally:
            with self._lock:
                for spool in self._fed_by(number):
                    self._give_up(spool)

    def _answer(self, meta: dict[str, Any], body: bytes, number: int) -> dict[str, Any]:
        kind = meta.get("kind")
        with self._lock:
            if self._ended.is_set():
                raise NodeConnectionError("rank 0 has finished")
            if kind == "alive":
                self._nodes.add(int(meta["node"]))
                spools = {_checked(spool) for spool in meta["spools"]}
                for spool in self._fed_by(number) - spools:
                    self._give_up(spool)
                for spool in spools:
                    self._writer(spool, number).count_waiting()
                return {"time": time.time()}
            if kind == "close":
                return {}
            if kind in ("stored?", "record"):
                spool, name = _checked(meta["spool"]), str(meta["name"])
                if kind == "stored?":
                    return {"stored": self._is_stored(spool, name)}
                return self._take(spool, name, body, number)
            if kind == "live":
                return self._take_live(Piece(str(meta["name"]), int(meta["at"]), body))
        raise NodeConnectionError(
            f"a message of kind {kind!r}: expected alive, record, stored?, live or close"
        )

    def _fed_by(self, number: int) -> set[str]:
        """The spools of a connection; a newer one of the same node takes them over."""
        return {spool for spool, owner in self._connection_of.items() if owner == number}

    def _writer(self, spool: str, number: int) -> SpoolWriter:
        self._connection_of[spool] = max(number, self._connection_of.get(spool, 0))
        if spool not in self._writers:
            self._writers[spool] = SpoolWriter(self._folder.path / spool, self._max_bytes)
        return self._writers[spool]

    def _give_up(self, spool: str) -> None:
        self._connection_of.pop(spool, None)
        writer = self._writers.pop(spool, None)
        if writer is not None:
            writer.close()

    def _take(self, spool: str, name: str, body: bytes, number: int) -> dict[str, Any]:
        """Writes a record, unless it came before over a connection that broke before the answer."""
        if name > self._newest.get(spool, ("", ""))[0]:
            try:
                self._newest[spool] = (name, self._writer(spool, number).append([body]))
            except (SpoolFull, OSError) as error:
                self._warnings.count("records_refused", error)
                with contextlib.suppress(OSError):
                    self._writer(spool, number).count_waiting()
                return {"taken": False, "why": str(error)}
            self._warnings.counters["records_received"] += 1
        return {"taken": True}

    def _take_live(self, piece: Piece) -> dict[str, Any]:
        try:
            return {"size": copy_piece(piece, self._live)}
        except (StoreError, OSError, ValueError) as error:
            self._warnings.count("live_errors", error)
            return {}

    def _is_stored(self, spool: str, name: str) -> bool:
        theirs, ours = self._newest.get(spool, ("", ""))
        if name > theirs:
            return False
        names = SpoolReader(self._folder.path / spool).names()
        return not names or names[0] > ours


def _checked(spool: Any) -> str:
    """A spool's name as another node sends it; it must not lead anywhere else."""
    if not isinstance(spool, str) or safe_name(spool) != spool or not spool.startswith(RANK_SPOOL):
        raise NodeConnectionError(f"spool {spool!r}: not a rank's")
    return spool
