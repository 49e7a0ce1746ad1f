"""How concentrated the step's update is."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.policy_update import update_shares
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import StepView


@family(
    "update",
    reads="ledger",
    needs=("update_share",),
    source="practice",
    keys=(
        Key("update/top3_share", "part of the step's update that its three heaviest rollouts carry", True),
        Key("update/ess_rows", "effective number of rollouts behind the update", default=True),
    ),
)
def update(view: StepView) -> dict[str, float]:
    """With s the rows' update shares, scaled to sum to 1: the three largest summed, and 1 / sum s^2.

    Computed over the whole step where tokens are at hand: a hand-over's own shares sum to 1 each.
    """
    shares = view.floats("update_share")
    if view.batch is not None:
        shares = update_shares(view.in_loss, view.ledger.get("discard_reason"))
    shares = shares[np.isfinite(shares)]
    total = shares.sum()
    if not total > 0:
        return {}
    shares = np.sort(shares / total)
    return {"update/top3_share": float(shares[-3:].sum()), "update/ess_rows": float(1 / np.sum(shares**2))}
