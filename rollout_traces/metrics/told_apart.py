"""Names from the data that cleaning for keys would make equal, for the step's summary."""

from __future__ import annotations

from rollout_traces.ledger.columns import Ledger
from rollout_traces.metrics.aggregate import told_apart

_TEXTS = {"source": "source", "stop reason": "stop_reason", "discard reason": "discard_reason"}
_PREFIXES = {"reward component": "component/", "sample metric": "sample/"}


def describe_told_apart(ledger: Ledger) -> str:
    """One sentence that says under which part of a key a name is, where it is not its own; empty where none is.

    Args:
        ledger: every row of the step.
    """
    names = {
        kind: [column.removeprefix(prefix) for column in ledger.columns if column.startswith(prefix)]
        for kind, prefix in _PREFIXES.items()
    }
    names |= {
        kind: sorted({value for value in ledger.get(column).tolist() if value is not None})
        for kind, column in _TEXTS.items()
        if column in ledger.columns
    }
    said = [
        f"{kind} {name!r} is {part}"
        for kind, of_kind in names.items()
        if of_kind
        for name, part in told_apart(of_kind).items()
    ]
    return f"Names that are equal in keys but for their last digits: {'; '.join(said)}." if said else ""
