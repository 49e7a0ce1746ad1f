"""Which rows answer the same prompt, as numbers."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence

import numpy as np

from rollout_traces.model.batch import ListElement

UNKNOWN = -1
"""A group that the ledger finds by the prompt."""
_LIMIT = 1 << 62


class GroupNumbers:
    """The numbers of one step and split: an id has the same one in every call, two ids never do.

    Args:
        first: the first number that is made up.
    """

    def __init__(self, first: int = 0) -> None:
        self._first = self._next = first
        self._numbers: dict[Hashable, int] = {}
        self._taken: set[int] = set()
        self._n_calls = 0
        self._lock = threading.Lock()

    def call(self) -> int:
        """A number for one more call, so that its groups without ids differ from those of other calls."""
        with self._lock:
            self._n_calls += 1
            return self._n_calls

    def of(self, ids: Sequence[Hashable]) -> np.ndarray:
        """The number of each id: its own where it is an int that no other id has yet.

        Args:
            ids: B ids; -1 is unknown and stays so. An element of a list has its place there, where that is free,
                so that a dropped element does not shift those after it.

        Returns:
            int64 [B].
        """
        with self._lock:
            return np.asarray([self._number(group) for group in ids], np.int64)

    def _number(self, group: Hashable) -> int:
        if isinstance(group, int) and group == UNKNOWN:
            return UNKNOWN
        number = self._numbers.get(group)
        if number is None:
            wanted = self._first + group.index_in_list if isinstance(group, ListElement) else group
            own = isinstance(wanted, int) and 0 <= wanted < _LIMIT and wanted not in self._taken
            number = self._numbers[group] = int(wanted) if own else self._made_up()  # type: ignore[call-overload]
            self._taken.add(number)
        return number

    def _made_up(self) -> int:
        while self._next in self._taken:
            self._next += 1
        return self._next
