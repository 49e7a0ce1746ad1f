"""Which rewards are known, and which groups they tie: one rule for metrics, flags, selection and the pages."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.columns import Ledger
from rollout_traces.ledger.groups import GroupIndex

TIE_TOLERANCE = 1e-6
"""Rewards are equal within this times max(1, |reward|)."""
TIED_SQL = (
    "(n >= 2 AND known + failed = n AND (failed = n OR (known >= 2 AND "
    f"high - low <= {TIE_TOLERANCE} * greatest(1, abs(low), abs(high)))))"
)
"""`tied_groups` in SQL, over a group's columns: `n` rows, of them `known` with a known reward and `failed` ones, and
the `low` and `high` known reward."""


def reward_failed(ledger: Ledger) -> np.ndarray:
    """bool [B]: the reward function timed out or raised, so that the row's reward says nothing."""
    statuses = ledger.get("reward_status").tolist()
    return np.asarray([status not in (None, "ok") for status in statuses], bool)


def known_rewards(ledger: Ledger) -> np.ndarray:
    """float64 [B]: the rewards, NaN where unknown or where the reward function failed."""
    rewards = ledger.get("reward")
    return np.where(reward_failed(ledger), np.nan, rewards) if "reward_status" in ledger.columns else rewards


def tied_groups(groups: GroupIndex, rewards: np.ndarray, failed: np.ndarray) -> np.ndarray:
    """Which groups teach nothing, their rewards being equal.

    A group of two or more is tied when all of its rewards are equal within 1e-6 x max(1, |reward|). Rows whose
    reward function failed are left out of the comparison, which takes two known rewards; a group in which it
    failed for every row is tied too. A group with any other unknown reward is not.

    Args:
        groups: K groups over B rows.
        rewards: float64 [B], NaN where unknown or failed.
        failed: bool [B]; the reward function failed.

    Returns:
        bool [K].
    """
    known = np.isfinite(rewards)
    equal = equal_ends(groups.min(rewards), groups.max(rewards))
    complete = groups.all(known | failed)
    several = groups.count(known) >= 2
    return (groups.sizes >= 2) & complete & ((several & equal) | groups.all(failed))


def tie_decided(groups: GroupIndex, rewards: np.ndarray, failed: np.ndarray) -> np.ndarray:
    """bool [K]: groups of two or more of which it is known whether they are tied; arguments as for `tied_groups`.

    Either they are, or two of their known rewards differ.
    """
    low, high = groups.min(rewards), groups.max(rewards)
    several = groups.count(np.isfinite(rewards)) >= 2
    return tied_groups(groups, rewards, failed) | (several & ~equal_ends(low, high))


def equal_ends(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """bool [K]: smallest and largest reward are equal within 1e-6 x max(1, |reward|)."""
    with np.errstate(invalid="ignore"):
        return high - low <= TIE_TOLERANCE * np.maximum(1, np.maximum(np.abs(low), np.abs(high)))
