"""Spools to store: records are processed in order, and removed once the store is seen to hold them.

The same loop runs in the worker process and in a thread. A record whose traces, step summary or scalars Trackio
dropped is processed again; what is already stored is not logged twice.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout_traces.errors import Warnings
from rollout_traces.model.packed_batch import StepKey
from rollout_traces.sink.trackio_sink import Token, TrackioSink
from rollout_traces.spool.record import ROLLOUTS, Record, RecordError, batch_from_record
from rollout_traces.spool.run_folder import RANK_SPOOL
from rollout_traces.steps.processor import StepProcessor
from rollout_traces.worker.closing import CloseRules, Due, Handed
from rollout_traces.worker.priority import CalledAway, stay
from rollout_traces.worker.replay import Close, CloseLog, Consumed, Place, RecordSource, Replay, Waiting

log = logging.getLogger(__name__)

CONFIRM_EVERY = 0.25
"""Seconds between two looks at the store while something waits to be seen there."""
MAX_UNCONFIRMED = 1000
"""Traces and scalars that may be logged and not yet seen in the store."""
PAUSES = (0.02, 0.2)
"""Seconds between two looks at an empty spool: the first, and the longest."""
SENDING_PAUSE = 0.05
"""The longest while Trackio is storing: what it stored is confirmed soon after."""
SENDING_CONFIRM = 1.0
"""Seconds between two looks at the store while Trackio is still storing."""
TURN = 0.5
"""Seconds of processing after which the store is looked at again."""
AT_LEAST = 32
"""Records that are processed before that: where this process gets little of the processor, listing what waits takes
longer than a turn, and nothing else would be done."""
MAX_BACKOFF = 30.0
"""Seconds between two attempts to store what Trackio dropped, at most."""
CLOSING = ("flush", "finish")
"""Records that close every step of their spool."""
SUMMARY = "-digest"
"""The ending of a step summary's uid."""


class SpoolConsumer:
    """Processes the records of spools.

    Args:
        readers: gives the spools there are now.
        make_processor: builds a fresh `StepProcessor` that writes to `sink`.
        sink: where it goes.
        counters: counts by name.
        closes: where closes are written down.
        publish: called before a flush is answered, to publish the counters.
        checkpoint: called before a record; it may raise `CalledAway`.

    Attributes:
        is_awaited: somebody must be expected to wait: nothing is stored yet, the first rollouts are not, or a flush came.
        is_idle: the last turn found nothing to do.
    """

    def __init__(
        self,
        readers: Callable[[], Sequence[RecordSource]],
        make_processor: Callable[[], StepProcessor],
        sink: TrackioSink,
        counters: Counter[str],
        closes: CloseLog | None = None,
        publish: Callable[[], None] = lambda: None,
        checkpoint: Callable[[], None] = stay,
    ) -> None:
        self._readers = readers
        self._checkpoint = checkpoint
        self._publish = publish
        self._make_processor = make_processor
        self.sink = sink
        self.counters = counters
        self._warnings = Warnings(counters)
        self._consumed: dict[Place, Consumed] = {}
        self._of_open_step: dict[StepKey, list[Place]] = {}
        self._replay = Replay(sink.stored, closes or CloseLog(), counters)
        self._replay.send_again(
            (name, spool.source.spool) for spool in self._waiting() for name in spool.names
        )
        self._settles = True
        self._n_logged = 0
        self._looked_at = 0.0
        self._is_sending = False
        self._has_stored = False
        self._has_stored_rollouts = False
        self.is_awaited = True
        self.is_idle = False
        self._failures = 0
        self._not_before = 0.0
        self._begin()

    def run_until(
        self,
        is_over: Callable[[], bool],
        after_turn: Callable[[], None] = lambda: None,
        rest: Callable[[float], object] = time.sleep,
    ) -> None:
        """Processes records until it is told to stop.

        Args:
            is_over: asked after every turn.
            after_turn: called after every turn.
            rest: called with seconds after a turn that found nothing to do.
        """
        pause = PAUSES[0]
        while not is_over():
            self.is_idle = not self.turn()
            if not self.is_idle:
                pause = PAUSES[0]
            else:
                rest(pause)
                pause = min(pause * 1.5, SENDING_PAUSE if self._is_sending else PAUSES[1])
            after_turn()

    def turn(self) -> bool:
        """Does one round of the work that is due.

        Returns:
            False when there was nothing.
        """
        if time.monotonic() < self._not_before or not self._is_settled():
            return False
        moved, is_behind = self._process_new()
        moved = self._close_decided(incomplete=not moved and not is_behind) or moved
        if not is_behind:
            moved = self._close_due() or moved
        was_sending, self._is_sending = self._is_sending, self.sink.is_sending()
        has_sent = was_sending and not self._is_sending
        every = SENDING_CONFIRM if self._is_sending else CONFIRM_EVERY
        if has_sent or (self._may_be_stored and time.monotonic() - self._looked_at >= every):
            moved = self._confirm() or moved
        return moved

    @property
    def _may_be_stored(self) -> bool:
        """True where a look at the store can show something: rollouts of open steps alone wait for no store."""
        return any(item.step is None for item in self._consumed.values())

    def _begin(self) -> None:
        self._processor = self._make_processor()
        options = self._processor.options
        self._rules = CloseRules(options.quiet_seconds, options.join_seconds)
        self._decided: dict[StepKey, Close] = {}

    def _is_settled(self) -> bool:
        """True once the store's contents are known, before anything is processed again."""
        if not self._settles:
            return True
        try:
            if not self.sink.settle():
                return False
            self.sink.stored.reload()
        except Exception as error:  # noqa: BLE001  the store may be locked or away; tried again, counted
            self._back_off("store_unreadable", error)
            return False
        self._settles = False
        self._begin()
        return True

    def _waiting(self) -> list[Waiting]:
        """The spools with their waiting records; whether an owner is gone is asked first, so that none comes later."""
        return [Waiting(reader, reader.owner_is_gone, reader.names()) for reader in self._readers()]

    def _process_new(self) -> tuple[bool, bool]:
        """Processes new records, in the order handed over.

        Returns:
            Whether there were some, and whether there are more.
        """
        started = time.monotonic()
        moved = False
        waiting = self._waiting()
        living = self._living(waiting)
        unconfirmed, self._n_logged = self._n_unconfirmed(), 0
        records = [((name, spool.source.spool), spool.source) for spool in waiting for name in spool.names]
        n_taken = 0
        for place, source in sorted(records, key=lambda item: item[0]):
            if place in self._consumed:
                continue
            is_long = n_taken >= AT_LEAST and time.monotonic() - started > TURN
            if is_long or unconfirmed + self._n_logged >= MAX_UNCONFIRMED:
                return moved, True
            self._checkpoint()
            n_taken += 1
            self._process(place, source)
            self._close_decided(incomplete=False)
            self._close_passed(living)
            moved = True
        return moved, False

    def _awaits(self, item: Consumed) -> bool:
        """True where somebody must be expected to wait until a record is stored."""
        return item.kind in CLOSING or (item.kind == ROLLOUTS and not self._has_stored_rollouts)

    def _take_logged(self) -> set[Token]:
        tokens = self.sink.take_logged()
        self._n_logged += len(tokens)
        return tokens

    def _n_unconfirmed(self) -> int:
        logged = {token for item in self._consumed.values() for token in item.tokens}
        return sum(not self.sink.is_stored(token) for token in logged)

    def _process(self, place: Place, source: RecordSource) -> None:
        try:
            record = source.read(place[0])
        except FileNotFoundError:
            return
        except RecordError as error:
            self._warnings.count("records_damaged", f"a record cannot be read and is set aside: {error}")
            source.set_aside(place[0])
            return
        try:
            step = self._take(record, place, source)
        except MemoryError:
            raise  # nothing is wrong with the record: the next worker may have more
        except Exception as error:  # noqa: BLE001  counted and warned
            self._warnings.count("process_errors", f"a record is set aside: {error!r}", with_traceback=True)
            source.set_aside(place[0])
            return
        finally:
            tokens = self._take_logged()
        n_rows = len(record.arrays["lengths"]) if record.kind == ROLLOUTS else 0
        self._consumed[place] = Consumed(source, record.kind, step, n_rows, tokens)
        self.is_awaited |= self._awaits(self._consumed[place])
        if step is not None:
            self._of_open_step.setdefault(step, []).append(place)

    def _take(self, record: Record, place: Place, source: RecordSource) -> StepKey | None:
        """Processes a record.

        Returns:
            The open step that it belongs to.
        """
        meta = record.meta
        if record.kind == ROLLOUTS:
            return self._take_rollouts(record, source)
        if record.kind == "join":
            return self._take_join(record, place)
        if record.kind == "scalars":
            self._log_scalars(meta, again=self._replay.is_again(place))
        elif record.kind == "close":
            return self._take_close(meta, source)
        elif record.kind in CLOSING:
            self._rules.flush(source.spool)
        return None

    def _take_rollouts(self, record: Record, source: RecordSource) -> StepKey | None:
        meta = record.meta
        batch_id = meta["batch_id"]
        if self._replay.is_complete(batch_id):
            return None
        step = StepKey(meta.get("attempt", ""), meta["step"], meta["split"])
        decided = self._replay.close_of(batch_id)
        if decided is not None:
            key = decided.key
            self._decided[key] = decided
        else:
            open_key = self._rules.open_key(step)
            key = open_key or step._replace(late=self._replay.n_closed(step))
            handed = Handed(key, source.spool, meta.get("n_ranks", 1), meta.get("announced", False))
            self._rules.rollouts(handed, time.monotonic())
        self._processor.add(key, batch_from_record(record), meta.get("await_join", ()))
        return key

    def _take_join(self, record: Record, place: Place) -> StepKey | None:
        batch_id = record.meta["batch_id"]
        tracks = {key[len("track/") :]: a for key, a in record.arrays.items() if key.startswith("track/")}
        floats = {key[len("row/") :]: a for key, a in record.arrays.items() if key.startswith("row/")}
        if self._processor.join(batch_id, tracks, floats):
            return self._processor.key_of(batch_id)
        if not (self._replay.is_again(place) and self._replay.is_complete(batch_id)):
            self._warnings.count(
                "joins_too_late", f"the step of hand-over {batch_id} is closed. Join before it is."
            )
        return None

    def _take_close(self, meta: Mapping[str, Any], source: RecordSource) -> StepKey | None:
        step = StepKey(meta.get("attempt", ""), meta["step"], meta["split"])
        if self._rules.open_key(step) is None and step not in self._decided and meta.get("n_ranks", 1) == 1:
            seen = self._replay.n_closed(step) > 0
            self.counters["closes_repeated" if seen else "closes_of_nothing"] += 1
            return None
        self._rules.announce(step, source.spool)
        return self._rules.open_key(step)

    def _log_scalars(self, meta: Mapping[str, Any], *, again: bool) -> None:
        step, attempt = meta["step"], meta.get("attempt", "")
        # what waited while this worker started may have been stored, and thus watched, by one before it; mostly it was not
        is_stored = again and self.sink.has_scalars(meta["scalars"], step=step, attempt=attempt)
        left_out = self.sink.log_scalars(meta["scalars"], step=step, attempt=attempt, again=again)
        if left_out:
            self.counters["scalar_values_left_out"] += len(left_out)
            log.info("step %d: no finite number, left out: %s", step, ", ".join(left_out))
        if not is_stored:
            self._processor.watch(meta["scalars"], step)

    def _close_decided(self, *, incomplete: bool) -> bool:
        """Closes the steps that were closed before a restart, once their hand-overs are back.

        Args:
            incomplete: close them also where a hand-over is not there any more.
        """
        ready = [key for key, close in self._decided.items() if incomplete or self._is_back(close)]
        for key in ready:
            self._close(self._decided.pop(key))
        return bool(ready)

    def _is_back(self, close: Close) -> bool:
        """True when all that a step was closed with before a restart has been processed again."""
        has_parts = set(close.parts) <= set(self._processor.parts_of(close.key))
        return has_parts and close.n_joins is not None and self._processor.n_joins(close.key) >= close.n_joins

    def _close_passed(self, living: set[str]) -> None:
        """Closes the steps that the last record made due, so that a backlog is not held in memory."""
        for due in self._due(living):
            if due.why in ("announced", "next step", "attempt"):
                self._close_open(due)

    def _close_due(self) -> bool:
        if not self._rules.has_open:
            return False
        found = self._due(self._living(self._waiting()))
        for due in found:
            self._close_open(due)
        return bool(found)

    def _due(self, living: set[str]) -> list[Due]:
        if not self._rules.has_open:
            return []
        ranks = {spool for spool in living if spool.startswith(RANK_SPOOL)}
        return self._rules.due(time.monotonic(), living, ranks, self._processor.awaits_joins)

    def _living(self, waiting: Sequence[Waiting]) -> set[str]:
        """Spools that may still deliver records: their owners are alive, or they hold records not processed yet."""
        return {
            spool.source.spool
            for spool in waiting
            if not spool.owner_is_gone
            or any((name, spool.source.spool) not in self._consumed for name in spool.names)
        }

    def _close_open(self, due: Due) -> None:
        parts = self._processor.parts_of(due.key)
        if parts:
            self._close(Close(due.key, parts, due.why, self._processor.n_joins(due.key)))
        else:
            self._rules.closed(due.key)

    def _close(self, close: Close) -> None:
        """Writes down that a step is closed, judges it and stores it."""
        key = close.key
        try:
            self._replay.record(close)
        except OSError as error:
            self._back_off("closes_unwritten", error)
            return
        self._rules.closed(key)
        places = self._of_open_step.get(key, [])
        again = all(self._replay.is_again(place) for place in places)
        keeps = self._processor.options.ledger
        try:
            stored = self._replay.stored_step(close, keeps_summaries=keeps, again=again)
            self._replay.chose(key, self._processor.close(key, stored, again=again))
        except CalledAway:
            self._decided[key] = close
            raise
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  counted and warned
            self._warnings.count(
                "process_errors", f"the records of {key} are set aside: {error!r}", with_traceback=True
            )
            self.sink.take_logged()
            self._of_open_step.pop(key, None)
            for place in places:
                self._consumed.pop(place).source.set_aside(place[0])
            return
        self.counters[f"closed_{close.why.replace(' ', '_')}"] += 1
        tokens = self._take_logged()
        for place in self._of_open_step.pop(key, []):
            self._consumed[place].tokens |= tokens
            self._consumed[place].step = None

    def _confirm(self) -> bool:
        """Removes records that are stored, and processes again those that Trackio dropped."""
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
            if item.step is None and all(map(self.sink.is_stored, item.tokens))
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
            if self._consumed[(name, spool)].kind not in CLOSING:
                first_left[spool] = min(name, first_left.get(spool, name))
        return [
            (name, spool)
            for name, spool in places
            if self._consumed[(name, spool)].kind not in CLOSING
            or spool not in first_left
            or name < first_left[spool]
        ]

    def _let_go(self, places: Sequence[Place]) -> None:
        """Counts, publishes and removes stored records, in this order: once a record is gone, the counters include it."""
        items = {place: self._consumed.pop(place) for place in places}
        self._count_stored(list(items.values()))
        self._has_stored |= bool(items)
        self._has_stored_rollouts |= any(item.kind == ROLLOUTS for item in items.values())
        self.is_awaited = not self._has_stored or any(map(self._awaits, self._consumed.values()))
        for place, item in items.items():
            self._replay.let_go(place)
            self.sink.stored.scalars.difference_update(t for t in item.tokens if isinstance(t, int))
            self._failures = 0
        if any(item.kind in CLOSING for item in items.values()):
            self._publish()
        for place, item in items.items():
            item.source.remove(place[0])

    def _count_stored(self, items: Sequence[Consumed]) -> None:
        uids = {
            token
            for item in items
            if item.kind == ROLLOUTS
            for token in item.tokens
            if isinstance(token, str)
        }
        summaries = sum(uid.endswith(SUMMARY) for uid in uids)
        self.counters["traces_stored"] += len(uids) - summaries
        self.counters["step_summaries_stored"] += summaries
        for item in items:
            if item.kind == ROLLOUTS:
                self.counters["rollouts_stored"] += item.n_rows
            else:
                self.counters[f"{item.kind}_stored"] += 1

    def _send_again(self) -> None:
        """Forgets what was processed and not seen stored; it is processed anew."""
        room = self.sink.room_text()
        lost = RuntimeError(f"Trackio dropped {self._n_unconfirmed()} entries; they are sent again{room}")
        self._replay.send_again(self._consumed)
        self._consumed.clear()
        self._of_open_step.clear()
        self._settles = True
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
