"""Which records were processed before: by a worker that was stopped, or by this one and then dropped by Trackio."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from rollout_traces.model.counted_warnings import Warnings
from rollout_traces.model.packed_batch import StepKey
from rollout_traces.sink.stored import Stored
from rollout_traces.steps.choosing import StoredStep
from rollout_traces.worker.close_log import Close, CloseLog

log = logging.getLogger(__name__)

Place = tuple[str, str]
"""A record's name, which says when it was handed over, and its spool."""


class Replay:
    """Which records are processed again, and what is known of them.

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
        """How often a step was closed before, late parts included."""
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
        """What is stored of a step that is closed now.

        Args:
            close: the close.
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
        taken: Collection[str] = self._stored.traced_at(key) if key.late else ()
        return StoredStep(summarised, chosen, len(set(taken) - set(chosen)))

    def _has_totals(self, key: StepKey) -> bool:
        try:
            return self._stored.has_totals(key.step, key.split)
        except Exception as error:  # noqa: BLE001  the store may be locked or away: better twice than never; counted
            self._warnings.count("store_unreadable", f"was {key} closed before? {error!r}")
            return False
