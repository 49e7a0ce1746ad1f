"""prime-rl's monitors see every episode: one of them is watched, and says what is in flight.

    from rollout_traces.integrations import prime_rl
    prime_rl.attach(monitor, logger)

An episode of verifiers v1 is a tree of messages with their tokens; each path from a root to a leaf is a row. While a
trace grows, `log_live` is given its changes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_traces.integrations.base import arguments_of, contained, wrap_once
from rollout_traces.integrations.followed import prompt_text
from rollout_traces.logger.live import LiveRollout
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.sources.base import EVAL, TRAIN, Claim
from rollout_traces.sources.formats.verifiers_trace import rows_of_trace
from rollout_traces.sources.rows import batch_of

SPLITS = {"train": TRAIN, "eval": EVAL}
"""prime-rl's kinds -> our splits."""


def batches_from(native: Sequence[Any], /, *, step: int, kind: str = "train") -> list[RolloutBatch]:
    """Episodes as one batch.

    Args:
        native: episodes with `to_record()`, or the mappings that it makes.
        step: the trainer's step.
        kind: `train` or `eval`.

    Returns:
        One batch of all rows; none where no episode has a trace.

    Raises:
        ValueError: a trace's nodes, tokens or masks do not fit each other.
    """
    claim = Claim(Path(), step, SPLITS[kind])
    rows = [
        row
        for line, episode in enumerate(native, 1)
        for record in (_record(episode),)
        for trace in record.get("traces") or []
        for row in rows_of_trace(record, trace, claim, line)
    ]
    return [batch_of(rows, decodes_tokens=True)] if rows else []


def attach(monitor: Any, logger: RolloutLogger) -> None:
    """Logs the episodes that a monitor is given once they are trained on or evaluated, and says what is in flight.

    prime-rl logs an episode as `all` when it ends and as `effective` when its batch is complete: the second is
    taken, and closes the step.

    Args:
        monitor: any of prime-rl's, `FileMonitor` for one.
        logger: where to log.
    """

    def around(log_episodes: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            given = arguments_of(log_episodes, args, kwargs)
            # Making records is work of plain Python, which prime-rl keeps off its event loop, too.
            await asyncio.to_thread(contained("prime-rl")(_log), given.values, logger)
            return await log_episodes(*args, **kwargs)

        return wrapped

    wrap_once(monitor, "log_episodes", around)
    if hasattr(monitor, "log_live"):
        wrap_once(monitor, "log_live", PrimeRlLive(logger).around)


def _record(episode: Any) -> Mapping[str, Any]:
    """The episode as JSON values, its floats not rounded."""
    if isinstance(episode, Mapping):
        return episode
    rounds = "float_decimals" in inspect.signature(episode.to_record).parameters
    return episode.to_record(float_decimals=None) if rounds else episode.to_record()


def _log(given: Mapping[str, Any], logger: RolloutLogger) -> None:
    if given.get("subset") != "effective":
        return
    step, kind = int(given["step"]), given["kind"]
    batches = batches_from(given["episodes"], step=step, kind=kind)
    if batches:
        logger.log_rollouts(batches, step=step, split=SPLITS[kind])
    logger.close_step(step, SPLITS[kind])


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
    """Picks the assistant's last text from the messages that are new."""
    said = [node["message"] for node in delta.get("nodes") or () if node.get("message")]
    return prompt_text([message for message in said if message.get("role") == "assistant"])
