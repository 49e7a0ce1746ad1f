"""Where scalars go beside Trackio: one small file a tracker, all behind `ScalarSink`.

The trackers' packages come with a trainer and are imported when a sink is made.
"""

from rollout_traces.stats.sinks.base import MissingTracker, ScalarSink
from rollout_traces.stats.sinks.swanlab_sink import SwanlabSink
from rollout_traces.stats.sinks.tensorboard import TensorBoardSink
from rollout_traces.stats.sinks.wandb_sink import WandbSink

__all__ = ["MissingTracker", "ScalarSink", "SwanlabSink", "TensorBoardSink", "WandbSink"]
