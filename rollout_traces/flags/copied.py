"""The flags of rollouts that are copied: those that they had, though a copy may lack what they were raised for."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_traces.flags.flag import Flag
from rollout_traces.flags.registry import REGISTRY
from rollout_traces.ledger.given_values import stored_flags
from rollout_traces.packed_batch import PackedBatch

UNSEEN = "Raised when the rollout was logged; what it was raised for is not in the copy."


def as_stored(found: Sequence[Flag], batch: PackedBatch, row: int) -> list[Flag]:
    """The flags that a copied row had, with the sentences that were found anew; of other rows what was found.

    Args:
        found: flags found on the row here.
        batch: its hand-over.
        row: the row.
    """
    names = stored_flags(batch, row)
    if names is None:
        return list(found)
    of_name = {name: [flag for flag in found if flag.name == name] for name in names}
    return [
        flag
        for name in names
        for flag in of_name[name]
        or [Flag(name, REGISTRY[name].severity if name in REGISTRY else "info", UNSEEN)]
    ]
