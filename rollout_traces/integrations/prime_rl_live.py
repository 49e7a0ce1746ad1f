"""What prime-rl has in flight, as it tells its monitors: `log_live` is given the changes of each trace while it grows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_traces.integrations.base import arguments_of, contained
from rollout_traces.integrations.followed import prompt_text
from rollout_traces.logger.live import LiveRollout
from rollout_traces.logger.rollout_logger import RolloutLogger

PHASES = (
    ("scoring", "scoring"),
    ("finalize", "scoring"),
    ("agent", "sampling"),
    ("setup", "booting"),
    ("boot", "booting"),
)
"""Spans of a trace's `timing`, the latest one first, and the stage in which it is once one has a start."""


@dataclass
class _Trace:
    """A trace that grows."""

    live: LiveRollout
    stage: str = "queued"
    turns: int = 0
    tokens: int = 0
    failed: str | None = None


class PrimeRlLive:
    """Says what prime-rl has in flight.

    A trace that waits for a place is not yet told of by an id of its own, and is not shown.

    Args:
        logger: what it is said to.
    """

    def __init__(self, logger: RolloutLogger) -> None:
        self._logger = logger
        self._traces: dict[str, _Trace] = {}

    def around(self, log_live: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a monitor's `log_live`."""

        @functools.wraps(log_live)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            events = arguments_of(log_live, args, kwargs).get("events")
            for event in events if isinstance(events, Sequence) else ():
                contained("prime-rl")(self.take)(event)
            return await log_live(*args, **kwargs)

        return wrapped

    def take(self, event: Mapping[str, Any]) -> None:
        """One event: a trace's `delta`, or that it is `done`."""
        if "done" in event:
            self._end(event["done"])
        elif "delta" in event and event["delta"].get("discard"):
            self._end(event["delta"]["trace"], "discarded")
        elif "delta" in event:
            self._grow(event["delta"], event.get("dispatch") or {})

    def _end(self, key: str, why: str | None = None) -> None:
        trace = self._traces.pop(key, None)
        if trace is not None:
            why = why or trace.failed
            trace.live.stage("aborted" if why else "done", why)

    def _grow(self, delta: Mapping[str, Any], dispatch: Mapping[str, Any]) -> None:
        key = delta["trace"]
        if key not in self._traces:
            self._traces[key] = _Trace(self._begin(delta, dispatch))
        trace = self._traces[key]
        calls = delta.get("calls") or ()
        trace.turns += len(calls)
        trace.tokens += sum((call.get("usage") or {}).get("completion_tokens") or 0 for call in calls)
        for error in delta.get("errors") or ():
            trace.failed = str(error.get("type") or "error")
        timing = (delta.get("set") or {}).get("timing") or {}
        begun = (stage for span, stage in PHASES if (timing.get(span) or {}).get("start"))
        trace.stage = next(begun, trace.stage)
        trace.live.stage(trace.stage, turns=trace.turns, tokens=trace.tokens, words=_words(delta))

    def _begin(self, delta: Mapping[str, Any], dispatch: Mapping[str, Any]) -> LiveRollout:
        data = ((delta.get("open") or {}).get("task") or {}).get("data") or {}
        step, group = dispatch.get("step"), dispatch.get("group")
        return self._logger.live(
            prompt_text(data.get("prompt")),
            step=step if isinstance(step, int) else None,
            split="eval-rollout" if dispatch.get("kind") == "eval" else "rollout",
            source=dispatch.get("env"),
            group=None if group is None else str(group),
        )


def _words(delta: Mapping[str, Any]) -> str | None:
    """What the assistant wrote last, of the messages that are new."""
    said = [node["message"] for node in delta.get("nodes") or () if node.get("message")]
    return prompt_text([message for message in said if message.get("role") == "assistant"])
