"""Rank 0's side of the lines to other nodes: what they send becomes spools beside its own.

From there on nothing is different: the worker reads the spools of all ranks, makes one selection with one cap,
and waits for no rank whose line is lost.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from rollout_traces.capture.hand_over import Warnings
from rollout_traces.cluster.connection import NodeConnection, NodeConnectionError
from rollout_traces.spool.folder import SpoolFull, SpoolReader, SpoolWriter
from rollout_traces.spool.run_folder import RANK_SPOOL, RunFolder, safe_name

LOOK_EVERY = 1.0
"""Seconds between two looks for another node that wants a line."""


class NodeReceiver:
    """Takes records from other nodes, on a thread a node.

    Args:
        folder: the run's folder.
        n_asked: how many lines were asked for so far.
        accept: makes the line of a number, from 1.
        max_bytes: bytes that may wait in one rank's spool.
        warnings: where what happens is counted.
    """

    def __init__(
        self,
        folder: RunFolder,
        n_asked: Callable[[], int],
        accept: Callable[[int], NodeConnection],
        max_bytes: int,
        warnings: Warnings,
    ) -> None:
        self._folder = folder
        self._n_asked = n_asked
        self._accept = accept
        self._max_bytes = max_bytes
        self._warnings = warnings
        self._lock = threading.Lock()
        self._writers: dict[str, SpoolWriter] = {}
        self._line_of: dict[str, int] = {}
        self._newest: dict[str, tuple[str, str]] = {}
        self._lines: list[threading.Thread] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="rollout-traces-nodes", daemon=True)

    @property
    def has_lines(self) -> bool:
        """True once another node asked for a line."""
        return bool(self._lines)

    def start(self) -> None:
        """Starts to look for nodes."""
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Waits for the nodes that have not said goodbye, and takes no more.

        Args:
            timeout: seconds to wait at most; what they hold then stays with them.
        """
        deadline = time.monotonic() + timeout
        for line in list(self._lines):
            line.join(max(deadline - time.monotonic(), 0.0))
        if any(line.is_alive() for line in self._lines):
            self._warnings.count("nodes_left", "another node has not finished; what it holds stays there")
        self._ended.set()
        with self._lock:
            for spool in list(self._writers):
                self._give_up(spool)

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY):
            try:
                n_asked = self._n_asked()
            except Exception as error:  # noqa: BLE001  the store may be gone: there are no new nodes then; counted
                self._warnings.count("nodes_unheard", error)
                return
            while len(self._lines) < n_asked:
                number = len(self._lines) + 1
                line = threading.Thread(
                    target=self._serve, args=(number,), name=f"rollout-traces-node-{number}", daemon=True
                )
                self._lines.append(line)
                line.start()

    def _serve(self, number: int) -> None:
        try:
            with contextlib.closing(self._accept(number)) as link:
                self._talk(link, number)
        except Exception as error:  # noqa: BLE001  one node must not take the others along; counted and warned
            if not self._ended.is_set():
                self._warnings.count("links_lost", str(error))
        finally:
            with self._lock:
                for spool in self._fed_by(number):
                    self._give_up(spool)

    def _talk(self, link: NodeConnection, number: int) -> None:
        said = None
        while said != "bye" and not self._ended.is_set():
            meta, body = link.receive()
            link.send(self._answer(meta, body, number))
            said = meta.get("say")

    def _answer(self, meta: dict[str, Any], body: memoryview, number: int) -> dict[str, Any]:
        say = meta.get("say")
        with self._lock:
            if self._ended.is_set():
                raise NodeConnectionError("rank 0 has finished")
            if say == "here":
                self._keep_only({_checked(spool) for spool in meta["spools"]}, number)
                return {}
            if say == "bye":
                return {}
            spool, name = _checked(meta["spool"]), str(meta["name"])
            if say == "stored?":
                return {"stored": self._is_stored(spool, name)}
            if say == "record":
                return self._take(spool, name, body, number)
        raise NodeConnectionError(f"a message {say!r} is not understood")

    def _keep_only(self, spools: set[str], number: int) -> None:
        for spool in self._fed_by(number) - spools:
            self._give_up(spool)
        for spool in spools:
            self._writer(spool, number).count_waiting()

    def _fed_by(self, number: int) -> set[str]:
        """The spools of a line; a newer line of the same node takes them over."""
        return {spool for spool, line in self._line_of.items() if line == number}

    def _writer(self, spool: str, number: int) -> SpoolWriter:
        self._line_of[spool] = max(number, self._line_of.get(spool, 0))
        if spool not in self._writers:
            self._writers[spool] = SpoolWriter(self._folder.path / spool, self._max_bytes)
        return self._writers[spool]

    def _give_up(self, spool: str) -> None:
        self._line_of.pop(spool, None)
        writer = self._writers.pop(spool, None)
        if writer is not None:
            writer.close()

    def _take(self, spool: str, name: str, body: memoryview, number: int) -> dict[str, Any]:
        """Writes a record, unless it came before over a line that broke before the answer."""
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

    def _is_stored(self, spool: str, name: str) -> bool:
        theirs, ours = self._newest.get(spool, ("", ""))
        if name > theirs:
            return False
        names = SpoolReader(self._folder.path / spool).names()
        return not names or names[0] > ours


def _checked(spool: Any) -> str:
    """A spool's name as another node says it; it must not lead anywhere else."""
    if not isinstance(spool, str) or safe_name(spool) != spool or not spool.startswith(RANK_SPOOL):
        raise NodeConnectionError(f"spool {spool!r}: not a rank's")
    return spool
