"""The public names, for type checkers: each is loaded when it is first used."""

from rollout_traces import metrics as metrics
from rollout_traces.capture.hand_over import RolloutHandle as RolloutHandle
from rollout_traces.decode import TranscriptDecoder as TranscriptDecoder
from rollout_traces.flags import population_flag as population_flag
from rollout_traces.flags import row_flag as row_flag
from rollout_traces.logger.rollout_logger import RolloutLogger as RolloutLogger
from rollout_traces.model.batch import RolloutBatch as RolloutBatch
from rollout_traces.model.spans import Spans as Spans
from rollout_traces.model.transcript import Flag as Flag
from rollout_traces.model.transcript import TokenTrack as TokenTrack
from rollout_traces.model.transcript import ToolCall as ToolCall
from rollout_traces.model.transcript import Transcript as Transcript
from rollout_traces.model.transcript import Turn as Turn
from rollout_traces.settings.logger_options import LoggerOptions as LoggerOptions
from rollout_traces.sources.importing import import_rollouts as import_rollouts
from rollout_traces.stats import tracker
from rollout_traces.stats.stats_logger import StatsLogger as StatsLogger
from rollout_traces.stats.stats_logger import StatsLoggerConfig as StatsLoggerConfig
from rollout_traces.stats.stats_logger import TrackioConfig as TrackioConfig
from rollout_traces.steps.preflight import CheckReport as CheckReport
from rollout_traces.steps.preflight import check as check
from rollout_traces.store import Store as Store
from rollout_traces.store import open_store as open_store

stats_tracker = tracker
__version__: str
