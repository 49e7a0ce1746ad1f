"""Rollouts as training data: chat, preference pairs, scored completions, sessions for the Hub's viewer."""

from __future__ import annotations

from rollout_traces.export.training.samples import FORMATS, TrainingOptions
from rollout_traces.export.training.write import TrainingManifest, export_training

__all__ = ["FORMATS", "TrainingManifest", "TrainingOptions", "export_training"]
