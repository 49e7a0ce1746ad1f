"""Small ledgers to choose from."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_traces.ledger.columns import Ledger
from rollout_traces.steps.selection import SelectionRequest


def make_ledger(n_groups: int = 64, group_size: int = 8, seed: int = 0, **columns: Any) -> Ledger:
    """A ledger of binary rewards whose groups differ in pass rate; every eighth group is tied."""
    rng = np.random.default_rng(seed)
    n = n_groups * group_size
    group = np.repeat(np.arange(n_groups), group_size)
    rates = rng.uniform(0.1, 0.9, n_groups)
    rates[::8] = 0.0
    base: dict[str, Any] = {
        "uid": np.array([f"batch-{row}" for row in range(n)], object),
        "group": group,
        "prompt_key": np.array([f"prompt-{g}" for g in group], object),
        "reward": (rng.random(n) < np.repeat(rates, group_size)).astype(float),
        "n_sampled": rng.integers(10, 500, n),
    }
    return Ledger(base | columns)


def make_request(ledger: Ledger, limit: int = 32, **kwargs: Any) -> SelectionRequest:
    """A request on a ledger."""
    return SelectionRequest(ledger=ledger, limit=limit, **({"seed": 7, "step": 3} | kwargs))
