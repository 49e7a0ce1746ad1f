"""Labels and notes that people put on rollouts, in a file of their own beside the project."""

from __future__ import annotations

from rollout_traces.store.labels.book import LabelBook
from rollout_traces.store.labels.entry import Entry

__all__ = ["Entry", "LabelBook"]
