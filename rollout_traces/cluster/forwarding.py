"""Sends the records of another node's ranks to rank 0's spools, their spans of time put on rank 0's clock.

One rank of each such node sends for all of its ranks. A record leaves its own spool when rank 0 has it in a
spool; a `flush` or `finish` leaves when rank 0's worker has stored it, so that whoever waits for it waits for that.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollout_traces.cluster.connection import EVERY, LiveTail, NodeAddress, NodeConnection
from rollout_traces.cluster.rendezvous import NodeMeeting
from rollout_traces.errors import Warnings
from rollout_traces.model.names import node_name
from rollout_traces.model.spans import OF_TIME
from rollout_traces.spool.folder import SpoolReader
from rollout_traces.spool.record import ROLLOUTS, Record, RecordError, decode, encode, n_bytes_of
from rollout_traces.spool.run_folder import RunFolder

PAUSE = 0.05
"""Seconds between two looks at the spools."""
BEAT = 2.0
"""Seconds between two messages that show rank 0 that this node is alive."""
MAX_BACKOFF = 30.0
"""Seconds between two attempts to connect, or to send what was refused, at most."""


class NodeForwarder:
    """Sends a node's spools to rank 0, on a thread.

    Args:
        folder: the node's own folder.
        meeting: where rank 0 publishes its address.
        warnings: where what happens is counted.
    """

    def __init__(self, folder: RunFolder, meeting: NodeMeeting, warnings: Warnings) -> None:
        self._folder = folder
        self._meeting = meeting
        self._node = 0
        self._clock = NodeClock(node_name())
        self._address: NodeAddress | None = None
        self._warnings = warnings
        self._ended = threading.Event()
        self._closing = threading.Event()
        self._refused: dict[str, tuple[float, float]] = {}
        self._waited_for: set[tuple[str, str]] = set()
        self._alive_at = self._looked_live = 0.0
        self._live = LiveTail(folder.live)
        self._thread = threading.Thread(target=self._run, name="rollout-traces-sender", daemon=True)

    def _connect(self) -> NodeConnection:
        self._node = self._node or self._meeting.ask()
        self._address = self._address or self._meeting.wait_for_address()
        return NodeConnection.connect(self._address)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Lets the thread end once the other ranks of the node have, and nothing waits.

        Args:
            timeout: seconds after which it ends anyway; what waits stays in the node's spools.
        """
        deadline = time.monotonic() + timeout
        self._closing.set()
        while self._thread.is_alive() and not self._folder.is_done() and time.monotonic() < deadline:
            time.sleep(PAUSE)
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(max(deadline - time.monotonic(), 1.0))

    def _run(self) -> None:
        failures = 0
        while not self._ended.is_set():
            try:
                with contextlib.closing(self._connect()) as link:
                    failures = 0
                    self._serve(link)
            except Exception as error:  # noqa: BLE001  the thread must go on: a store raises anything
                self._warnings.count("connections_lost", f"{error}; records wait on this node")
                failures += 1
                self._ended.wait(min(2.0**failures / 4, MAX_BACKOFF))

    def _serve(self, link: NodeConnection) -> None:
        self._send_alive(link)
        while not self._ended.is_set():
            moved = self._send_waiting(link)
            if time.monotonic() - self._alive_at >= BEAT:
                self._send_alive(link)
            if time.monotonic() - self._looked_live >= EVERY:
                self._send_live(link)
            if not moved:
                self._ended.wait(PAUSE)
        self._send_live(link)
        self._send_alive(link)
        link.ask({"kind": "close"})

    def _send_alive(self, link: NodeConnection) -> None:
        living = [
            reader.spool for reader in self._folder.readers() if reader.names() or not reader.owner_is_gone
        ]
        self._clock.ask(link, {"kind": "alive", "node": self._node, "spools": living})
        self._alive_at = time.monotonic()

    def _send_live(self, link: NodeConnection) -> None:
        """Sends what is new of the node's rollouts in flight."""
        for piece in self._live.pieces():
            answer = link.ask({"kind": "live", "name": piece.name, "at": piece.at}, piece.data)
            self._live.sent(piece, int(answer.get("size", 0)))
        self._looked_live = time.monotonic()

    def _send_waiting(self, link: NodeConnection) -> bool:
        """Sends the records that wait, oldest first.

        Returns:
            True when one was sent.
        """
        found = [(name, reader) for reader in self._folder.readers() for name in reader.names()]
        moved = False
        for name, reader in sorted(found, key=lambda item: item[0]):
            if self._ended.is_set() or time.monotonic() - self._alive_at >= BEAT:
                break
            if (reader.spool, name) in self._waited_for:
                self._let_go_if_stored(link, reader, name)
            elif not self._rests(reader.spool):
                if self._send(link, reader, name):
                    self._refused.pop(reader.spool, None)
                    moved = True
                else:
                    self._rest(reader.spool)
        return moved

    def _rest(self, spool: str) -> None:
        """Leaves a spool alone for a while, twice as long as the last time: rank 0 has no room."""
        _, last = self._refused.get(spool, (0.0, 0.0))
        self._refused[spool] = (time.monotonic(), min(2 * last, MAX_BACKOFF) or BEAT)

    def _rests(self, spool: str) -> bool:
        refused_at, pause = self._refused.get(spool, (0.0, 0.0))
        if self._closing.is_set():
            pause = min(pause, BEAT)
        return time.monotonic() - refused_at < pause

    def _send(self, link: NodeConnection, reader: SpoolReader, name: str) -> bool:
        """Sends a record; False when rank 0 has no room for it."""
        try:
            data = reader.read_bytes(name)
            record = decode(data)
        except FileNotFoundError:
            return True
        except RecordError as error:
            self._warnings.count("records_damaged", error)
            reader.set_aside(name)
            return True
        right = self._clock.put_right(record)
        if right is record:
            body = data[: n_bytes_of(data)]
        else:
            self._warnings.count("clocks_apart", self._clock.said)
            body = b"".join(encode(right))
        answer = link.ask({"kind": "record", "spool": reader.spool, "name": name}, body)
        if not answer.get("taken"):
            self._warnings.count("records_refused", answer.get("why"))
            return False
        self._warnings.counters["records_sent"] += 1
        if record.kind in ("flush", "finish"):
            self._waited_for.add((reader.spool, name))
        else:
            reader.remove(name)
        return True

    def _let_go_if_stored(self, link: NodeConnection, reader: SpoolReader, name: str) -> None:
        if link.ask({"kind": "stored?", "spool": reader.spool, "name": name}).get("stored"):
            self._waited_for.discard((reader.spool, name))
            with contextlib.suppress(FileNotFoundError):
                reader.remove(name)


AGREE = 0.1
"""Seconds by which the clocks of two nodes may differ: those that a network keeps in step differ by less."""


class NodeClock:
    """This node's clock, as far as rank 0's answers tell.

    Args:
        node: this node's name.

    Attributes:
        behind: seconds by which it is behind rank 0's; 0 where they agree.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self.behind = 0.0

    @property
    def said(self) -> str:
        """The note of a step whose spans were put right."""
        way = "behind" if self.behind > 0 else "ahead of"
        return (
            f"{OF_TIME} of node {self._node}: its clock is {abs(self.behind):.1f} s {way} rank 0's; "
            "they are put right by that."
        )

    def ask(self, link: NodeConnection, message: dict[str, Any]) -> None:
        """Sends a message, and compares the clock with the time that the answer gives."""
        sent, began = time.time(), time.monotonic()
        answer = link.ask(message)
        took = time.monotonic() - began
        if isinstance(theirs := answer.get("time"), float):
            behind = theirs - sent - took / 2
            self.behind = behind if abs(behind) > AGREE + took else 0.0

    def put_right(self, record: Record) -> Record:
        """A record with its spans of time on rank 0's clock; the same where they are, or where it has none."""
        lists = record.meta.get("row_lists") or {}
        if not self.behind or record.kind != ROLLOUTS or not lists.get("timings"):
            return record
        timings = [_moved(row, self.behind) for row in lists["timings"]]
        notes = [*record.meta.get("notes", ()), self.said]
        return replace(
            record, meta={**record.meta, "row_lists": {**lists, "timings": timings}, "notes": notes}
        )


def _moved(value: Any, seconds: float) -> Any:
    """A row's spans, or its seconds with their `start`; what is no time is left as it came."""
    if isinstance(value, list):
        return [_moved(span, seconds) for span in value]
    if not isinstance(value, Mapping):
        return value
    times = {
        key: at + seconds
        for key in ("start", "end")
        if isinstance(at := value.get(key), (int, float)) and not isinstance(at, bool)
    }
    return {**value, **times}
