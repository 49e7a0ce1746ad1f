"""Rows that belong to one episode, so that groups and pass rates count it once."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.columns import NULL_INT, Ledger


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
