"""When a step is closed: by its trainer's announcement, by later hand-overs, or by the clock.

No record is read and nothing is written here: the consumer reports what arrives and asks which steps are due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from rollout_traces.model.packed_batch import StepKey

RANK_PATIENCE = 20.0
"""Seconds that a step which some ranks are done with waits for a living rank that does not announce closes."""
FLUSH_PATIENCE = 10.0
"""The same, once a rank waits in `flush` or `finish`."""
GAPS = 3.0
"""A quiet time is at least this many times the longest pause seen within a step."""


class Due(NamedTuple):
    """A step to be closed, and why."""

    key: StepKey
    why: str


class Handed(NamedTuple):
    """A hand-over's word on its step.

    Attributes:
        spool: the spool it came from.
        n_ranks: ranks that hand over to the run.
        announced: its trainer announces closes.
    """

    key: StepKey
    spool: str
    n_ranks: int = 1
    announced: bool = False


@dataclass(eq=False)
class _Open:
    key: StepKey
    last_at: float
    spools: set[str] = field(default_factory=set)
    n_ranks: int = 1
    announced: bool = False
    newest: dict[str, int] = field(default_factory=dict)
    done_since: float | None = None
    due_since: float | None = None


class CloseRules:
    """Keeps track of open steps.

    A step is closed when every spool that takes part in it is done with it: it announced the close or flushed,
    went on to a later step of the split or to a newer attempt, or its owner is gone. With several ranks all living
    ranks take part; without announcements, one that stays silent is waited for `RANK_PATIENCE`. Else a quiet time
    closes it, unless its trainer announces closes. A late part is closed by what comes after it likewise.

    Args:
        quiet_seconds: seconds without rollouts after which a step is closed; 0: never.
        join_seconds: seconds that a step which is due waits for awaited joins.
    """

    def __init__(self, quiet_seconds: float, join_seconds: float) -> None:
        self._quiet_seconds = quiet_seconds
        self._join_seconds = join_seconds
        self._open: dict[StepKey, _Open] = {}
        self._newest: dict[tuple[str, str, str], int] = {}
        self._attempt_of: dict[str, str] = {}
        self._announced: dict[StepKey, set[str]] = {}
        self._announcing: dict[tuple[str, str, str], int] = {}
        self._flushed: dict[StepKey, set[str]] = {}
        self._longest_gap = 0.0
        self._last_closed: dict[tuple[str, str], int] = {}

    def open_key(self, step: StepKey) -> StepKey | None:
        """The open step, or open late part, that a hand-over of a step belongs to."""
        return next((key for key in self._open if key._replace(late=0) == step), None)

    @property
    def has_open(self) -> bool:
        """True while any step is open."""
        return bool(self._open)

    def rollouts(self, handed: Handed, now: float) -> None:
        """Notes a hand-over.

        Args:
            handed: what it says.
            now: seconds, of any clock that only goes forward.
        """
        step, spool = handed.key, handed.spool
        place = (spool, step.attempt, step.split)
        known = self._open.get(step)
        if known is None:
            newest = {name: at for (name, *_), at in self._newest_in(step).items()}
            known = self._open[step] = _Open(step, now, newest=newest)
        else:
            self._longest_gap = max(self._longest_gap, now - known.last_at)
        known.last_at = now
        known.done_since = known.due_since = None
        known.spools.add(spool)
        known.n_ranks = max(known.n_ranks, handed.n_ranks)
        known.announced |= handed.announced
        self._flushed.get(step, set()).discard(spool)
        self._newest[place] = max(step.step, self._newest.get(place, step.step))
        self._attempt_of[spool] = max(step.attempt, self._attempt_of.get(spool, ""))

    def announce(self, step: StepKey, spool: str) -> None:
        """Notes that a trainer announced that a step is over."""
        self._announced.setdefault(self.open_key(step) or step, set()).add(spool)
        place = (spool, step.attempt, step.split)
        self._announcing[place] = max(step.step, self._announcing.get(place, step.step))
        self._attempt_of[spool] = max(step.attempt, self._attempt_of.get(spool, ""))

    def flush(self, spool: str) -> None:
        """Notes that everything of a spool is to be stored now."""
        for key, known in self._open.items():
            if spool in known.spools or known.n_ranks > 1:
                self._flushed.setdefault(key, set()).add(spool)

    def closed(self, key: StepKey) -> None:
        """Forgets a step that was closed."""
        place = (key.attempt, key.split)
        self._last_closed[place] = max(key.step, self._last_closed.get(place, key.step))
        self._open.pop(key, None)
        self._announced.pop(key, None)
        self._flushed.pop(key, None)

    def due(
        self,
        now: float,
        living: Collection[str],
        ranks: Collection[str],
        awaits_joins: Callable[[StepKey], bool] = lambda key: False,
    ) -> list[Due]:
        """The steps that are to be closed now, earlier ones first.

        Args:
            now: as for `rollouts`.
            living: spools whose owners are there.
            ranks: those of them that are ranks of one run.
            awaits_joins: returns whether a step waits for joins.
        """
        reasons: dict[StepKey, str] = {}
        for key, known in self._open.items():
            why = self._why_due(known, now, set(living), set(ranks))
            if why is None:
                known.due_since = None
            else:
                known.due_since = now if known.due_since is None else known.due_since
                reasons[key] = why
        found: list[Due] = []
        for key in sorted(reasons, key=lambda key: (key.attempt, key.step, key.late)):
            known, why = self._open[key], reasons[key]
            waited = 0.0 if known.due_since is None else now - known.due_since
            patient = why not in ("flush", "gone", "attempt")
            if awaits_joins(key) and patient and waited < self._join_seconds and not self._is_passed(known):
                continue
            found.append(Due(key, why))
        return found

    def _is_passed(self, known: _Open) -> bool:
        """A later step of the split is due as well, or was closed: joins that were to come have been missed."""
        place = (known.key.attempt, known.key.split)
        return self._last_closed.get(place, known.key.step) > known.key.step or any(
            other.due_since is not None and other.key.step > known.key.step
            for other in self._open.values()
            if (other.key.attempt, other.key.split) == place
        )

    def _why_due(self, known: _Open, now: float, living: set[str], ranks: set[str]) -> str | None:
        part_of = (known.spools | ranks if known.n_ranks > 1 else known.spools) & living
        done = {spool: why for spool in part_of if (why := self._why_done(known, spool)) is not None}
        waiting = part_of - set(done)
        if not part_of:
            return "gone"
        if not waiting:
            return min(done.values(), key=_REASONS.index)
        if done:
            known.done_since = now if known.done_since is None else known.done_since
            flushed = "flush" in done.values()
            patience = FLUSH_PATIENCE if flushed else RANK_PATIENCE
            if (flushed or not known.announced) and now - known.done_since >= patience:
                return "flush" if flushed else "rank silent"
        return "quiet" if self._is_quiet(known, now) else None

    def _why_done(self, known: _Open, spool: str) -> str | None:
        key = known.key
        later = self._announcing.get((spool, key.attempt, key.split), key.step) > key.step
        if spool in self._announced.get(key, ()) or (later and spool not in known.spools):
            return "announced"
        if spool in self._flushed.get(key, ()):
            return "flush"
        if self._attempt_of.get(spool, "") > key.attempt:
            return "attempt"
        newest = self._newest.get((spool, key.attempt, key.split), key.step)
        passed = max(key.step, known.newest.get(spool, key.step)) if key.late else key.step
        if newest > passed and not known.announced:
            return "next step"
        return None

    def _is_quiet(self, known: _Open, now: float) -> bool:
        announcing = known.announced or any(
            (spool, known.key.attempt, known.key.split) in self._announcing for spool in known.spools
        )
        if (announcing and not known.key.late) or not self._quiet_seconds:
            return False
        return now - known.last_at >= max(self._quiet_seconds, GAPS * self._longest_gap)

    def _newest_in(self, step: StepKey) -> dict[tuple[str, str, str], int]:
        return {
            place: newest for place, newest in self._newest.items() if place[1:] == (step.attempt, step.split)
        }


_REASONS = ("announced", "flush", "attempt", "next step")
