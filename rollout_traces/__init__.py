"""Rollouts of RL training as conversations, token for token, in Trackio and a local inspector.

The public names are loaded when they are first used, so that the read side starts in a fraction of a
second and never imports torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from rollout_traces.model.names import VERSION

__version__ = VERSION

_HOMES = {
    "CheckReport": "rollout_traces.steps.preflight",
    "check": "rollout_traces.steps.preflight",
    "Flag": "rollout_traces.flags",
    "LoggerOptions": "rollout_traces.settings.logger_options",
    "RolloutBatch": "rollout_traces.model.batch",
    "RolloutHandle": "rollout_traces.capture.hand_over",
    "RolloutLogger": "rollout_traces.logger.rollout_logger",
    "Spans": "rollout_traces.model.spans",
    "StatsLogger": "rollout_traces.stats.stats_logger",
    "StatsLoggerConfig": "rollout_traces.stats.stats_logger",
    "Store": "rollout_traces.store",
    "TokenTrack": "rollout_traces.model.transcript",
    "ToolCall": "rollout_traces.model.transcript",
    "TrackioConfig": "rollout_traces.stats.stats_logger",
    "Transcript": "rollout_traces.model.transcript",
    "TranscriptDecoder": "rollout_traces.decode",
    "Turn": "rollout_traces.model.transcript",
    "import_rollouts": "rollout_traces.sources.importing",
    "open_store": "rollout_traces.store",
    "population_flag": "rollout_traces.flags",
    "row_flag": "rollout_traces.flags",
}
_MODULES = {"metrics": "rollout_traces.metrics", "stats_tracker": "rollout_traces.stats.tracker"}

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rollout_traces' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
