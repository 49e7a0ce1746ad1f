"""Rows by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.ledger.tokens import ratio


@dataclass(frozen=True, eq=False)
class GroupIndex:
    """K groups over B rows.

    Attributes:
        codes: int64 [B]; 0 .. K - 1, the group of each row.
        sizes: int64 [K]; rows in each group.
    """

    codes: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, group: np.ndarray) -> GroupIndex:
        """Indexes the ledger's `group` column, int64 [B]."""
        _, codes, sizes = np.unique(group, return_inverse=True, return_counts=True)
        return cls(codes.reshape(-1), sizes)

    def __len__(self) -> int:
        """Number of groups, K."""
        return len(self.sizes)

    def rows(self) -> Iterator[np.ndarray]:
        """Yields each group's row numbers, ascending."""
        order = np.argsort(self.codes, kind="stable")
        yield from np.split(order, np.cumsum(self.sizes)[:-1])

    def sum(self, values: np.ndarray) -> np.ndarray:
        """float64 [K] sums of the finite values [B]."""
        weights = np.where(np.isfinite(values), values, 0) if values.dtype.kind == "f" else values
        return np.bincount(self.codes, weights=weights, minlength=len(self))

    def count(self, where: np.ndarray) -> np.ndarray:
        """int64 [K]: rows of each group for which the mask [B] holds."""
        return np.bincount(self.codes[where], minlength=len(self.sizes))

    def all(self, where: np.ndarray) -> np.ndarray:
        """bool [K]: groups in which the mask [B] holds for every row."""
        return self.count(where) == self.sizes

    def mean(self, values: np.ndarray) -> np.ndarray:
        """float64 [K] means of the finite values, NaN where a group has none."""
        return ratio(self.sum(values), self.count(np.isfinite(values)))

    def std(self, values: np.ndarray) -> np.ndarray:
        """float64 [K] population standard deviations of the finite values."""
        return np.sqrt(self.mean(np.square(self.centred(values))))

    def centred(self, values: np.ndarray) -> np.ndarray:
        """float64 [B]: values less their group's mean."""
        return values - self.mean(values)[self.codes]

    def min(self, values: np.ndarray) -> np.ndarray:
        """float64 [K] smallest finite values, inf where a group has none."""
        extremes = np.full(len(self), np.inf)
        np.minimum.at(extremes, self.codes, np.where(np.isfinite(values), values, np.inf))
        return extremes

    def max(self, values: np.ndarray) -> np.ndarray:
        """float64 [K] largest finite values, -inf where a group has none."""
        return -self.min(-values)


TIE_TOLERANCE = 1e-6
"""Rewards are equal within this times max(1, |reward|)."""
ZERO_ADVANTAGE = 1e-8
"""An advantage up to this is none."""
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
    """Marks the groups that teach nothing, their rewards being equal.

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


def episode_numbers(ledger: Ledger) -> np.ndarray:
    """int64 [B]: rows of one episode share a number; a row without an episode has its own."""
    numbers: dict[str, int] = {}
    found = np.arange(ledger.n_rows)
    for row, episode in enumerate(ledger.get("episode").tolist()):
        if episode is not None:
            found[row] = numbers.setdefault(episode, row)
    return found


def has_episodes(ledger: Ledger) -> bool:
    """True when two rows are of one episode."""
    if "episode" not in ledger.columns:
        return False
    numbers = episode_numbers(ledger)
    return bool((numbers != np.arange(len(numbers))).any())


def first_rows(ledger: Ledger) -> np.ndarray:
    """bool [B]: the first row of each episode that left no other, which stands for the episode."""
    numbers = episode_numbers(ledger)
    chosen: dict[int, int] = {}
    for row, (number, parent) in enumerate(zip(numbers.tolist(), ledger.get("parent").tolist(), strict=True)):
        if number not in chosen or (parent is None and ledger.get("parent")[chosen[number]] is not None):
            chosen[number] = row
    return np.isin(np.arange(ledger.n_rows), list(chosen.values()))


def with_episode_lengths(ledger: Ledger) -> Ledger:
    """The ledger with `n_sampled` of every row summed over its episode, unknown where that of any row is."""
    if "n_sampled" not in ledger.columns:
        return ledger
    numbers, lengths = episode_numbers(ledger), ledger.get("n_sampled")
    totals = np.zeros(len(numbers), np.int64)
    np.add.at(totals, numbers, np.where(lengths == NULL_INT, 0, lengths))
    unknown = np.isin(numbers, numbers[lengths == NULL_INT])
    return ledger.with_columns(n_sampled=np.where(unknown, NULL_INT, totals[numbers]))


def group_numbers(group_ids: np.ndarray, prompt_keys: np.ndarray) -> np.ndarray:
    """The group of each row.

    Args:
        group_ids: int64 [B]; -1 = unknown.
        prompt_keys: object [B], keys (None = unknown) by which rows of unknown group are put together; a row that has none
            either is a group of its own.

    Returns:
        int64 [B].
    """
    group = group_ids.astype(np.int64).copy()
    following = int(group.max(initial=-1)) + 1
    numbers: dict[Any, int] = {}
    for row in (group < 0).nonzero()[0].tolist():
        key = prompt_keys[row] if prompt_keys[row] is not None else ("row", row)
        group[row] = following + numbers.setdefault(key, len(numbers))
    return group


def positions_in_group(group: np.ndarray) -> np.ndarray:
    """int64 [B]: how many earlier rows share the row's group."""
    seen: Counter[int] = Counter()
    position = np.empty(len(group), np.int64)
    for row, number in enumerate(group.tolist()):
        position[row] = seen[number]
        seen[number] += 1
    return position
