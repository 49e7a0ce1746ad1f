"""State that a run's steps hand on to the next one: it is stored with every step summary and read after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollout_traces.alarms.incidents import AlarmState


@dataclass(frozen=True)
class RunState:
    """The state after the steps so far.

    Attributes:
        raised: keys of the flag shares that were ever above zero: their curves have begun.
        alarms: split -> its open incidents and what they are judged by.
        totals: `<split>/total/<name>` -> count over the run.
        prompts: split -> prompt key -> traces of it.
    """

    raised: frozenset[str] = frozenset()
    alarms: Mapping[str, AlarmState] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    prompts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def as_text(self) -> str:
        """The state as JSON, for the step summary; totals and prompts are read from the store."""
        alarms = {split: known.as_plain() for split, known in self.alarms.items()}
        return orjson.dumps({"raised": sorted(self.raised), "alarms": alarms}).decode()

    @classmethod
    def resumed(
        cls,
        stored: Mapping[str, Any],
        totals: Mapping[str, float],
        prompts: Mapping[str, Mapping[str, int]],
    ) -> RunState:
        """The state after a restart.

        Args:
            stored: what `as_text` gave at the newest stored step, read; empty when there is none.
            totals: the newest stored totals.
            prompts: split -> prompt key -> stored traces of it.
        """
        alarms = {split: AlarmState.from_plain(known) for split, known in stored.get("alarms", {}).items()}
        return cls(frozenset(stored.get("raised", ())), alarms, totals, prompts)
