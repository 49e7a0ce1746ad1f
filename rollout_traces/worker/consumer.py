"""Spools -> process -> store: records are processed in order and let go once the store is seen to hold them.

The same loop runs in the worker process and in a thread. A record whose traces, step summary or scalars Trackio
turned out to have dropped is processed again; what is stored already is not logged twice.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollout_traces.sink.trackio_sink import Token, TrackioSink
from rollout_traces.spool.batch_record import ROLLOUTS, batch_from_record
from rollout_traces.spool.record import Record, RecordError
from rollout_traces.spool.run_folder import RANK_SPOOL
from rollout_traces.steps.processor import StepProcessor
from rollout_traces.worker.rank_merge import Held, RankMerger

log = logging.getLogger(__name__)

CONFIRM_EVERY = 0.25
"""Seconds between two looks at the store while something waits to be seen there."""
MAX_UNCONFIRMED = 1000
"""Traces and scalars that may be logged and not yet seen in the store."""
TURN = 0.5
"""Seconds of processing after which the store is looked at again."""
MAX_BACKOFF = 30.0
"""Seconds between two attempts to store what Trackio dropped, at most."""


Place = tuple[str, str]
"""A record's name, which says when it was handed over, and its spool."""


class RecordSource(Protocol):
    """A spool as the loop sees it."""

    @property
    def spool(self) -> str: ...

    @property
    def owner_is_gone(self) -> bool: ...

    def names(self) -> list[str]: ...

    def read(self, name: str) -> Record: ...

    def remove(self, name: str) -> None: ...

    def set_aside(self, name: str) -> Any: ...


@dataclass(eq=False)
class Consumed:
    """A record that was processed and waits to be seen in the store.

    Attributes:
        reader: its spool.
        kind: its kind.
        batch_id: the hand-over it belongs to, or None.
        n_rows: rollouts in it.
        tokens: what was logged for it.
        step_is_open: its step summary is still to come.
    """

    reader: RecordSource
    kind: str
    batch_id: str | None = None
    n_rows: int = 0
    tokens: set[Token] = field(default_factory=set)
    step_is_open: bool = False


class SpoolConsumer:
    """Processes spools.

    Args:
        readers: gives the spools there are now.
        make_processor: builds a fresh `StepProcessor` that writes to `sink`.
        sink: where it goes.
        counters: counts by name.
        publish: called before a flush is answered, to say the counters.
    """

    def __init__(
        self,
        readers: Callable[[], Sequence[RecordSource]],
        make_processor: Callable[[], StepProcessor],
        sink: TrackioSink,
        counters: Counter[str],
        publish: Callable[[], None] = lambda: None,
    ) -> None:
        self._readers = readers
        self._publish = publish
        self._make_processor = make_processor
        self._processor = make_processor()
        self.sink = sink
        self.counters = counters
        self._consumed: dict[Place, Consumed] = {}
        self._gather: RankMerger[tuple[Place, RecordSource, Record]] = RankMerger()
        self._again: set[Place] = {place for place, _ in self._records()}
        self._sends_again = True
        self._looked_at = 0.0
        self._failures = 0
        self._not_before = 0.0

    @property
    def n_waiting(self) -> int:
        """Records that are not seen in the store yet."""
        return sum(len(reader.names()) for reader in self._readers())

    def turn(self) -> bool:
        """Does what there is to do now.

        Returns:
            False when there was nothing.
        """
        if time.monotonic() < self._not_before or not self._ready_to_send_again():
            return False
        moved = self._process_new()
        readers = self._readers()
        if all(reader.owner_is_gone for reader in readers):
            moved = self._close_steps() or moved
        if self._consumed and time.monotonic() - self._looked_at >= CONFIRM_EVERY:
            moved = self._confirm() or moved
        return moved

    def _ready_to_send_again(self) -> bool:
        if not self._sends_again:
            return True
        try:
            if not self.sink.settle():
                return False
            self.sink.stored.reload()
        except Exception as error:  # noqa: BLE001  the store may be locked or away; tried again, counted
            self._back_off("store_unreadable", error)
            return False
        self._sends_again = False
        self._processor = self._make_processor()
        return True

    def _process_new(self) -> bool:
        started = time.monotonic()
        moved = False
        blocked: set[str] = set()
        n_unconfirmed = self._n_unconfirmed()
        for place, reader in self._records():
            if place in self._consumed or reader.spool in blocked:
                continue
            if time.monotonic() - started > TURN or n_unconfirmed >= MAX_UNCONFIRMED:
                break
            if reader.spool in self._gather:
                blocked.add(reader.spool)
                continue
            moved = self._process_next(place, reader) or moved
            if place in self._consumed:
                n_unconfirmed += len(self._consumed[place].tokens)
        while together := self._gather.take_ready(self._living_ranks()):
            self._process_together(together)
            moved = True
        return moved

    def _living_ranks(self) -> dict[str, bool]:
        """Spools of living ranks -> True when one asks for a flush."""
        ranks = [reader for reader in self._readers() if reader.spool.startswith(RANK_SPOOL)]
        waiting = {reader.spool: reader.names() for reader in ranks}
        return {
            reader.spool: self._asks_for_a_flush(reader, waiting[reader.spool])
            for reader in ranks
            if waiting[reader.spool] or not reader.owner_is_gone
        }

    def _asks_for_a_flush(self, reader: RecordSource, names: Sequence[str]) -> bool:
        if reader.spool not in self._gather:
            return False
        for name in names[-1:]:
            try:
                return reader.read(name).kind in ("flush", "finish")
            except (RecordError, FileNotFoundError):
                return False
        return False

    def _records(self) -> list[tuple[Place, RecordSource]]:
        """All waiting records, in the order handed over."""
        found = [((name, reader.spool), reader) for reader in self._readers() for name in reader.names()]
        return sorted(found, key=lambda item: item[0])

    def _n_unconfirmed(self) -> int:
        logged = (token for item in self._consumed.values() for token in item.tokens)
        return sum(not self.sink.is_stored(token) for token in logged)

    def _process_next(self, place: Place, reader: RecordSource) -> bool:
        """Processes a record, or has it wait for those of other ranks.

        Returns:
            False when it has to wait.
        """
        try:
            record = reader.read(place[0])
        except FileNotFoundError:
            return True
        except RecordError as error:
            self.counters["records_damaged"] += 1
            log.warning("a record cannot be read and is set aside: %s", error)
            reader.set_aside(place[0])
            return True
        if record.kind == ROLLOUTS and record.meta.get("n_ranks", 1) > 1:
            held = Held(record.meta["step"], record.meta["split"], (place, reader, record))
            self._gather.hold(reader.spool, held)
            return False
        self._process_together([(place, reader, record)])
        return True

    def _process_together(self, items: Sequence[tuple[Place, RecordSource, Record]]) -> None:
        """Processes one record, or the hand-overs of several ranks that share a selection."""
        self.sink.sending_again = any(place in self._again for place, _, _ in items)
        try:
            self._process([record for _, _, record in items])
        except Exception as error:
            self.counters["process_errors"] += 1
            log.warning("a record could not be processed and is set aside: %r", error, exc_info=True)
            for place, reader, _ in items:
                reader.set_aside(place[0])
            return
        finally:
            tokens = self.sink.take_logged()
        for place, reader, record in items:
            n_rows = len(record.arrays["lengths"]) if record.kind == ROLLOUTS else 0
            batch_id = record.meta.get("batch_id")
            self._consumed[place] = Consumed(reader, record.kind, batch_id, n_rows, set(tokens))
        self._settle_steps(tokens)

    def _process(self, records: Sequence[Record]) -> None:
        record = records[0]
        if record.kind == ROLLOUTS:
            batches = [batch_from_record(one) for one in records]
            self._processor.process(batches, record.meta.get("await_join", ()))
        elif record.kind == "join":
            tracks = {key[len("track/") :]: a for key, a in record.arrays.items() if key.startswith("track/")}
            floats = {key[len("row/") :]: a for key, a in record.arrays.items() if key.startswith("row/")}
            self._processor.join(record.meta["batch_id"], tracks, floats)
        elif record.kind == "scalars":
            self._log_scalars(record.meta["scalars"], record.meta["step"])
        elif record.kind == "close":
            self._processor.close_step(record.meta["step"], record.meta["split"])
        elif record.kind in ("flush", "finish"):
            self._processor.close_steps()

    def _log_scalars(self, scalars: Mapping[str, Any], step: int) -> None:
        left_out = self.sink.log_scalars(scalars, step=step)
        if left_out:
            self.counters["scalar_values_left_out"] += len(left_out)
            log.info("step %d: no finite number, left out: %s", step, ", ".join(left_out))

    def _close_steps(self) -> bool:
        """Writes what open steps still owe, once nobody is left to hand anything over."""
        if not any(item.step_is_open for item in self._consumed.values()):
            return False
        self._processor.close_steps()
        self._settle_steps(self.sink.take_logged())
        return True

    def _settle_steps(self, tokens: set[Token]) -> None:
        """Notes which steps are open; what a step that closed just now logged is waited for by its records."""
        for item in self._consumed.values():
            if item.batch_id is None:
                continue
            is_open = self._processor.is_open(item.batch_id)
            if item.step_is_open and not is_open:
                item.tokens |= tokens
            item.step_is_open = is_open

    def _confirm(self) -> bool:
        """Lets go of what is stored, and has processed again what turned out to be dropped."""
        self._looked_at = time.monotonic()
        try:
            idle = self.sink.idle()
            self.sink.stored.refresh()
        except Exception as error:  # noqa: BLE001  the store may be locked or away; tried again, counted
            self._back_off("store_unreadable", error)
            return False
        gone = [
            place
            for place, item in self._consumed.items()
            if not item.step_is_open and all(map(self.sink.is_stored, item.tokens))
        ]
        self._let_go(self._without_early_flushes(gone))
        if idle and self._n_unconfirmed():
            self._send_again()
        return bool(gone)

    def _without_early_flushes(self, places: Sequence[Place]) -> list[Place]:
        """A `flush` stays until what came before it in its spool is stored: it has to close those steps again."""
        left = set(self._consumed) - set(places)
        first_left: dict[str, str] = {}
        for name, spool in left:
            if self._consumed[(name, spool)].kind not in ("flush", "finish"):
                first_left[spool] = min(name, first_left.get(spool, name))
        return [
            (name, spool)
            for name, spool in places
            if self._consumed[(name, spool)].kind not in ("flush", "finish")
            or spool not in first_left
            or name < first_left[spool]
        ]

    def _let_go(self, places: Sequence[Place]) -> None:
        """Counts, says and removes what is stored, in this order: whoever sees a record gone sees it counted."""
        items = {place: self._consumed.pop(place) for place in places}
        for place, item in items.items():
            self._count_stored(item)
            self._again.discard(place)
            self.sink.stored.scalars.difference_update(t for t in item.tokens if isinstance(t, int))
            self._failures = 0
        if any(item.kind in ("flush", "finish") for item in items.values()):
            self._publish()
        for place, item in items.items():
            item.reader.remove(place[0])

    def _count_stored(self, item: Consumed) -> None:
        if item.kind != ROLLOUTS:
            self.counters[f"{item.kind}_stored"] += 1
            return
        own = [token for token in item.tokens if str(token).startswith(f"{item.batch_id}-")]
        digest = f"{item.batch_id}-digest"
        self.counters["rollouts_stored"] += item.n_rows
        self.counters["traces_stored"] += len(own) - (digest in own)
        self.counters["step_summaries_stored"] += digest in own

    def _send_again(self) -> None:
        """Forgets what was processed and not seen stored; it is processed anew."""
        lost = RuntimeError(f"Trackio dropped {self._n_unconfirmed()} entries; they are sent again")
        self._again |= set(self._consumed)
        self._consumed.clear()
        self._gather.clear()
        self._sends_again = True
        self._back_off("sent_again", lost)

    def _back_off(self, counter: str, error: Exception) -> None:
        self.counters[counter] += 1
        pause = min(2.0**self._failures * CONFIRM_EVERY, MAX_BACKOFF)
        self._failures = min(self._failures + 1, 10)
        self._not_before = time.monotonic() + pause
        if self.counters[counter] in (1, 10, 100) or self.counters[counter] % 1000 == 0:
            log.warning(
                "%s (%d so far), next attempt in %.1f s: %s", counter, self.counters[counter], pause, error
            )
