"""Rewards and lengths as plain arrays that a sink can turn into histograms."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.ledger.rewards import known_rewards

HISTOGRAMS = {"reward/histogram": "reward", "tokens/completion/histogram": "n_sampled"}
"""Key, without the split -> the ledger column it shows."""


def step_histograms(ledger: Ledger, split: str = "rollout") -> dict[str, np.ndarray]:
    """The values behind the histograms of a step.

    Args:
        ledger: every row of the step.
        split: `rollout` or `eval-rollout`.

    Returns:
        `<split>/<key>` -> float64 array of the finite values; a key without any is absent.
    """
    arrays = {}
    for key, name in HISTOGRAMS.items():
        column = known_rewards(ledger) if name == "reward" else ledger.get(name)
        known = np.isfinite(column) if name == "reward" else column != NULL_INT
        if known.any():
            arrays[f"{split}/{key}"] = column[known].astype(np.float64)
    return arrays
