"""Where the samples of a group share tokens and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Branch:
    """Tokens that some samples share, up to where they part.

    Attributes:
        start: position of its first token in the rollouts.
        stop: the position where its members part, or the one member ends.
        members: indices of the samples that go through it, ascending.
        children: the branches that follow, most members first.
    """

    start: int
    stop: int
    members: tuple[int, ...]
    children: tuple[Branch, ...] = field(default=())


def prefix_tree(sequences: Sequence[np.ndarray], first: int = 0) -> Branch:
    """The compressed prefix tree of token sequences.

    Args:
        sequences: token ids, int [n_i] each; at least one.
        first: position at which the tree begins; all sequences are equal before it.

    Returns:
        The root: what all share from `first` on (no tokens where they share none).

    Raises:
        ValueError: no sequence was given.
    """
    if not sequences:
        raise ValueError("prefix_tree: no sequences. Expected at least one.")
    return _branch(sequences, tuple(range(len(sequences))), first)


def shared_length(sequences: Sequence[np.ndarray], start: int = 0) -> int:
    """The position up to which all sequences are equal, looked at from `start` on."""
    shortest = min(len(sequence) for sequence in sequences)
    lead = sequences[0][start:shortest]
    stop = len(lead)
    for sequence in sequences[1:]:
        different = np.flatnonzero(sequence[start : start + stop] != lead[:stop])
        if len(different):
            stop = int(different[0])
    return start + stop


def _branch(sequences: Sequence[np.ndarray], members: tuple[int, ...], start: int) -> Branch:
    stop = shared_length([sequences[member] for member in members], start)
    by_token: dict[int, list[int]] = {}
    for member in members:
        if len(sequences[member]) > stop:
            by_token.setdefault(int(sequences[member][stop]), []).append(member)
    children = [_branch(sequences, tuple(found), stop) for found in by_token.values()]
    children.sort(key=lambda child: (-len(child.members), child.members))
    return Branch(start, stop, members, tuple(children))
