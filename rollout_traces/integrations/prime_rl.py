"""prime-rl's monitors see every episode: one of them is watched.

    from rollout_traces.integrations import prime_rl
    prime_rl.attach(monitor, logger)

An episode of verifiers v1 is a tree of messages with their tokens; each path from a root to a leaf is a row.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout_traces.integrations.base import arguments_of, contained
from rollout_traces.integrations.prime_rl_live import PrimeRlLive
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
    if getattr(monitor.log_episodes, "_rollout_traces", False):
        return
    monitor.log_episodes = _watched(monitor.log_episodes, logger)
    if hasattr(monitor, "log_live"):
        monitor.log_live = PrimeRlLive(logger).around(monitor.log_live)


def _watched(log_episodes: Callable[..., Any], logger: RolloutLogger) -> Callable[..., Any]:
    @functools.wraps(log_episodes)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = arguments_of(log_episodes, args, kwargs)
        # Making records is work of plain Python, which prime-rl keeps off its event loop, too.
        await asyncio.to_thread(contained("prime-rl")(_log), given.values, logger)
        return await log_episodes(*args, **kwargs)

    wrapped._rollout_traces = True  # type: ignore[attr-defined]
    return wrapped


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
