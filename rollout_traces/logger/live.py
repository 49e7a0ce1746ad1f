"""Rollouts in flight: what a training loop says of each, and the thread that appends it to a file.

The calling thread puts an update into a bounded queue and goes on. What has no room there is dropped and counted.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rollout_traces.errors import Warnings
from rollout_traces.model import private_files
from rollout_traces.model.live_lines import (
    ENDED,
    MAX_BYTES,
    MAX_NAME,
    MAX_TEXT,
    STAGES,
    SUFFIX,
    InFlight,
    LiveFile,
    LivePlace,
    line_of,
)
from rollout_traces.model.text import encodable, fresh_name
from rollout_traces.model.units import KB

MAX_QUEUED = 10_000
"""Updates that may wait for the thread; ends of rollouts, twice as many."""
MAX_IN_FLIGHT = 8192
"""Rollouts in flight of one process; with more the oldest is taken for one that nobody ends, and counted."""
NEVER_ENDED = "never ended"
ENDED_KEPT = 256
"""Ended rollouts that a file keeps when it is written anew."""
PAUSE = 0.25
"""Seconds between two looks at the queue."""
BEAT = 2.0
"""Seconds after which a writer with rollouts in flight says that it lives."""
PIECE = 64 * KB
"""Bytes that are appended at once."""
FULL, ANEW, EARLIER = 0.45, 0.30, 0.25
"""Shares of a run's bytes: a file that is written anew, what it then holds, files of earlier processes."""
SHORT_TEXT = 40
"""Characters of a text where a file would not hold all rollouts in flight otherwise."""


class LiveRollout:
    """One rollout in flight; as a context manager it ends with the block, aborted where that raises.

    Nothing here raises or waits; 50 us a call at most.

    Attributes:
        id: unique in the run. As `extras={"live": [...]}` of the batch it leads from here to the stored rollout.
    """

    __slots__ = ("_ended", "_writer", "id")

    def __init__(self, key: str, writer: LiveWriter | None) -> None:
        self.id = key
        self._writer = writer
        self._ended = writer is None

    def stage(
        self,
        stage: str,
        detail: str | None = None,
        *,
        turns: int | None = None,
        tokens: int | None = None,
        words: str | None = None,
    ) -> None:
        """Says which stage it is in, or how far it has come in the same one.

        Args:
            stage: `queued`, `booting`, `sampling`, `tool`, `scoring`, `done` or `aborted`; the last two end it.
            detail: what the stage is about: the tool's name, why it was aborted.
            turns: assistant turns so far.
            tokens: tokens sampled so far.
            words: what was written last; its end is kept.
        """
        if self._ended or self._writer is None:
            return
        self._ended = stage in ENDED
        said = words[-MAX_TEXT:] if isinstance(words, str) else None
        values = {"stage": stage, "detail": detail, "turns": turns, "tokens": tokens, "words": said}
        self._writer.put(self.id, values, is_end=self._ended)

    def __enter__(self) -> LiveRollout:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stage("done") if kind is None else self.stage("aborted", kind.__name__)


NOT_LIVE = LiveRollout("", None)
"""A rollout that nothing is said of."""


class LiveWriter:
    """Appends what is said of a process's rollouts in flight to one file, on a thread.

    Args:
        place: where.
        node: this node's name.
        warnings: where what happens is counted: `live_dropped`, `live_refused`, `live_forgotten`, `live_errors`.
        rank: this process's, among `n_ranks`.
        n_ranks: processes that share the run's bytes.
        says_texts: False leaves prompts and words out, as where a hook redacts.

    """

    def __init__(
        self,
        place: LivePlace,
        node: str,
        warnings: Warnings,
        *,
        rank: int = 0,
        n_ranks: int = 1,
        says_texts: bool = True,
    ) -> None:
        token = fresh_name()
        kept = "".join(c for c in node if c.isalnum() or c in "-_")[:MAX_NAME] or "node"
        self.path = place.folder / f"{kept}-{rank}-{token}{SUFFIX}"
        self._head = {"live": 1, "project": place.project, "run": place.run, "run_id": place.run_id}
        self._head |= {"node": node, "rank": rank, "pid": os.getpid(), "texts": says_texts}
        self._place = place
        self._others = int(MAX_BYTES * (EARLIER + (FULL + ANEW) * (n_ranks - 1) / n_ranks))
        self._full, self._anew = (int(MAX_BYTES * share / n_ranks) for share in (FULL, ANEW))
        self._warnings = warnings
        self._says_texts = says_texts
        self._pid = os.getpid()
        self._names = (f"{token}-{number}" for number in itertools.count(1))
        self._queue: deque[tuple[str, float, dict[str, Any]]] = deque()
        self._state = LiveFile(stages_kept=1)
        self._in_flight: dict[str, None] = {}
        self._size, self._beat_at, self._is_torn = 0, 0.0, False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollout-traces-live", daemon=True)
        self._thread.start()
        _close_at_exit(self)

    def begin(self, values: Mapping[str, Any]) -> LiveRollout:
        """Begins a rollout, in the stage `queued`."""
        key = next(self._names)
        self.put(key, {"stage": "queued", "begun": time.time(), **values})
        return LiveRollout(key, self)

    def put(self, key: str, values: dict[str, Any], *, is_end: bool = False) -> None:
        """Takes an update of a rollout, and drops it where the queue is full."""
        if len(self._queue) >= MAX_QUEUED * (1 + is_end) or self._stopped.is_set():
            self._warnings.counters["live_dropped"] += 1
        elif os.getpid() == self._pid:
            self._queue.append((key, time.time(), values))

    def close(self, timeout: float = 2.0) -> None:
        """Writes what waits, and says that nothing more comes."""
        if self._stopped.is_set() or os.getpid() != self._pid:
            return
        self._stopped.set()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._contained(self._end)

    def _run(self) -> None:
        self._contained(self._open)
        while not self._stopped.wait(PAUSE):
            self._contained(self._write_waiting)

    def _contained(self, work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  the thread must go on; counted and warned
            self._is_torn = True
            self._warnings.count("live_errors", error)

    def _open(self) -> None:
        private_files.take_folder(self._place.folder, self._place.top)
        remove_oldest(self._place.folder, self._others)
        self._write_anew()

    def _end(self) -> None:
        self._write_waiting()
        if self._size > self._anew:
            self._write_anew()
        self._append(line_of({"beat": time.time(), "finished": True}))

    def _write_waiting(self) -> None:
        lines = self._take_waiting()
        now = time.time()
        if not lines and (not self._in_flight or now - self._beat_at < BEAT):
            return
        self._beat_at = now
        for piece in _pieces([*lines, line_of({"beat": now})]):
            self._append(piece)

    def _take_waiting(self) -> list[bytes]:
        """The waiting updates as lines; what is said of the same stage of a rollout is one."""
        found: list[dict[str, Any]] = []
        last: dict[str, dict[str, Any]] = {}
        for _ in range(len(self._queue)):
            key, at, values = self._queue.popleft()
            line = self._line(key, at, values)
            if line is None:
                continue
            while len(self._in_flight) > MAX_IN_FLIGHT:
                oldest = next(iter(self._in_flight))
                del self._in_flight[oldest]
                found.append({"id": oldest, "at": at, "stage": "aborted", "detail": NEVER_ENDED})
                self._warnings.counters["live_forgotten"] += 1
            before = last.get(key)
            if before is not None and _is_same_stage(before, line):
                before.update({"since": before.get("since", before["at"]), **line})
            else:
                last[key] = line
                found.append(line)
        return [line_of(line) for line in found]

    def _line(self, key: str, at: float, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """An update as plain values; None where it cannot be understood, or nobody began or still follows its rollout."""
        try:
            line = _plain(values, self._says_texts)
        except Exception as error:  # noqa: BLE001  whatever was given; counted and warned
            self._warnings.count("live_refused", error)
            return None
        if "begun" in line:
            self._in_flight[key] = None
        if key not in self._in_flight:
            return None
        if line["stage"] in ENDED:
            del self._in_flight[key]
        return {"id": key, "at": at, **line}

    def _append(self, piece: bytes) -> None:
        self._state.feed(piece)
        if self._size + len(piece) > self._full:
            self._write_anew()
            return
        data = b"\n" + piece if self._is_torn else piece
        fd = private_files.open_file(self.path, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(fd, "ab", buffering=0) as file:
            self._is_torn = file.write(data) != len(data)
        self._size += len(data)

    def _write_anew(self) -> None:
        """Writes the file with what is in flight and what ended last; where that is too much, the oldest go."""
        ended = [each for each in self._state.rollouts.values() if each.has_ended]
        kept = [each for each in self._state.rollouts.values() if not each.has_ended] + ended[-ENDED_KEPT:]
        kept.sort(key=lambda each: each.at)
        lines = [each.as_line() for each in kept]
        if sum(map(len, lines)) > self._anew:
            lines = [_short(each) for each in kept]
        first, left = len(lines), self._anew
        while first and left >= len(lines[first - 1]):
            first -= 1
            left -= len(lines[first])
        for each in kept[:first]:
            self._in_flight.pop(each.id, None)
        if first:
            self._warnings.count("live_forgotten", "more rollouts in flight than their file holds", first)
        data = b"".join([line_of(self._head), *lines[first:], line_of({"beat": time.time()})])
        private_files.replace_file(self.path, data)
        self._size, self._is_torn = len(data), False
        self._state = LiveFile(stages_kept=1)
        self._state.feed(data)


def remove_oldest(folder: Path, most: int) -> None:
    """Removes the oldest live files of a folder until those that stay take no more than so many bytes."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            found.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most:
            return
        path.unlink(missing_ok=True)
        total -= size


def _plain(values: Mapping[str, Any], says_texts: bool) -> dict[str, Any]:
    """Makes a line for JSON of the values that were given, long texts cut; those that are None are left out."""
    stage = values["stage"]
    if stage not in STAGES:
        raise ValueError(f"stage: seen {stage!r:.80}. Expected one of {', '.join(STAGES)}.")
    line: dict[str, Any] = {"stage": stage}
    for name, value in values.items():
        if value is None or name == "stage" or (name in ("prompt", "words") and not says_texts):
            continue
        if name in ("turns", "tokens", "step"):
            line[name] = int(value)
        elif name == "begun":
            line[name] = float(value)
        else:
            line[name] = encodable(str(value)[: MAX_TEXT if name in ("prompt", "words") else MAX_NAME])
    return line


def _is_same_stage(before: Mapping[str, Any], line: Mapping[str, Any]) -> bool:
    return (before["stage"], before.get("detail")) == (line["stage"], line.get("detail"))


def _short(rollout: InFlight) -> bytes:
    rollout.prompt = rollout.prompt and rollout.prompt[:SHORT_TEXT]
    rollout.words = rollout.words and rollout.words[-SHORT_TEXT:]
    return rollout.as_line()


def _pieces(lines: Sequence[bytes]) -> list[bytes]:
    """Lines joined to pieces of about `PIECE` bytes."""
    found, piece, size = [], [], 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= PIECE:
            found.append(b"".join(piece))
            piece, size = [], 0
    return [*found, b"".join(piece)] if piece else found


def _close_at_exit(writer: LiveWriter) -> None:
    """Sees to it that what was said last is written also where a script ends without `finish`."""
    known = weakref.ref(writer)

    def close() -> None:
        alive = known()
        if alive is not None:
            alive.close()

    atexit.register(close)
