"""A spool as the worker takes records from it, and a record that it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from rollout_traces.model.packed_batch import StepKey
from rollout_traces.sink.trackio_sink import Token
from rollout_traces.spool.record import Record


class RecordSource(Protocol):
    """A spool as the consumer sees it."""

    @property
    def spool(self) -> str: ...

    @property
    def owner_is_gone(self) -> bool: ...

    def names(self) -> list[str]: ...

    def read(self, name: str) -> Record: ...

    def remove(self, name: str) -> None: ...

    def set_aside(self, name: str) -> Any: ...


class Waiting(NamedTuple):
    """A spool as it was found: whether its owner was gone, and the records that waited in it then, oldest first."""

    source: RecordSource
    owner_is_gone: bool
    names: Sequence[str]


@dataclass(eq=False)
class Consumed:
    """A record that was processed and waits to be seen in the store.

    Attributes:
        source: its spool.
        kind: its kind.
        step: the step that it belongs to and that is still open, or None.
        n_rows: rollouts in it.
        tokens: what was logged for it.
    """

    source: RecordSource
    kind: str
    step: StepKey | None = None
    n_rows: int = 0
    tokens: set[Token] = field(default_factory=set)
