"""Rollouts of RL training as conversations, token for token, in Trackio and a local inspector.

The public names are loaded when they are first used, so that the read side starts in a fraction of a
second and never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rollout_traces.metrics as metrics
    import rollout_traces.stats.tracker as stats_tracker
    from rollout_traces.capture.hand_over import RolloutHandle
    from rollout_traces.decode import TranscriptDecoder
    from rollout_traces.flags import Flag, population_flag, row_flag
    from rollout_traces.logger.rollout_logger import RolloutLogger
    from rollout_traces.model.batch import RolloutBatch
    from rollout_traces.model.spans import Spans
    from rollout_traces.model.transcript import TokenTrack, ToolCall, Transcript, Turn
    from rollout_traces.settings.logger_options import LoggerOptions
    from rollout_traces.sources.importing import import_rollouts
    from rollout_traces.stats.stats_logger import StatsLogger, StatsLoggerConfig, TrackioConfig
    from rollout_traces.steps.preflight import CheckReport, check
    from rollout_traces.store import Store, open_store

__version__ = "0.2.0"

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

__all__ = [
    "CheckReport",
    "Flag",
    "LoggerOptions",
    "RolloutBatch",
    "RolloutHandle",
    "RolloutLogger",
    "Spans",
    "StatsLogger",
    "StatsLoggerConfig",
    "Store",
    "TokenTrack",
    "ToolCall",
    "TrackioConfig",
    "Transcript",
    "TranscriptDecoder",
    "Turn",
    "check",
    "import_rollouts",
    "metrics",
    "open_store",
    "population_flag",
    "row_flag",
    "stats_tracker",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rollout_traces' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
