"""Whose turn it is: what a page adds later gives way to an answer that a reader waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from rollout_traces.analysis.relations import Relations

PATIENCE = 5.0
"""Seconds that one answer waits in all for others that go first."""


@dataclass(eq=False)
class Turns:
    """Counts the answers that go first.

    Attributes:
        n_first: how many are being computed now.
    """

    n_first: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def first(self) -> Iterator[None]:
        """What is computed inside goes before whatever gives way."""
        with self._changed:
            self.n_first += 1
        try:
            yield
        finally:
            with self._changed:
                self.n_first -= 1
                self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Waits until nothing goes first, no longer than some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self.n_first, seconds)


@dataclass(eq=False)
class GivingWay:
    """Relations whose statements wait while others go first.

    Attributes:
        relations: what answers them.
        turns: who goes first.
        patience: seconds that are left to wait.
    """

    relations: Relations
    turns: Turns
    patience: float = PATIENCE

    def sql(self, query: str, params: Sequence[Any] = ()) -> pa.Table:
        """The rows of a SELECT, with `?` for each parameter."""
        self._wait()
        return self.relations.sql(query, params)

    def texts(self, uids: Sequence[str]) -> pa.Table:
        """The texts of some rollouts, as the relations give them."""
        self._wait()
        return self.relations.texts(uids)

    def _wait(self) -> None:
        began = time.monotonic()
        self.turns.wait(max(self.patience, 0.0))
        self.patience -= time.monotonic() - began

    def config(self, run: str) -> Mapping[str, Any]:
        """The config of a run, as the relations give it."""
        given = getattr(self.relations, "config", None)
        found: Mapping[str, Any] = {} if given is None else given(run)
        return found
