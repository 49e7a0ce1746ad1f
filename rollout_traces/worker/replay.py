"""Knows which records were processed before, by a worker that was stopped, or by this one and then dropped by Trackio.

Which steps were closed with which hand-overs is written before a step is judged, so that a restart never decides again.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from rollout_traces.errors import Warnings
from rollout_traces.model.packed_batch import StepKey
from rollout_traces.model.private_files import FILE_MODE
from rollout_traces.sink.stored import Stored
from rollout_traces.sink.trackio_sink import Token
from rollout_traces.spool.folder import MemorySpool, SpoolReader
from rollout_traces.steps.run_state import StoredStep

Place = tuple[str, str]
"""A record's name, which says when it was handed over, and its spool."""
RecordSource = SpoolReader | MemorySpool
"""A spool as the consumer sees it."""
MOST_REMEMBERED = 1024
"""Closes whose choice is remembered until the store shows it."""


class Replay:
    """The records that are processed again, and what is known of them.

    Args:
        stored: what the store holds.
        closes: which steps were closed, and with what.
        counters: a store that cannot be read is counted here.
    """

    def __init__(self, stored: Stored, closes: CloseLog, counters: Counter[str]) -> None:
        self._stored = stored
        self._closes = closes
        self._warnings = Warnings(counters)
        self._again: set[Place] = set()
        self._chosen: dict[StepKey, frozenset[str]] = {}
        """By step or late part, oldest first: uids of traces that were logged, of which the store lacks some."""

    def send_again(self, places: Iterable[Place]) -> None:
        """Notes records that may have been stored before: their stored rows are not logged again."""
        self._again.update(places)

    def is_again(self, place: Place) -> bool:
        """True while a record may have been stored before."""
        return place in self._again

    def let_go(self, place: Place) -> None:
        """Notes that a record is stored."""
        self._again.discard(place)

    def close_of(self, batch_id: str) -> Close | None:
        """The close that was decided for a hand-over; None when its step is still to be decided."""
        decided = self._closes.of_part(batch_id)
        if decided is None and (stored := self._stored.close_of(batch_id)) is not None:
            return Close(*stored, "stored")
        return decided

    def n_closed(self, step: StepKey) -> int:
        """Counts how often a step was closed before, late parts included."""
        return max(self._closes.n_closed(step), self._stored.n_closed(step))

    def record(self, close: Close) -> None:
        """Writes down that a step is closed, before it is judged.

        Raises:
            OSError: as `CloseLog.record`.
        """
        if self._closes.of_part(close.parts[0]) is None:
            self._closes.record(close)

    def is_complete(self, batch_id: str) -> bool:
        """True when a hand-over's step is stored with all its traces."""
        if batch_id not in self._stored.summarised:
            return False
        return all(uid in self._stored.uids for uid in self._stored.chosen_in_summary(batch_id))

    def stored_step(self, close: Close, *, keeps_summaries: bool, again: bool) -> StoredStep:
        """Looks up what is stored of a step that is closed now.

        Args:
            keeps_summaries: False where the run keeps none: then its totals show that the step was closed.
            again: all its records are processed again.
        """
        key, parts = close.key, close.parts
        if not again and not key.late:
            return StoredStep()
        chosen: dict[str, Any] = {}
        summarised = parts[0] in self._stored.summarised
        if not summarised and not keeps_summaries and again:
            summarised = self._has_totals(key)
        for batch_id in parts:
            chosen |= self._stored.chosen_in_summary(batch_id) if parts[0] in self._stored.summarised else {}
            chosen |= self._stored.rows_of(batch_id)
        taken = self._taken_beside(key) if key.late else set()
        return StoredStep(summarised, chosen, len(taken - set(chosen)))

    def chose(self, key: StepKey, uids: Iterable[str]) -> None:
        """Remembers what became traces of a step, or of a late part, until the store shows it.

        Args:
            uids: of its rollouts that became traces.
        """
        self._chosen.pop(key, None)
        self._chosen[key] = frozenset(uids)
        seen = [step for step, chosen in self._chosen.items() if chosen <= self._stored.uids]
        for step in [*seen, *list(self._chosen)[:-MOST_REMEMBERED]]:
            self._chosen.pop(step, None)

    def _taken_beside(self, key: StepKey) -> set[str]:
        """uids of the traces of a late part's step, those of its own choice before left out."""
        step = key._replace(late=0)
        others = (
            chosen for part, chosen in self._chosen.items() if part != key and part._replace(late=0) == step
        )
        return self._stored.traced_at(key).union(*others)

    def _has_totals(self, key: StepKey) -> bool:
        try:
            return self._stored.has_totals(key.step, key.split)
        except Exception as error:  # noqa: BLE001  the store may be locked or away: better twice than never; counted
            self._warnings.count("store_unreadable", f"was {key} closed before? {error!r}")
            return False


class Close(NamedTuple):
    """One close.

    Attributes:
        key: the step, or the late part of one.
        parts: ids of the hand-overs that it was closed with.
        why: `announced`, `next step`, `attempt`, `flush`, `quiet`, `gone`, `rank silent`, or `stored` when
            only its stored summary shows the close.
        n_joins: joins that it was closed with; None where that is not known.
    """

    key: StepKey
    parts: tuple[str, ...]
    why: str
    n_joins: int | None = None


class CloseLog:
    """The closes of a run's spools, a line each.

    Args:
        path: the file; None keeps them in memory, for a spool that is there too.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._of_part: dict[str, Close] = {}
        self._n_closed: dict[StepKey, int] = {}
        written = path.read_bytes() if path is not None and path.exists() else b""
        self._is_torn = not written.endswith(b"\n") and bool(written)
        for line in written.splitlines():
            close = _read(line)
            if close is not None:
                self._take(close)

    def record(self, close: Close) -> None:
        """Writes a close; a line that was cut off before it does not take it along.

        Raises:
            OSError: the disk refused; the step must stay open.
        """
        if self._path is not None:
            line = orjson.dumps(
                {"step": [*close.key], "parts": close.parts, "why": close.why, "joins": close.n_joins}
            )
            data = b"\n" * self._is_torn + line + b"\n"
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                self._is_torn = os.write(fd, data) < len(data)
            finally:
                os.close(fd)
            if self._is_torn:
                raise OSError(errno.ENOSPC, f"{self._path} has no room for a line")
        self._take(close)

    def of_part(self, batch_id: str) -> Close | None:
        """The close that a hand-over belongs to; None when its step was not closed with it."""
        return self._of_part.get(batch_id)

    def n_closed(self, key: StepKey) -> int:
        """Counts how often a step was closed: once, plus once for each late part."""
        return self._n_closed.get(key._replace(late=0), 0)

    def _take(self, close: Close) -> None:
        self._of_part.update(dict.fromkeys(close.parts, close))
        step = close.key._replace(late=0)
        self._n_closed[step] = max(self._n_closed.get(step, 0), close.key.late + 1)


def _read(line: bytes) -> Close | None:
    """Parses a line; None for a line that was cut off because its writer was killed."""
    try:
        values = orjson.loads(line)
        attempt, step, split, late = values["step"]
        parts: Sequence[str] = values["parts"]
        return Close(StepKey(attempt, step, split, late), tuple(parts), values["why"], values["joins"])
    except (ValueError, KeyError, TypeError):
        return None


class Waiting(NamedTuple):
    """A spool as it was found: whether its owner was gone, and the records that waited in it then, oldest first."""

    source: RecordSource
    owner_is_gone: bool
    names: Sequence[str]


@dataclass(eq=False)
class Consumed:
    """A record that was processed and waits to be seen in the store.

    Attributes:
        source: its spool.
        step: the step that it belongs to and that is still open, or None.
        n_rows: rollouts in it.
        tokens: what was logged for it.
    """

    source: RecordSource
    kind: str
    step: StepKey | None = None
    n_rows: int = 0
    tokens: set[Token] = field(default_factory=set)
